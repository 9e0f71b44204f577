"""Compaction and retention: few large files instead of many small ones, and none that are too old.

Keys of rows that are gone stay in the index: a segment that is ingested again brings none of them
back. Both hold the lake's lock, so they wait for no ingest: they are refused while one runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from matador.errors import ConfigurationError
from matador.spark.arrow import pa, parquet
from matador.spark.consumers import Consumers
from matador.spark.files import locked, remove
from matador.spark.layout import TABLES, Layout
from matador.spark.parts import PartWriter, without_rows
from matador.spark.swaps import Swap, carry_on, swap
from matador.spark.tasks import run_tasks

TARGET = 128 * 1024 * 1024
_ROWS = 64 * 1024  # read at a time
_TIME = "recorded_at"


@dataclass(frozen=True, slots=True)
class CompactResult:
    """How many files the tables had before and have now."""

    files_before: int
    files_after: int


@dataclass(frozen=True, slots=True)
class ExpireResult:
    """How many rows of each table were removed."""

    events: int
    deliveries: int
    quarantine: int


def compact(spark: SparkSession, layout: Layout, target_size: int = TARGET) -> CompactResult:
    """Merge neighbouring batches into files of about ``target_size`` bytes.

    A query that began before may fail if it opens a file that was merged: run it again.

    Raises:
        ConfigurationError: ``target_size`` is not positive.
        StorageLockedError: another process writes to this lake.
    """
    if target_size < 1:
        raise ConfigurationError(f"compact: target_size must be positive, got {target_size}")
    layout.make()
    with locked(layout.lock):
        carry_on(layout)
        before = _count_files(layout)
        limit = Consumers(layout).slowest()
        swaps = [one for table in TABLES for one in _worthwhile(layout, table, target_size, limit)]
        if swaps:
            folder = f"compaction-{uuid.uuid4().hex[:8]}"
            run_tasks(spark, partial(_merge, layout, folder, swaps), len(swaps))
            swap(layout, folder, swaps)
        return CompactResult(before, _count_files(layout))


def expire(spark: SparkSession, layout: Layout, older_than: timedelta | datetime) -> ExpireResult:
    """Remove rows that were recorded before a time, or longer ago than that.

    Raises:
        ConfigurationError: a time without a time zone.
        StorageLockedError: another process writes to this lake.
    """
    cutoff = older_than if isinstance(older_than, datetime) else datetime.now(UTC) - older_than
    if cutoff.tzinfo is None:
        raise ConfigurationError("expire: the time needs a time zone, such as datetime.UTC")
    layout.make()
    with locked(layout.lock):
        carry_on(layout)
        batches = [(table, number) for table in TABLES for number in layout.batches(table)]
        removed = dict.fromkeys(TABLES, 0)
        answers = run_tasks(spark, partial(_expire, layout, batches, cutoff), len(batches))
        for (table, number), answer in zip(batches, answers, strict=True):
            removed[table] += int(answer)
            folder = layout.batch(table, number)
            if not any(_files(folder)):
                remove(folder)
        return ExpireResult(**removed)


def _worthwhile(layout: Layout, table: str, target: int, limit: int | None) -> Iterator[Swap]:
    """Neighbours that together are no larger than ``target`` and have more than one file."""
    group: list[int] = []
    size = files = 0
    for number in layout.batches(table):
        if limit is not None and number > limit:
            break
        sizes = [path.stat().st_size for path in _files(layout.batch(table, number))]
        if group and size + sum(sizes) > target:
            if files > 1:
                yield Swap(table, tuple(group))
            group, size, files = [], 0, 0
        group.append(number)
        size += sum(sizes)
        files += len(sizes)
    if files > 1:
        yield Swap(table, tuple(group))


def _files(folder: Path) -> Iterator[Path]:
    return folder.glob("[!._]*.parquet")


def _count_files(layout: Layout) -> int:
    return sum(1 for table in TABLES for _ in layout.table(table).glob("*/[!._]*.parquet"))


# -- tasks --------------------------------------------------------------------------------------


def _merge(layout: Layout, folder: str, swaps: Sequence[Swap], which: int) -> bytes:
    """Write the rows of some batches into one file, row group by row group."""
    one = swaps[which]
    new = layout.staging / folder / one.name
    hidden = layout.staging / folder / f".{one.name}-{uuid.uuid4().hex[:8]}"
    writer = PartWriter(one.table, hidden / f"merged-{uuid.uuid4().hex[:8]}.parquet")
    for number in one.batches:
        for path in sorted(_files(layout.batch(one.table, number))):
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS):
                    writer.write([batch])
    writer.close()
    remove(new)  # of an earlier attempt of this task
    hidden.rename(new)
    return b""


def _expire(
    layout: Layout, batches: Sequence[tuple[str, int]], cutoff: datetime, which: int
) -> bytes:
    """Remove old rows from one batch; how many."""
    table, number = batches[which]
    folder = layout.batch(table, number)
    for left_over in folder.glob(".*"):
        left_over.unlink()
    return str(sum(_expire_file(path, table, cutoff) for path in list(_files(folder)))).encode()


def _expire_file(path: Path, table: str, cutoff: datetime) -> int:
    times = parquet.read_table(path, columns=[_TIME], partitioning=None).column(0)
    # What could not be read has no time of its own: that of its file counts.
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    times = times.fill_null(pa.scalar(written, times.type))
    micros = np.asarray(times.cast(pa.int64()))
    old = np.flatnonzero(micros < int(cutoff.timestamp() * 1_000_000))
    if len(old):
        without_rows(path, table, old)
    return len(old)
