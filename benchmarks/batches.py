"""Small batches into a lake of a thousand batches, and into one of ten: the cost of a row.

    script/benchmark batches [--rounds 20] [--batches 1000] [--profile]

Ten batches each time, by an ingest that opens the lake and brings its aggregates up to date. The
large lake grows on: every hundredth batch makes a checkpoint of the log, which is counted. The
small one is a new copy every time. Without Spark, which adds the same to both: what its tasks do is
done in this process. CPU time, by turns; exits with 1 if a row costs more than 1.2 times as much.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from benchmarks.journal_generator import generate
from matador.spark.aggregates.store import Aggregates
from matador.spark.tables import append, ingest
from matador.spark.tables.ingest import Ingest, IngestOptions
from matador.spark.tables.layout import Layout
from matador.storage import FolderStorage

_ENVELOPES = 100  # of a batch
_SEGMENT = 100 * 1024  # bytes, at most
_MORE = 10  # batches
_MOST = 1.2
_WORDS = {True: "met", False: "NOT MET"}
_SPARK = cast("SparkSession", None)


def _run_here(spark: object, work: Callable[[int], bytes], count: int) -> list[bytes]:
    return [work(number) for number in range(count)]


def _two(spark: object) -> int:
    return 2


def add(lake: Path, journal: Path) -> int:
    """What ``Lake(lake).ingest(journal)`` does, in this process; returns the number of rows."""
    layout = Layout(lake)
    options = IngestOptions(batch_size=_SEGMENT + 10_000)
    with _without_spark():
        result = Ingest(_SPARK, layout, None, options).run(FolderStorage(str(journal)))
        Aggregates(layout, lambda: _SPARK).update()
    return result.events + result.deliveries


@contextmanager
def _without_spark() -> Generator[None]:
    before = ingest.run_tasks, append.run_tasks, ingest.parallelism
    ingest.run_tasks = append.run_tasks = _run_here
    ingest.parallelism = _two
    try:
        yield
    finally:
        ingest.run_tasks, append.run_tasks, ingest.parallelism = before


def main() -> int:
    """Measure; 0 if the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--profile", action="store_true", help="where the time goes, in the large")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as name:
        folder = Path(name)
        costs: dict[int, list[float]] = {_MORE: [], given.batches: []}
        for batches in costs:
            journal = folder / f"journal-{batches}"
            generate(journal, batches * _ENVELOPES, segment=_SEGMENT)
            add(folder / f"lake-{batches}", journal)
        small, large = folder / "small", folder / f"lake-{given.batches}"
        profile = cProfile.Profile()
        for seed in range(2, 2 + given.rounds):
            more = folder / f"more-{seed}"
            generate(more, _MORE * _ENVELOPES, seed=seed, segment=_SEGMENT)
            shutil.copytree(folder / f"lake-{_MORE}", small)
            costs[_MORE].append(_cost(small, more))
            if given.profile:
                profile.enable()
            costs[given.batches].append(_cost(large, more))
            profile.disable()
            shutil.rmtree(small)
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    for batches, found in costs.items():
        print(
            f"lake of {batches:>5,} batches: {statistics.mean(found):.0f} µs a row; median "
            f"{statistics.median(found):.0f}, {min(found):.0f} to {max(found):.0f}"
        )
    ratios = [
        measure(costs[given.batches]) / measure(costs[_MORE])
        for measure in (statistics.mean, statistics.median)
    ]
    met = max(ratios) <= _MOST
    print(f"mean {ratios[0]:.2f} ×, median {ratios[1]:.2f} × (bar {_MOST} ×: {_WORDS[met]})")
    return 0 if met else 1


def _cost(lake: Path, journal: Path) -> float:
    """Microseconds of CPU time for a row."""
    began = time.process_time()
    rows = add(lake, journal)
    return (time.process_time() - began) / rows * 1e6


if __name__ == "__main__":
    sys.exit(main())
