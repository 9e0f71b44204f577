"""Converts a lake of the first layout, with a folder for each batch, to Delta tables.

The rows of a table are written again, by day, and committed in one step; then the old folders are
removed. A conversion that is killed is done by the next one: what is committed is not repeated. The
keys of all rows that the tables ever had are carried over, so that expired rows do not return. The
aggregates are counted again, from the rows that are there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from matador.errors import ConfigurationError
from matador.spark.runtime.arrow import Table, compute, pa, parquet
from matador.spark.runtime.executors import run_tasks
from matador.spark.tables.decode import quarantined_bytes
from matador.spark.tables.dedup_index import merged, run_name, save_run
from matador.spark.tables.delta import NEW, DataFile, DeltaTable
from matador.spark.tables.ingest import IngestedSegments, SegmentRef
from matador.spark.tables.keys import EVENT, fingerprint
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.parquet_writer import FileWriter, day_name
from matador.storage import Storage
from matador.storage.files import groups, private_folder

CONVERTED = "matador.converted"
"""The application whose transaction says that the rows of the first layout are in the table."""

_BYTES_A_TASK = 64 * 1024 * 1024
_DAY = 86_400 * 1_000_000
_AGGREGATES = ("volume", "health", "triage")


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """How many rows of each table were converted."""

    events: int = 0
    deliveries: int = 0
    quarantine: int = 0


class _Batch(msgspec.Struct, frozen=True):
    """What the log of batches had about one of them."""

    number: int
    segments: list[tuple[str, int, int]]
    state: str = "done"
    staging: str | None = None


class _Replacement(msgspec.Struct, frozen=True):
    table: str
    batches: list[int]


class _Pending(msgspec.Struct, frozen=True):
    folder: str
    swaps: list[_Replacement]


def convert(spark: SparkSession, layout: Layout) -> ConvertResult:
    """See ``Lake.convert``."""
    if not layout.storage.is_local:
        raise ConfigurationError(
            f"{layout.storage.root}: a lake of the first layout is in a local folder; convert it "
            "there, then copy it"
        )
    root = layout.root
    batches = [*_batches(root)]
    _finish_replacements(root)
    _finish_staged(root, batches)
    rows = {name: _convert_table(spark, layout, name) for name in TABLES}
    done = [one for one in batches if one.state != "planned"]
    segments = [SegmentRef(*segment) for one in done for segment in one.segments]
    known = IngestedSegments(layout)
    if new := known.new(segments):
        known.add(new)
    for name in _AGGREGATES:
        for folder in root.glob(f"{name}/batches=*"):
            shutil.rmtree(folder)
    for name in ("_checkpoints", "_staging"):
        shutil.rmtree(root / name, ignore_errors=True)
    return ConvertResult(**rows)


def _convert_table(spark: SparkSession, layout: Layout, name: str) -> int:
    table = layout.table(name).open()
    folders = [*(layout.root / name).glob("batch_id=*")]
    converted = 0
    if table.transaction(CONVERTED) is None:
        files = sorted(path for folder in folders for path in folder.glob("[!._]*.parquet"))
        tasks = [*groups(map(str, files), lambda one: Path(one).stat().st_size, _BYTES_A_TASK)]
        work = partial(_rewrite, table.storage, name, tasks)
        made = [
            file
            for answer in run_tasks(spark, work, len(tasks))
            for file in msgspec.msgpack.decode(answer, type=list[DataFile])
        ]
        _carry_over_index(layout, name, table)
        table.commit(made, (), {CONVERTED: 1})
        converted = sum(file.rows for file in made)
    for run in layout.index(name).glob("*-*.npy"):
        run.unlink()
    for folder in folders:
        shutil.rmtree(folder)
    return converted


def _carry_over_index(layout: Layout, name: str, table: DeltaTable) -> None:
    """Keep the keys of all rows, also of those that have expired, for the version to come."""
    runs = [np.load(run) for run in layout.index(name).glob("*-*.npy")]
    if runs:
        folder = private_folder(layout.index(name) / table.id)
        save_run(folder / run_name(1, table.version + 1), merged(runs))


def _batches(root: Path) -> Iterator[_Batch]:
    for path in sorted((root / "_checkpoints" / "ingest").glob("*.json")):
        yield msgspec.json.decode(path.read_bytes(), type=_Batch)


def _finish_replacements(root: Path) -> None:
    """Finish a compaction that was interrupted."""
    path = root / "_checkpoints" / "swaps.json"
    if not path.exists():
        return
    pending = msgspec.json.decode(path.read_bytes(), type=_Pending)
    for one in pending.swaps:
        new = root / "_staging" / pending.folder / f"{one.table}-{one.batches[-1]}"
        if new.exists():
            for number in one.batches:
                shutil.rmtree(root / one.table / f"batch_id={number}", ignore_errors=True)
            new.rename(root / one.table / f"batch_id={one.batches[-1]}")
    path.unlink()


def _finish_staged(root: Path, batches: Sequence[_Batch]) -> None:
    """Move the files of a batch that was written, but not moved, to their tables."""
    for batch in batches:
        if batch.state == "staged" and batch.staging is not None:
            for table in TABLES:
                staged = root / "_staging" / batch.staging / table
                target = root / table / f"batch_id={batch.number}"
                if staged.exists() and not target.exists():
                    private_folder(target.parent)
                    staged.rename(target)
            for index in (root / "_staging" / batch.staging).glob("index/*/*.npy"):
                index.rename(private_folder(root / "_index" / index.parent.name) / index.name)


# -- tasks --------------------------------------------------------------------------------------


def _rewrite(storage: Storage, table: str, tasks: Sequence[Sequence[str]], which: int) -> bytes:
    """Write the rows of some old files by day."""
    writers: dict[int, FileWriter] = {}
    for path in tasks[which]:
        written = int(Path(path).stat().st_mtime * 1_000_000)
        with parquet.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                rows = _with_new_columns(table, file.read_row_group(number), written)
                times = rows.column("recorded_at").cast(pa.int64()).fill_null(written)
                days = times.to_numpy() // _DAY
                for day in np.unique(days).tolist():
                    if day not in writers:
                        writers[day] = FileWriter(storage, TABLES[table], day_name(day), NEW)
                    writers[day].write(rows.filter(pa.array(days == day)))
    return msgspec.msgpack.encode([writer.close() for writer in writers.values()])


def _with_new_columns(table: str, rows: Table, written: int) -> Table:
    columns = TABLES[table]
    if table == "quarantine":
        at = pa.array([written] * rows.num_rows, pa.int64())
        rows = rows.append_column("quarantined_at", at.cast(pa.timestamp("us", tz="UTC")))
        prints = [fingerprint(quarantined_bytes(one)) for one in rows.column("raw").to_pylist()]
        rows = rows.append_column("fingerprint", pa.array(prints))
    if "way" in columns.names and "way" not in rows.column_names:
        rows = rows.append_column("way", pa.array([EVENT] * rows.num_rows))
    if "way" in columns.names:
        place = rows.schema.get_field_index("way")
        rows = rows.set_column(place, "way", rows.column("way").fill_null(EVENT))
    names = set(rows.column_names)
    arrays = [
        rows.column(one.name) if one.name in names else pa.nulls(rows.num_rows, one.type)
        for one in columns
    ]
    return pa.Table.from_arrays(
        [compute.cast(array, one.type) for array, one in zip(arrays, columns, strict=True)],
        schema=columns,
    )
