"""Compaction and retention: merges small files into large ones, and removes old rows.

Compaction replaces several batches by one with the same rows. The new folder is complete before the
old ones are moved away and the new one takes their place: for a few renames a reader does not see
the rows, but it never sees them twice. The decision is written to disk first, so that whoever opens
the lake next finishes an interrupted replacement.

Keys of removed rows stay in the index: ingesting a segment again does not bring them back. Both
need the lock of the lake, and are refused while an ingest runs.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from matador.errors import ConfigurationError, StorageLockedError
from matador.spark.runtime.arrow import pa, parquet
from matador.spark.runtime.executors import run_tasks
from matador.spark.runtime.files import (
    groups,
    locked,
    private_folder,
    read_json,
    remove,
    sync,
    write_json,
)
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.parquet_writer import PartWriter, without_rows


class Replacement(msgspec.Struct, frozen=True):
    """Batches of a table to be replaced by one folder, which gets the highest of their numbers."""

    table: str
    batches: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the new folder while it is staged."""
        return f"{self.table}-{self.batches[-1]}"


class _Pending(msgspec.Struct, frozen=True):
    folder: str
    replacements: tuple[Replacement, ...] = msgspec.field(name="swaps")


def replace_batches(layout: Layout, folder: str, replacements: Sequence[Replacement]) -> None:
    """Move the new folders from the staging folder to their places. Needs the lock."""
    sync(layout.staging / folder)
    sync(layout.staging)
    write_json(layout.pending_replacements, _Pending(folder, tuple(replacements)))
    finish_replacements(layout)


def finish_replacements(layout: Layout) -> None:
    """Finish replacements that were started, if there are any. Needs the lock."""
    pending = read_json(layout.pending_replacements, _Pending)
    if pending is None:
        return
    folder = layout.staging / pending.folder
    old = private_folder(folder / "old")
    for one in pending.replacements:
        new = folder / one.name
        if not new.exists():
            continue  # finished before the interruption
        for number in one.batches:
            path = layout.batch(one.table, number)
            if path.exists():
                path.rename(old / f"{one.table}-{number}")
        new.rename(layout.batch(one.table, one.batches[-1]))
        sync(layout.table(one.table))
    layout.pending_replacements.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def finish_interrupted(layout: Layout) -> None:
    """For readers: finish what a dead process has started; a living one does it itself."""
    if layout.pending_replacements.exists():
        with contextlib.suppress(StorageLockedError), locked(layout.lock):
            finish_replacements(layout)


TARGET = 128 * 1024 * 1024
_ROWS = 64 * 1024  # rows read at a time
_TIME = "recorded_at"


@dataclass(frozen=True, slots=True)
class CompactResult:
    """How many files the tables had before, and have now."""

    files_before: int
    files_after: int


@dataclass(frozen=True, slots=True)
class ExpireResult:
    """How many rows of each table were removed."""

    events: int
    deliveries: int
    quarantine: int


def compact(
    spark: SparkSession, layout: Layout, target_size: int = TARGET, through: int | None = None
) -> CompactResult:
    """See ``Lake.compact``. Batches after ``through`` are left: the aggregates lack them yet."""
    if target_size < 1:
        raise ConfigurationError(f"compact: target_size must be positive, got {target_size}")
    layout.make()
    with locked(layout.lock):
        finish_replacements(layout)
        before = _count_files(layout)
        replacements = [
            one for table in TABLES for one in _worthwhile(layout, table, target_size, through)
        ]
        if replacements:
            folder = f"compaction-{uuid.uuid4().hex[:8]}"
            run_tasks(spark, partial(_merge, layout, folder, replacements), len(replacements))
            replace_batches(layout, folder, replacements)
        return CompactResult(before, _count_files(layout))


def expire(spark: SparkSession, layout: Layout, older_than: timedelta | datetime) -> ExpireResult:
    """See ``Lake.expire``."""
    cutoff = older_than if isinstance(older_than, datetime) else datetime.now(UTC) - older_than
    if cutoff.tzinfo is None:
        raise ConfigurationError("expire: the time has no time zone; use datetime(..., tzinfo=UTC)")
    layout.make()
    with locked(layout.lock):
        finish_replacements(layout)
        batches = [(table, number) for table in TABLES for number in layout.batches(table)]
        removed = dict.fromkeys(TABLES, 0)
        answers = run_tasks(spark, partial(_expire, layout, batches, cutoff), len(batches))
        for (table, number), answer in zip(batches, answers, strict=True):
            removed[table] += int(answer)
            folder = layout.batch(table, number)
            if not any(_files(folder)):
                remove(folder)
        return ExpireResult(**removed)


def _worthwhile(
    layout: Layout, table: str, target: int, through: int | None
) -> Iterator[Replacement]:
    """Adjacent batches that together fit into ``target`` bytes and have more than one file."""
    batches = [one for one in layout.batches(table) if through is None or one <= through]
    sizes = {
        one: [path.stat().st_size for path in _files(layout.batch(table, one))] for one in batches
    }
    for group in groups(batches, lambda one: sum(sizes[one]), target):
        if sum(len(sizes[one]) for one in group) > 1:
            yield Replacement(table, tuple(group))


def _files(folder: Path) -> Iterator[Path]:
    return folder.glob("[!._]*.parquet")


def _count_files(layout: Layout) -> int:
    return sum(1 for table in TABLES for _ in layout.table(table).glob("*/[!._]*.parquet"))


# -- tasks --------------------------------------------------------------------------------------


def _merge(layout: Layout, folder: str, replacements: Sequence[Replacement], which: int) -> bytes:
    """Write the rows of several batches into one file, row group by row group."""
    one = replacements[which]
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
    """Remove old rows from one batch; returns how many."""
    table, number = batches[which]
    folder = layout.batch(table, number)
    for left_over in folder.glob(".*"):
        left_over.unlink()
    return str(sum(_expire_file(path, table, cutoff) for path in list(_files(folder)))).encode()


def _expire_file(path: Path, table: str, cutoff: datetime) -> int:
    times = parquet.read_table(path, columns=[_TIME], partitioning=None).column(0)
    # Rows in quarantine may have no time: that of their file counts.
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    times = times.fill_null(pa.scalar(written, times.type))
    micros = np.asarray(times.cast(pa.int64()))
    old = np.flatnonzero(micros < int(cutoff.timestamp() * 1_000_000))
    if len(old):
        without_rows(path, table, old)
    return len(old)
