"""Compaction, retention and vacuum: beside a running ingest, and beside readers.

Compaction replaces several files of a day by one with the same rows; retention removes files, or
writes them again without their old rows. Both are a commit: a reader sees the version before or the
one after. The replaced files stay on disk for current readers until a vacuum.

If another process commits in between, its new files are included, and the commit is made for the
new version. The expiry time is stored in the same commit, so that a running ingest does not restore
expired rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby

import msgspec
from pyspark.sql import SparkSession

from matador.errors import ConfigurationError
from matador.spark.runtime.arrow import Schema
from matador.spark.runtime.executors import run_tasks
from matador.spark.tables.append import EXPIRED
from matador.spark.tables.delta import CommitConflictError, DataFile, DeltaTable
from matador.spark.tables.ingest_tasks import as_micros, is_older
from matador.spark.tables.parquet_writer import FileWriter, stored_rows, without_rows
from matador.storage import Storage
from matador.storage.files import groups

TARGET = 128 * 1024 * 1024
KEEP = timedelta(days=7)
_LEAST_KEPT = timedelta(hours=1)
_MOST_FILES = 1000  # merged by one task


@dataclass(frozen=True, slots=True)
class CompactResult:
    """How many files the tables had before, and have now."""

    files_before: int
    files_after: int

    def __add__(self, other: CompactResult) -> CompactResult:
        before, after = self.files_before, self.files_after
        return CompactResult(before + other.files_before, after + other.files_after)


@dataclass(frozen=True, slots=True)
class ExpireResult:
    """How many rows of each table were removed."""

    events: int
    deliveries: int
    quarantine: int


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """How many files were deleted."""

    files: int


def checked_target(target_size: int) -> int:
    """The size of compacted files; ``ConfigurationError`` unless it is positive."""
    if target_size < 1:
        raise ConfigurationError(f"compact: target_size must be positive, got {target_size}")
    return target_size


def compact(spark: SparkSession, table: DeltaTable, target_size: int = TARGET) -> CompactResult:
    """Merge small files of a table; see ``Lake.compact``."""
    before = table.open().files()
    merges = [
        group
        for _, of_day in groupby(sorted(before, key=_by_day_and_time), lambda one: one.date)
        for group in groups(
            [one for one in of_day if one.size < target_size], lambda one: one.size, target_size
        )
    ]
    # A task reads many files; it must report to the driver from time to time.
    merges = [
        part
        for group in merges
        for part in (group[at : at + _MOST_FILES] for at in range(0, len(group), _MOST_FILES))
        if len(part) > 1
    ]
    work = partial(_merge, table.storage, table.columns, merges)
    made = [
        msgspec.msgpack.decode(answer, type=DataFile)
        for answer in run_tasks(spark, work, len(merges))
    ]
    while merges:
        active = table.paths()
        both = [
            (file, group)
            for file, group in zip(made, merges, strict=True)
            if all(one.path in active for one in group)  # else another process has replaced one
        ]
        made, merges = [file for file, _ in both], [group for _, group in both]
        try:
            if merges:
                table.commit(made, [one for group in merges for one in group], same_rows=True)
            break
        except CommitConflictError:
            continue
    return CompactResult(len(before), len(table.paths()))


def cutoff_of(older_than: timedelta | datetime) -> datetime:
    """The time before which rows are old."""
    cutoff = older_than if isinstance(older_than, datetime) else datetime.now(UTC) - older_than
    if cutoff.tzinfo is None:
        raise ConfigurationError("expire: the time has no time zone; use datetime(..., tzinfo=UTC)")
    return cutoff.astimezone(UTC)


def count_old(spark: SparkSession, table: DeltaTable, cutoff: datetime) -> int:
    """How many rows of a table were recorded before a time."""
    table.open()
    day, files = cutoff.date().isoformat(), table.files()
    partly = [one for one in files if str(one.date) == day]
    work = partial(_count_old, table.storage, partly, as_micros(cutoff))
    answers = run_tasks(spark, work, len(partly))
    whole = sum(one.rows for one in files if str(one.date) < day)
    return whole + sum(msgspec.msgpack.decode(one, type=int) for one in answers)


def expire(spark: SparkSession, table: DeltaTable, cutoff: datetime) -> int:
    """Remove the rows of a table that were recorded before a time; returns how many."""
    table.open()
    looked: dict[str, DataFile | None] = {}
    day = cutoff.date().isoformat()  # %Y has no leading zeros: all rows are older than "657-01-01"
    while True:
        files = {one.path: one for one in table.files()}
        old = [one for one in files.values() if str(one.date) <= day]
        whole = [one for one in old if str(one.date) < day]
        partly = [one for one in old if one not in whole and one.path not in looked]
        work = partial(_expire, table.storage, table.columns, partly, as_micros(cutoff))
        for file, answer in zip(partly, run_tasks(spark, work, len(partly)), strict=True):
            looked[file.path] = msgspec.msgpack.decode(answer, type=DataFile | None)
        removed, added = [*whole], list[DataFile]()
        for path, left in looked.items():
            if path in files and left is not None:
                removed.append(files[path])
                if left.rows:
                    added.append(left)
        limit = max(as_micros(cutoff), table.transaction(EXPIRED) or 0)
        try:
            if removed or limit != table.transaction(EXPIRED):
                table.commit(added, removed, {EXPIRED: limit})
            return sum(one.rows for one in removed) - sum(one.rows for one in added)
        except CommitConflictError:
            continue


def kept_hours(keep: timedelta) -> int:
    """For how many hours replaced files are kept; ``ConfigurationError`` if too short."""
    if keep < _LEAST_KEPT:
        raise ConfigurationError(
            f"vacuum: keep must be at least {_LEAST_KEPT}, got {keep}; readers and other writers "
            "may need the files"
        )
    return -(-keep // timedelta(hours=1))


def _by_day_and_time(file: DataFile) -> tuple[str, str]:
    return str(file.date), str(file.statistics["minValues"].get("recorded_at"))


# -- tasks --------------------------------------------------------------------------------------


def _merge(
    storage: Storage, columns: Schema, merges: Sequence[Sequence[DataFile]], which: int
) -> bytes:
    """Write the rows of several files into one, row group by row group."""
    writer = FileWriter(storage, columns, merges[which][0].date)
    for one in merges[which]:
        with storage.reader(one.path) as source:
            for rows in stored_rows(source, columns):
                writer.write(rows)
    return msgspec.msgpack.encode(writer.close())


def _count_old(storage: Storage, files: Sequence[DataFile], before: int, which: int) -> bytes:
    """How many old rows a file has."""
    return msgspec.msgpack.encode(int(is_older(storage, files[which], before).sum()))


def _expire(
    storage: Storage, columns: Schema, files: Sequence[DataFile], before: int, which: int
) -> bytes:
    """A file without its old rows; None if it has none."""
    old = is_older(storage, files[which], before)
    kept = without_rows(storage, columns, files[which], old) if old.any() else None
    return msgspec.msgpack.encode(kept)
