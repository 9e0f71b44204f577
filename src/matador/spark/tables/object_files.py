"""Spark reads and writes files of an object store without a connector: tasks do it with pyarrow.

Spark can do so itself where the connector of the store is among its classes; see ``reader``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from matador.spark.runtime.arrow import (
    RecordBatch,
    Schema,
    arrow_schema,
    map_in_arrow,
    pa,
    parquet,
)
from matador.spark.tables.delta import PARTITION, DataFile
from matador.storage import Storage
from matador.storage.files import groups

_BYTES_A_TASK = 32 * 1024 * 1024
_ROWS = 8 * 1024  # rows that travel to Spark at a time


def read_rows(
    spark: SparkSession, storage: Storage, files: Sequence[DataFile], schema: StructType
) -> DataFrame:
    """The columns ``schema`` of some files of a table. They are read when the rows are needed."""
    tasks = [*groups(files, lambda one: one.size, _BYTES_A_TASK)]
    work = partial(_rows_of, storage, tasks, arrow_schema(schema))
    return map_in_arrow(spark.range(0, len(tasks), 1, len(tasks)), work, schema)


def _rows_of(
    storage: Storage,
    tasks: Sequence[Sequence[DataFile]],
    wanted: Schema,
    numbers: Iterator[RecordBatch],
) -> Iterator[RecordBatch]:
    for batch in numbers:
        numbered: list[int] = batch.column(0).to_pylist()
        for number in numbered:
            for file in tasks[number]:
                yield from _batches(storage, file, wanted)


def _batches(storage: Storage, file: DataFile, wanted: Schema) -> Iterator[RecordBatch]:
    """The rows of a file with the columns wanted; what it does not have is null."""
    with storage.reader(file.path) as source:
        opened = parquet.ParquetFile(source, pre_buffer=True)
        names = set(opened.schema_arrow.names)
        columns = [one.name for one in wanted if one.name in names]
        for batch in opened.iter_batches(_ROWS, columns=columns):
            yield pa.RecordBatch.from_arrays(
                [_column(batch, file, one, names) for one in wanted], schema=wanted
            )


def _column(batch: RecordBatch, file: DataFile, field: Any, names: set[str]) -> Any:
    if field.name == PARTITION and file.date is not None:
        return pa.repeat(pa.scalar(date.fromisoformat(file.date), pa.date32()), batch.num_rows)
    if field.name not in names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


def write_rows(rows: DataFrame, storage: Storage, most: int) -> tuple[str, ...]:
    """Write rows into Parquet files of at most ``most`` rows; returns the names of the files.

    A task that runs twice writes under other names: only those of the attempt that counts are
    returned.
    """
    work = partial(_write, storage, arrow_schema(rows.schema), most)
    return tuple(sorted(row.name for row in map_in_arrow(rows, work, "name string").collect()))


def _write(
    storage: Storage, schema: Schema, most: int, batches: Iterator[RecordBatch]
) -> Iterator[RecordBatch]:
    waiting: list[Any] = []
    count = 0
    for batch in batches:
        left = pa.Table.from_batches([batch]).cast(schema)
        while left.num_rows:
            waiting.append(left.slice(0, most - count))
            count += waiting[-1].num_rows
            left = left.slice(waiting[-1].num_rows)
            if count == most:
                yield _written(storage, waiting)
                waiting, count = [], 0
    if waiting:
        yield _written(storage, waiting)


def _written(storage: Storage, tables: Sequence[Any]) -> RecordBatch:
    name = f"part-{uuid.uuid4().hex}.parquet"
    file = storage.create(name)
    parquet.write_table(pa.concat_tables(tables), file, compression="zstd")
    storage.finish(name, file)
    return pa.RecordBatch.from_arrays([pa.array([name])], names=["name"])
