"""Reads the tables of a lake, for everything that works with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from matador.model.event import EventType, event_type_of
from matador.model.schema import Schema
from matador.spark.runtime.connect import checked_session
from matador.spark.runtime.connectors import connector_options
from matador.spark.runtime.payload_columns import with_payload
from matador.spark.runtime.session import spark_session
from matador.spark.tables.decode import EVENT
from matador.spark.tables.delta import DataFile, DeltaTable
from matador.spark.tables.layout import TABLES, Layout, spark_schema
from matador.spark.tables.object_files import read_rows
from matador.storage import ObjectStorage

_FEW_BYTES = 16 * 1024 * 1024


class LakeTables:
    """The tables that ingest writes, as DataFrames. ``Lake`` adds what can be done with them."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Schema | None = None,
        spark: SparkSession | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.layout = Layout(path, storage_options)
        self.schema = schema
        self._spark = None if spark is None else checked_session(spark)
        self._make_session: Callable[[], SparkSession] = spark_session

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.layout.storage.root!r})"

    @property
    def path(self) -> Path:
        """The local folder of the lake.

        Raises:
            ConfigurationError: the lake is in an object store; see ``location``.
        """
        return self.layout.root

    @property
    def location(self) -> str:
        """Where the lake is: a path, or a URL such as ``s3://bucket/lake``."""
        return self.layout.storage.root

    def exists(self) -> bool:
        """Whether it has tables."""
        return self.layout.table("events").exists()

    def is_small(self) -> bool:
        """Whether a query takes less time than Spark's start: the tables have few bytes."""
        tables = [self.layout.table(name) for name in TABLES]
        found = [one.open(create=False).files() for one in tables if one.exists()]
        return sum(file.size for files in found for file in files) <= _FEW_BYTES

    @property
    def name(self) -> str:
        """The last part of its location."""
        return self.location.rstrip("/").rpartition("/")[2]

    @property
    def spark(self) -> SparkSession:
        """The session the lake was given, or one that is started when it is first needed."""
        if self._spark is None:
            self._spark = self._make_session()
        return self._spark

    def start_later(self, make: Callable[[], SparkSession]) -> None:
        """Have ``make`` called for a session once one is needed, if the lake has none.

        A small lake needs none for its report, its aggregates, a reconciliation or a vacuum.
        """
        self._make_session = make

    def start(
        self,
        master: str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        remote: str | None = None,
    ) -> SparkSession:
        """Start Spark with these settings, unless the lake has a session; see ``spark_session``."""
        if self._spark is None:
            self._make_session = partial(spark_session, master, remote=remote, config=settings)
        return self.spark

    def events(
        self,
        event: type[Any] | str | EventType | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> DataFrame:
        """Every message that was sent, one row each; of one event, given by class or key.

        ``since`` and ``until`` restrict ``created_at``. Files that can have no such row, by their
        statistics, are not opened.

        ``way`` tells events and jobs apart; the ``event_key`` of a job is its name, and its
        ``subscriber`` is its queue.

        With an event, the columns ``data`` and ``before`` hold the payload as a typed struct; a
        field that is missing has the default of its class, as subscribers see it. A value that the
        column cannot hold (an integer beyond 64 bits, or a row of an older, incompatible type) is
        null; the column ``unfit`` lists the names of such fields.
        """
        found = None if event is None else self._event_type(event)
        keys = [event] if found is None else list(found.keys)
        wanted = FileFilter(None if event is None else tuple(map(str, keys)), since, until)
        rows = read_table(self.spark, self.layout.table("events"), wanted)
        if since is not None:
            rows = rows.where(rows.created_at >= lit(since))
        if until is not None:
            rows = rows.where(rows.created_at < lit(until))
        if event is None:
            return rows
        if found is None:
            return rows.where(rows.event_key.isin([event]))
        chosen = rows.where((rows.way == EVENT) & rows.event_key.isin(list(found.keys)))
        return with_payload(chosen, found, unfit=True)

    def deliveries(self) -> DataFrame:
        """Every attempt to handle a message and its outcome, one row each."""
        return self.table("deliveries")

    def quarantine(self) -> DataFrame:
        """The records that could not be decoded, are unknown or do not fit their type, with the
        reasons."""
        return self.table("quarantine")

    def table(self, name: str) -> DataFrame:
        """``events``, ``deliveries`` or ``quarantine``, as they are now."""
        return read_table(self.spark, self.layout.table(name))

    def _event_type(self, event: type[Any] | str | EventType) -> EventType | None:
        if isinstance(event, EventType):
            return event
        if not isinstance(event, str):
            return event_type_of(event)
        return None if self.schema is None else self.schema.find(event)


@dataclass(frozen=True, slots=True)
class FileFilter:
    """Which files of ``events`` may have rows that are wanted, by their statistics."""

    keys: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None

    def keeps(self, file: DataFile) -> bool:
        """Whether a file may have such rows. One without statistics may."""
        least, most = file.statistics["minValues"], file.statistics["maxValues"]
        if self.keys is not None and "event_key" in least and "event_key" in most:
            low, high = least["event_key"], most["event_key"]
            if not any(low <= key <= high for key in self.keys):
                return False
        begins, ends = least.get("created_at"), most.get("created_at")
        is_over = self.since and ends and datetime.fromisoformat(ends) < self.since
        is_later = self.until and begins and datetime.fromisoformat(begins) >= self.until
        return not (is_over or is_later)


def read_table(
    spark: SparkSession, table: DeltaTable, wanted: FileFilter | None = None
) -> DataFrame:
    """The current version of a table. What others do to it later does not change the rows.

    Spark is given the list of files: it needs no connector for Delta.
    """
    try:
        files = table.open(create=False).files()
        files = [one for one in files if wanted is None or wanted.keeps(one)]
    except FileNotFoundError:
        files = list[DataFile]()
    return read_files(spark, table, files)


def read_files(spark: SparkSession, table: DeltaTable, files: Sequence[DataFile]) -> DataFrame:
    """The rows of some files of a table."""
    schema = spark_schema(table.columns, partitioned=table.is_partitioned)
    if not files:
        return cast("Any", spark).createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", table.storage.spark_url(""))
    if isinstance(table.storage, ObjectStorage):
        options = connector_options(spark, table.storage)
        if options is None:
            return read_rows(spark, table.storage, files, schema)
        reader = reader.options(**options)
    return reader.parquet(*table.spark_urls(files))
