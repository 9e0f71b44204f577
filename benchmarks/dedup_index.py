"""What it costs to find duplicate rows, without Spark: microseconds per key.

    python -m benchmarks.dedup_index

Prints a Markdown table: 100,000 keys are looked up in the index of a lake of many batches, and of
many rows; and what it costs to add them, merges included.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from matador.spark.tables.dedup_index import (
    known,
    left_overs,
    merged,
    run_name,
    runs_of,
    save_run,
    sorted_order,
    to_merge,
)
from matador.spark.tables.keys import Keys

_ASKED = 100_000


def random_keys(dice: np.random.Generator, count: int) -> Keys:
    """Sorted keys of random ids."""
    keys = dice.integers(0, 2**64, (2, count), np.uint64)
    return keys[:, sorted_order(keys)]


def measure(folder: Path, batches: int, rows: int) -> str:
    """A line of the table."""
    dice = np.random.default_rng(1)
    began = time.perf_counter()
    for number in range(1, batches + 1):
        save_run(folder / run_name(number, number), random_keys(dice, rows // batches))
        while runs := to_merge(runs_of(folder)):
            whole = folder / run_name(runs[0].first, runs[-1].last)
            save_run(whole, merged([run.load() for run in runs]))
        for path in left_overs(folder):
            path.unlink()
    added = (time.perf_counter() - began) / rows
    loaded = [run.load() for run in runs_of(folder)]
    asked = random_keys(dice, _ASKED)
    known(loaded, asked)
    began = time.perf_counter()
    assert not known(loaded, asked).any()
    found = (time.perf_counter() - began) / _ASKED
    return (
        f"| {batches:,} | {rows:,} | {len(loaded)} | {1e6 * found:.2f} µs | {1e6 * added:.2f} µs |"
    )


def main() -> None:
    """Print the table."""
    print("| batches | rows | runs | look up a key | add a key |\n|---:|---:|---:|---:|---:|")
    for batches, rows in ((10, 100_000), (1000, 1_000_000), (4000, 4_000_000), (100, 10_000_000)):
        with tempfile.TemporaryDirectory(prefix="matador-index-") as folder:
            print(measure(Path(folder), batches, rows), flush=True)


if __name__ == "__main__":
    main()
