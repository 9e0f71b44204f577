"""The data pipeline: journals into a lake, against bare Spark on the same segments.

    script/benchmark pipeline [--rounds 3] [--envelopes 200000] [--scale]

The data source and replays are in ``pipeline_source``, and held with these. ``--scale`` also
measures whether a row costs more at a million envelopes than at a hundred thousand.
Prints a Markdown table of ratios, and exits with 1 if a bar is not met.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import pipeline_source
from benchmarks.journal_generator import SCHEMA, generate
from benchmarks.rounds import Bar, Contest, hold, table
from matador.model.schema import Schema
from matador.spark import Lake, spark_session

_FIELDS = """
    kind string, id string, event_key string, subscriber string, queue string, transport string,
    created_at bigint, importance string, data string, recorded_at bigint, before string,
    scheduled_for bigint, correlation_id string, metadata string, replay_id string, source string,
    attempt int, outcome string, started_at bigint, duration_ms double, wait_ms double,
    since_created_ms double, worker string, deliveries int, ran boolean, error_type string,
    error string, reason string, dead_letter_kind string
"""
_SEGMENT = 8 * 1024 * 1024
_BATCH = 10 * 1024 * 1024  # one segment: a hundred thousand envelopes are enough to merge the index


class Bench:
    """A session, a folder, and the journals made so far."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder / "ingest"
        self._journals: dict[tuple[int, int], tuple[Path, int]] = {}

    def journal(self, envelopes: int, seed: int = 1) -> tuple[Path, int]:
        """A journal of so many envelopes, and how many records it has."""
        if (envelopes, seed) not in self._journals:
            path = self._folder / f"journal-{envelopes}-{seed}"
            self._journals[envelopes, seed] = (
                path,
                sum(generate(path, envelopes, seed=seed, segment=_SEGMENT)),
            )
        return self._journals[envelopes, seed]

    def ingest(
        self, envelopes: int, schema: Schema | None, batch_size: int = 512 * 1024 * 1024
    ) -> Callable[[], float]:
        """Ours: decoded, validated, deduplicated, exactly once, durable."""
        path, records = self.journal(envelopes)

        def turn() -> float:
            lake = Lake(self._folder / "lake", schema=schema, spark=self._spark)
            start = time.perf_counter()
            result = lake.ingest(path, batch_size=batch_size)
            seconds = time.perf_counter() - start
            assert result.records == records == result.events + result.deliveries, result
            shutil.rmtree(lake.path)
            return records / seconds

        return turn

    def add(self, envelopes: int, present: int) -> Callable[[], float]:
        """The same rows, added to a lake that has ``present`` envelopes of its own already."""
        path, records = self.journal(envelopes, seed=2)
        full = Lake(self._folder / f"lake-of-{present}", spark=self._spark)
        if present:
            full.ingest(self.journal(present)[0], batch_size=_BATCH)
        else:
            full.path.mkdir(parents=True)

        def turn() -> float:
            lake = Lake(self._folder / "lake", spark=self._spark)
            shutil.copytree(full.path, lake.path)
            start = time.perf_counter()
            result = lake.ingest(path, batch_size=_BATCH)
            seconds = time.perf_counter() - start
            assert result.records == records == result.events + result.deliveries, result
            shutil.rmtree(lake.path)
            return records / seconds

        return turn

    def bare(self, envelopes: int) -> Callable[[], float]:
        """One pass of Spark alone: all columns as they are, a folder for each kind of record."""
        path, records = self.journal(envelopes)
        target = self._folder / "bare"

        def turn() -> float:
            start = time.perf_counter()
            frame = self._spark.read.schema(_FIELDS).json(str(path))
            frame.write.partitionBy("kind").parquet(str(target))
            seconds = time.perf_counter() - start
            shutil.rmtree(target)
            return records / seconds

        return turn


def ingest_contest(bench: Bench, envelopes: int) -> Contest:
    """Journal to events and deliveries."""
    return Contest(
        f"journal to tables, {envelopes:,} envelopes",
        "lake.ingest",
        {
            "lake.ingest": bench.ingest(envelopes, None),
            "lake.ingest, payloads validated": bench.ingest(envelopes, SCHEMA),
            "spark.read.json, write.parquet": bench.bare(envelopes),
        },
        (Bar("spark.read.json, write.parquet", 0.6),),
        " rows/s",
    )


def scale_contest(bench: Bench) -> Contest:
    """A row should cost the same in a large lake. A tenth is left to the noise."""
    return Contest(
        f"ingest in batches of {_BATCH >> 20} MB",
        "1,000,000 envelopes",
        {
            "1,000,000 envelopes": bench.ingest(1_000_000, SCHEMA, _BATCH),
            "100,000 envelopes": bench.ingest(100_000, SCHEMA, _BATCH),
        },
        (Bar("100,000 envelopes", 0.9),),
        " rows/s",
    )


def growth_contest(bench: Bench) -> Contest:
    """The same rows into a large lake and into an empty one: only the index differs."""
    return Contest(
        "100,000 envelopes more",
        "into a lake of 1,000,000",
        {
            "into a lake of 1,000,000": bench.add(100_000, 1_000_000),
            "into an empty lake": bench.add(100_000, 0),
        },
        (Bar("into an empty lake", 0.9),),
        " rows/s",
    )


def main() -> int:
    """Hold the contests; 0 if every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envelopes", type=int, default=200_000)
    parser.add_argument("--scale", action="store_true", help="also a million envelopes")
    given = parser.parse_args()
    spark = spark_session(config={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        bench = Bench(spark, Path(folder))
        bench.ingest(2_000, SCHEMA)()  # Java and the workers are warm for everybody
        bench.bare(2_000)()
        contests = [ingest_contest(bench, given.envelopes)]
        if given.scale:
            contests.extend([scale_contest(bench), growth_contest(bench)])
        contests.extend(pipeline_source.contests(spark, Path(folder), given.envelopes // 2))
        outcomes = [hold(contest, given.rounds) for contest in contests]
    print(table(outcomes))
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
