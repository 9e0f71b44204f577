"""All differences between versions of PySpark, detected by feature, in this one module.

| | since | without it |
|---|---|---|
| functions of Arrow arrays | 4.1 | the same function, value by value |
| stream writers that get Arrow batches | 4.1 | rows are turned into batches here |
| limits for a micro-batch of a Python source | 4.2 | a micro-batch has all that is there |
| a Spark in this process | | ``pyspark-client`` only connects to servers |
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, datasource, types
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSourceStreamReader, WriterCommitMessage

from matador.spark.runtime.arrow import Array, RecordBatch, arrow_schema, pa

_ROWS_A_BATCH = 10_000

# -- Java -----------------------------------------------------------------------------------------


def spark_context() -> Any:
    """The class ``SparkContext``."""
    return importlib.import_module("pyspark.core.context").SparkContext


def java_gateway() -> Any:
    """The module that starts Java."""
    return importlib.import_module("pyspark.java_gateway")


def _py4j_error() -> type[Exception]:
    try:
        return importlib.import_module("py4j.protocol").Py4JError
    except ImportError:

        class NoPy4JError(Exception):
            """Never raised: there is no Java in this process."""

        return NoPy4JError


Py4JError: type[Exception] = _py4j_error()
"""The exception of the bridge to Java."""

# -- queries --------------------------------------------------------------------------------------


def analyze(frame: DataFrame) -> DataFrame:
    """Make Spark raise the errors of a query now, because Spark Connect would raise them later.

    The ``schema`` of a filter may be that of the rows before, which is known already.
    """
    frame.isStreaming  # noqa: B018 - the server analyses the query to tell
    return frame


# -- functions of columns -------------------------------------------------------------------------


def column_function(
    make: Callable[[], Callable[..., Any]], returns: types.DataType, *, columns: int = 1
) -> Callable[..., Column]:
    """A function of the values of one or two columns; ``make`` is called in the executors.

    Its values are as pyarrow takes them: a map is a list of pairs.
    """

    def of_arrays(*arrays: Array) -> Array:
        function = make()
        kind = arrow_schema(types.StructType().add("data", returns)).field(0).type
        rows = zip(*(one.to_pylist() for one in arrays), strict=True)
        return pa.array([function(*row) for row in rows], kind)

    def of_one(first: Array) -> Array:
        return of_arrays(first)

    def of_two(first: Array, second: Array) -> Array:
        return of_arrays(first, second)

    made: list[Callable[..., Any]] = []

    def of_values(*values: Any) -> Any:
        if not made:
            made.append(make())
        return _plain(returns, made[0](*values))

    untyped: Any = sql
    if not hasattr(untyped, "arrow_udf"):
        return untyped.udf(of_values, returns)
    chosen = of_one if columns == 1 else of_two
    chosen.__annotations__ = dict.fromkeys(chosen.__annotations__, pa.Array)  # Spark goes by these
    return untyped.arrow_udf(chosen, returns)


def _plain(kind: types.DataType, value: Any) -> Any:
    """A value for pyarrow as Spark's own conversion takes it."""
    if value is None:
        return None
    if isinstance(kind, types.StructType):
        return {one.name: _plain(one.dataType, value[one.name]) for one in kind}
    if isinstance(kind, types.ArrayType):
        return [_plain(kind.elementType, one) for one in value]
    if isinstance(kind, types.MapType):
        return {key: _plain(kind.valueType, one) for key, one in value}
    return value


# -- streams of the data source -------------------------------------------------------------------

HAS_READ_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark limits a micro-batch of a Python source."""

if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """A replacement for a class that this PySpark lacks, like those below."""

    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMaxFiles(ReadLimit):
        max_files: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    class SupportsTriggerAvailableNow:  # Spark itself stops at the offset it has seen first
        pass


__all__ = [
    "HAS_READ_LIMITS",
    "LimitedStreamReader",
    "Py4JError",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "ReadMaxRows",
    "StreamBatchWriter",
    "column_function",
    "java_gateway",
    "spark_context",
]


class LimitedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader that reads up to a limit, where Spark gives one."""

    @abstractmethod
    def next_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset after the next messages."""

    @abstractmethod
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The offset after all available messages."""

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """See ``next_offset``. An older Spark passes neither the start nor a limit."""
        if start is None or limit is None:
            return self.reportLatestOffset()
        return self.next_offset(start, limit)


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):

    class StreamBatchWriter(datasource.DataSourceStreamArrowWriter):
        """A stream writer that gets record batches."""

        columns: types.StructType

        def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
            return self.write_batches(iterator)

        @abstractmethod
        def write_batches(self, batches: Iterator[RecordBatch]) -> WriterCommitMessage:
            """Write the batches of a task."""

else:

    class StreamBatchWriter(datasource.DataSourceStreamWriter):
        """A stream writer that makes record batches of the rows it gets."""

        columns: types.StructType

        def write(self, iterator: Iterator[types.Row]) -> WriterCommitMessage:
            return self.write_batches(_batches(iterator, self.columns))

        @abstractmethod
        def write_batches(self, batches: Iterator[RecordBatch]) -> WriterCommitMessage:
            """Write the batches of a task."""


def _batches(rows: Iterator[types.Row], columns: types.StructType) -> Iterator[RecordBatch]:
    schema = arrow_schema(columns)
    while some := [row.asDict(recursive=True) for row in islice(rows, _ROWS_A_BATCH)]:
        yield pa.RecordBatch.from_pylist(some, schema)
