"""Writes the Parquet files of the tables, called parts, and the keys of their rows.

The names are unique, so that a second attempt of a task, or the leftovers of a killed run, never
get in the way. A file belongs to its table once it is committed; others are deleted by a vacuum.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from matador.spark.runtime.arrow import RecordBatch, Schema, Table, pa, parquet
from matador.spark.tables.decode import Decoded, Rows
from matador.spark.tables.delta import PARTITION, DataFile, combined, statistics_of
from matador.spark.tables.keys import Keys
from matador.spark.tables.layout import TABLES
from matador.storage import Storage

_ROW_GROUP = 128 * 1024  # rows
_MOST_OPEN = 100  # files that a task writes at the same time
_DAY = 86_400 * 1_000_000
# The values of these are rarely repeated, so a dictionary would not help.
_WITHOUT_DICTIONARY = {
    *("id", "created_at", "recorded_at", "started_at", "scheduled_for"),
    *("duration_ms", "wait_ms", "since_created_ms", "data_json", "before_json", "raw"),
}


class Part(msgspec.Struct, frozen=True):
    """A file with rows of one table, and the keys of the rows, in the same order."""

    table: str
    file: DataFile
    packed_keys: bytes = b""

    @property
    def keys(self) -> Keys:
        """The keys of the rows."""
        return np.frombuffer(self.packed_keys, np.uint64).reshape(2, -1)


class Parts:
    """Writes what one task has decoded: at most one part for each table and day."""

    def __init__(self, lake: Storage) -> None:
        self._lake = lake
        self._open: dict[tuple[str, int], _OpenPart] = {}
        self._done: list[Part] = []

    def add(self, decoded: Decoded) -> None:
        """Add rows; they are written when there are enough for a row group."""
        for table, rows in decoded.tables.items():
            for day, of_day in _by_day(rows):
                if (table, day) not in self._open:
                    if len(self._open) >= _MOST_OPEN:  # a strange journal, with times of all ages
                        self._close_all()
                    self._open[table, day] = _OpenPart(self._lake, table, day)
                self._open[table, day].add(of_day)

    def finish(self) -> list[Part]:
        """Write the rest, and make everything durable."""
        self._close_all()
        return self._done

    def _close_all(self) -> None:
        self._done.extend(part.finish() for part in self._open.values())
        self._open = {}


class _OpenPart:
    def __init__(self, lake: Storage, table: str, day: int) -> None:
        self._table = table
        self._writer = FileWriter(lake.child(table), TABLES[table], day_name(day))
        self._waiting: list[RecordBatch] = []
        self._rows = 0
        self._keys: list[Keys] = []

    def add(self, rows: Rows) -> None:
        self._waiting.append(rows.batch)
        self._keys.append(rows.keys)
        self._rows += rows.batch.num_rows
        if self._rows >= _ROW_GROUP:
            self._write()

    def _write(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if waiting:
            self._writer.write(pa.Table.from_batches(waiting, TABLES[self._table]))

    def finish(self) -> Part:
        self._write()
        keys = np.concatenate(self._keys, axis=1)
        return Part(self._table, self._writer.close(), keys.tobytes())


def stored_rows(content: Any, columns: Schema) -> Iterator[Table]:
    """The rows of a Parquet file, in pieces, with columns of a table.

    Other writers may have stored them with other types, such as views of strings.
    """
    for batch in parquet.ParquetFile(content).iter_batches(_ROW_GROUP, columns=columns.names):
        yield pa.Table.from_batches([batch]).select(columns.names).cast(columns)


class FileWriter:
    """Writes one Parquet file of a table. Without rows, it writes none."""

    def __init__(self, storage: Storage, columns: Schema, day: str | None) -> None:
        folder = "" if day is None else f"{PARTITION}={day}/"
        self._storage = storage
        self._name = f"{folder}part-{uuid.uuid4().hex}.parquet"
        self._columns = columns
        self._day = day
        self._file: Any = None
        self._writer: Any = None
        self._statistics: list[dict[str, Any]] = []

    def write(self, rows: Table) -> None:
        """Append rows."""
        if self._writer is None:
            self._file = self._storage.create(self._name)
            self._writer = parquet.ParquetWriter(
                self._file,
                self._columns,
                compression="zstd",
                compression_level=1,
                use_dictionary=[n for n in self._columns.names if n not in _WITHOUT_DICTIONARY],
            )
        self._writer.write_table(rows, row_group_size=_ROW_GROUP)
        self._statistics.append(statistics_of(rows))

    def close(self) -> DataFile:
        """Finish the file, and make it and its name durable."""
        statistics = combined(self._statistics)
        size = 0
        if self._writer is not None:
            self._writer.close()
            size = self._storage.finish(self._name, self._file)
        return DataFile(self._name, size, statistics["numRecords"], self._day, statistics)


def without_rows(
    storage: Storage, columns: Schema, file: DataFile, unwanted: npt.NDArray[np.bool_]
) -> DataFile:
    """Write a file again without some of its rows; the new file has no rows if none is left."""
    writer = FileWriter(storage, columns, file.date)
    for rows, begin in _groups(storage, columns, file):
        left = rows.filter(pa.array(~unwanted[begin : begin + rows.num_rows]))
        if left.num_rows:
            writer.write(left)
    return writer.close()


def _groups(storage: Storage, columns: Schema, file: DataFile) -> Iterator[tuple[Table, int]]:
    """The rows of a file, in pieces, each with the number of its first row."""
    begin = 0
    with storage.reader(file.path) as source:
        for rows in stored_rows(source, columns):
            yield rows, begin
            begin += rows.num_rows


def day_name(day: int) -> str:
    """The day of that number since 1970, as Delta writes it."""
    return str(np.datetime64(day, "D"))


def day_number(name: str) -> int:
    """The number since 1970 of a day, from its name."""
    return int(np.datetime64(name, "D").astype(np.int64))


def _by_day(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Rows by the day they were recorded on; in quarantine, else by the day of their arrival."""
    if not rows.batch.num_rows:
        return
    times = rows.batch.column("recorded_at").cast(pa.int64())
    if times.null_count:
        times = times.fill_null(rows.batch.column("quarantined_at").cast(pa.int64())[0])
    days = times.to_numpy(zero_copy_only=False) // _DAY
    if (days == days[0]).all():
        yield int(days[0]), rows
        return
    for day in np.unique(days).tolist():
        places = np.flatnonzero(days == day)
        yield int(day), Rows(rows.batch.take(pa.array(places)), rows.keys[:, places])
