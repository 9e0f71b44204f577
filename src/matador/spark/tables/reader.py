"""Reads the tables of a lake, for everything that works with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from matador.model.event import EventType, event_type_of
from matador.model.schema import Schema
from matador.spark.runtime.payload_columns import with_payload
from matador.spark.runtime.session import spark_session
from matador.spark.tables.decode import EVENT
from matador.spark.tables.delta import DataFile, DeltaTable
from matador.spark.tables.layout import Layout, spark_schema


class LakeTables:
    """The tables that ingest writes, as DataFrames. ``Lake`` adds what can be done with them."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Schema | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        self.layout = Layout(path)
        self.schema = schema
        self._spark = spark

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.layout.storage.root!r})"

    @property
    def path(self) -> Path:
        """The folder of the lake."""
        return self.layout.root

    @property
    def spark(self) -> SparkSession:
        """The session the lake was given, or one that is started when it is first needed."""
        return self.start()

    def start(
        self, master: str | None = None, settings: Mapping[str, str] | None = None
    ) -> SparkSession:
        """Start Spark with these settings, unless the lake has a session; see ``spark_session``."""
        if self._spark is None:
            self._spark = spark_session(master, config=settings)
        return self._spark

    def events(self, event: type[Any] | str | EventType | None = None) -> DataFrame:
        """Every message that was sent, one row each; of one event, given by class or key.

        ``way`` tells events and jobs apart; the ``event_key`` of a job is its name, and its
        ``subscriber`` is its queue.

        With an event, the columns ``data`` and ``before`` hold the payload as a typed struct; a
        field that is missing has the default of its class, as subscribers see it. A value that the
        column cannot hold (an integer beyond 64 bits, or a row of an older, incompatible type) is
        null; the column ``unfit`` lists the names of such fields.
        """
        rows = self.table("events")
        if event is None:
            return rows
        found = self._event_type(event)
        if found is None:
            return rows.where(rows.event_key.isin([event]))
        chosen = rows.where((rows.way == EVENT) & rows.event_key.isin(list(found.keys)))
        return with_payload(chosen, found, unfit=True)

    def deliveries(self) -> DataFrame:
        """Every attempt to handle a message and its outcome, one row each."""
        return self.table("deliveries")

    def quarantine(self) -> DataFrame:
        """What could not be decoded, is unknown or does not fit its type, and why."""
        return self.table("quarantine")

    def table(self, name: str) -> DataFrame:
        """``events``, ``deliveries`` or ``quarantine``, as they are now."""
        self.layout.check()
        return read_table(self.spark, self.layout.table(name))

    def _event_type(self, event: type[Any] | str | EventType) -> EventType | None:
        if isinstance(event, EventType):
            return event
        if not isinstance(event, str):
            return event_type_of(event)
        return None if self.schema is None else self.schema.find(event)


def read_table(spark: SparkSession, table: DeltaTable) -> DataFrame:
    """The current version of a table. What others do to it later does not change the rows.

    Spark is given the list of files: it needs no connector for Delta.
    """
    try:
        files = table.open(create=False).files()
    except FileNotFoundError:
        files = list[DataFile]()
    return read_files(spark, table, files)


def read_files(spark: SparkSession, table: DeltaTable, files: Sequence[DataFile]) -> DataFrame:
    """The rows of some files of a table."""
    schema = spark_schema(table.columns, partitioned=table.is_partitioned)
    if not files:
        return cast("Any", spark).createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", table.storage.spark_url(""))
    return reader.parquet(*table.spark_urls(files))
