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

from matador.spark.runtime.arrow import RecordBatch, Table, pa, parquet
from matador.spark.runtime.files import private_file, private_folder, sync_file, sync_folder
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
    """A file with rows of one table: ``<name>.parquet``, and ``<name>.npy`` with their keys."""

    table: str
    name: str
    rows: int


class Parts:
    """Writes what one task has decoded: at most one part for each table."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._name = f"part-{number:05d}-{uuid.uuid4().hex[:8]}"
        self._rows: dict[str, list[Rows]] = {table: [] for table in TABLES}
        self._waiting = dict.fromkeys(TABLES, 0)
        self._keys: dict[str, list[Keys]] = {table: [] for table in TABLES}
        self._writers: dict[str, PartWriter] = {}

    def add(self, decoded: Decoded) -> None:
        """Add rows; they are written when there are enough for a row group."""
        for table, rows in decoded.tables.items():
            if rows.batch.num_rows:
                self._rows[table].append(rows)
                self._waiting[table] += rows.batch.num_rows
                if self._waiting[table] >= _ROW_GROUP:
                    self._write(table)

    def finish(self) -> list[Part]:
        """Write the rest, and make everything durable."""
        parts: list[Part] = []
        for table in TABLES:
            self._write(table)
            writer = self._writers.get(table)
            if writer is not None:
                writer.close()
                keys = np.concatenate(self._keys[table], axis=1)
                with private_file(keys_path(self._folder, table, self._name)) as file:
                    np.save(file, keys)
                parts.append(Part(table, self._name, keys.shape[1]))
        return parts

    def _write(self, table: str) -> None:
        waiting, self._rows[table] = self._rows[table], []
        self._waiting[table] = 0
        if not waiting:
            return
        writer = self._writers.get(table)
        if writer is None:
            writer = PartWriter(table, part_path(self._folder, table, self._name))
            self._writers[table] = writer
        writer.write([rows.batch for rows in waiting])
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
        """Append a row group."""
        self._writer.write_table(
            pa.Table.from_batches(batches, self._schema), row_group_size=_ROW_GROUP
        )

    def write_table(self, table: Table) -> None:
        """Append rows."""
        self._writer.write_table(table, row_group_size=_ROW_GROUP)

    def close(self) -> None:
        """Finish the file, and make it and its name durable."""
        self._writer.close()
        sync_file(self._path)
        sync_folder(self._path.parent)


def without_rows(path: Path, table: str, unwanted: npt.NDArray[np.int64]) -> int:
    """Rewrite a part without some of its rows, atomically; returns how many are left.

    A part without rows is removed.
    """
    content = parquet.read_table(path, partitioning=None)
    kept = np.ones(content.num_rows, np.bool_)
    kept[unwanted] = False
    rest = content.filter(pa.array(kept))
    if rest.num_rows == 0:
        path.unlink()
        sync_folder(path.parent)
        return 0
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    writer = PartWriter(table, hidden)
    writer.write_table(rest)
    writer.close()
    hidden.replace(path)
    sync_folder(path.parent)
    return int(rest.num_rows)


def part_path(folder: Path, table: str, name: str) -> Path:
    """The file with the rows of a part."""
    return folder / "parts" / table / f"{name}.parquet"


def keys_path(folder: Path, table: str, name: str) -> Path:
    """The file with the keys of a part, in the order of its rows."""
    return folder / "parts" / table / f"{name}.npy"
