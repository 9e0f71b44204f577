"""The interface to pyarrow, which has no type stubs: untyped on purpose."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

pa: Any = importlib.import_module("pyarrow")
compute: Any = importlib.import_module("pyarrow.compute")
parquet: Any = importlib.import_module("pyarrow.parquet")
_spark_types: Any = importlib.import_module("pyspark.sql.pandas.types")
# PySpark 4.0 always takes UTC.
_HAS_TIMEZONE = "timezone" in inspect.signature(_spark_types.to_arrow_schema).parameters
_UTC = {"timezone": "UTC"} if _HAS_TIMEZONE else {}

Array: TypeAlias = Any
DataType: TypeAlias = Any
RecordBatch: TypeAlias = Any
Schema: TypeAlias = Any
Table: TypeAlias = Any


def struct_type(schema: Schema) -> StructType:
    """The columns of an Arrow schema as Spark has them."""
    return _spark_types.from_arrow_schema(schema)


def arrow_schema(columns: StructType) -> Schema:
    """Spark columns as an Arrow schema, in the form Spark expects in record batches."""
    return _spark_types.to_arrow_schema(columns, **_UTC)


def ipc_bytes(tables: Sequence[Table]) -> bytes:
    """Tables as bytes, for the answer of a task."""
    return msgspec.msgpack.encode([_ipc_one(table) for table in tables])


def _ipc_one(table: Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def ipc_table(answer: bytes) -> list[Table]:
    """The tables that ``ipc_bytes`` was given."""
    return [
        pa.ipc.open_stream(one).read_all()
        for one in msgspec.msgpack.decode(answer, type=list[bytes])
    ]


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]],
    schema: str | StructType,
) -> DataFrame:
    """``DataFrame.mapInArrow``, whose types are those of pyarrow."""
    untyped: Any = frame
    return untyped.mapInArrow(function, schema)
