"""Writes the Parquet files of a task, called parts, with the keys of their rows beside them.

The names are unique, so that a second attempt of a task, or leftovers of a killed run, never get in
the way; the driver moves the parts that a task reports into the table.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from matador.spark.runtime.arrow import RecordBatch, pa, parquet
from matador.spark.runtime.files import private_file, private_folder, sync
from matador.spark.tables.decode import Decoded, Rows
from matador.spark.tables.dedup_index import Keys
from matador.spark.tables.layout import TABLES

_ROW_GROUP = 128 * 1024  # rows
# The values of these are rarely repeated, so a dictionary would not help.
_WITHOUT_DICTIONARY = {
    *("id", "created_at", "recorded_at", "started_at", "scheduled_for"),
    *("duration_ms", "wait_ms", "since_created_ms", "data_json", "before_json", "raw"),
}


class Part(msgspec.Struct, frozen=True):
    """A file with rows of one table, and another with their keys, in the same order."""

    table: str
    name: str
    rows: int = 0

    def path(self, folder: Path, suffix: str = ".parquet") -> Path:
        """The file with the rows; with ``.npy`` the one with their keys."""
        return folder / "parts" / self.table / f"{self.name}{suffix}"


class Parts:
    """Writes what one task has decoded: at most one part for each table."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        name = f"part-{number:05d}-{uuid.uuid4().hex[:8]}"
        self._parts = {table: Part(table, name) for table in TABLES}
        self._waiting: dict[str, list[Rows]] = {table: [] for table in TABLES}
        self._keys: dict[str, list[Keys]] = {table: [] for table in TABLES}
        self._writers: dict[str, PartWriter] = {}

    def add(self, decoded: Decoded) -> None:
        """Add rows; they are written when there are enough for a row group."""
        for table, rows in decoded.tables.items():
            if rows.batch.num_rows:
                self._waiting[table].append(rows)
                if sum(one.batch.num_rows for one in self._waiting[table]) >= _ROW_GROUP:
                    self._write(table)

    def finish(self) -> list[Part]:
        """Write the rest, and make everything durable."""
        parts: list[Part] = []
        for table, part in self._parts.items():
            self._write(table)
            if table in self._writers:
                self._writers[table].close()
                keys = np.concatenate(self._keys[table], axis=1)
                with private_file(part.path(self._folder, ".npy")) as file:
                    np.save(file, keys)
                parts.append(msgspec.structs.replace(part, rows=keys.shape[1]))
        return parts

    def _write(self, table: str) -> None:
        waiting, self._waiting[table] = self._waiting[table], []
        if not waiting:
            return
        if table not in self._writers:
            path = self._parts[table].path(self._folder)
            self._writers[table] = PartWriter(table, path)
        self._writers[table].write([rows.batch for rows in waiting])
        self._keys[table].extend(rows.keys for rows in waiting)


class PartWriter:
    """Writes one Parquet file of a table."""

    def __init__(self, table: str, path: Path) -> None:
        schema = TABLES[table]
        private_folder(path.parent)
        private_file(path).close()  # pyarrow writes to this file
        self._path = path
        self._schema = schema
        self._writer = parquet.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name not in _WITHOUT_DICTIONARY],
        )

    def write(self, batches: list[RecordBatch]) -> None:
        """Append rows. Those of an older version may lack columns, which are null then."""
        rows = pa.Table.from_batches(batches)
        if rows.schema.names != self._schema.names:
            for column in self._schema:
                if column.name not in rows.schema.names:
                    rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
            rows = rows.select(self._schema.names)
        self._writer.write_table(rows, row_group_size=_ROW_GROUP)

    def close(self) -> None:
        """Finish the file, and make it and its name durable."""
        self._writer.close()
        sync(self._path)
        sync(self._path.parent)


def without_rows(path: Path, table: str, unwanted: npt.NDArray[np.int64]) -> None:
    """Rewrite a part without some of its rows, atomically. A part without rows is removed."""
    content = parquet.read_table(path, partitioning=None)
    kept = np.ones(content.num_rows, np.bool_)
    kept[unwanted] = False
    rest = content.filter(pa.array(kept))
    if rest.num_rows == 0:
        path.unlink()
    else:
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        writer = PartWriter(table, hidden)
        writer.write(rest.to_batches())
        writer.close()
        hidden.replace(path)
    sync(path.parent)
