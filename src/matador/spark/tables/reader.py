"""Reads the tables of a lake, for everything that works with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from matador.model.event import EventType, event_type_of
from matador.model.schema import Schema
from matador.observe.paths import local_path
from matador.spark.runtime.payload_columns import with_payload
from matador.spark.runtime.session import spark_session
from matador.spark.tables.decode import EVENT
from matador.spark.tables.layout import Layout, spark_schema
from matador.spark.tables.maintenance import finish_interrupted


class LakeTables:
    """The tables that ingest writes, as DataFrames. ``Lake`` adds what can be done with them."""

    def __init__(
        self,
        path: str | Path,
        *,
        schema: Schema | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        self.layout = Layout(local_path(path, "Lake").absolute())
        self.schema = schema
        self._spark = spark

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.layout.root)!r})"

    @property
    def path(self) -> Path:
        """The folder of the lake."""
        return self.layout.root

    @property
    def spark(self) -> SparkSession:
        """The session the lake was given, or one that is started when it is first needed."""
        if self._spark is None:
            self._spark = spark_session()
        return self._spark

    def events(self, event: type[Any] | str | EventType | None = None) -> DataFrame:
        """Every message that was sent, one row each; of one event, given by class or key.

        ``way`` tells events and jobs apart; the ``event_key`` of a job is its name, and its
        ``subscriber`` is its queue.

        With an event, the columns ``data`` and ``before`` hold the payload as a typed struct; a
        field that is missing has the default of its class, as subscribers see it.
        """
        rows = self.table("events")
        if event is None:
            return rows
        found = self._event_type(event)
        if found is None:
            return rows.where(rows.event_key.isin([event]))
        rows = rows.where((rows.way == EVENT) & rows.event_key.isin(list(found.keys)))
        return with_payload(rows, found)

    def deliveries(self) -> DataFrame:
        """Every attempt to handle a message and its outcome, one row each."""
        return self.table("deliveries")

    def quarantine(self) -> DataFrame:
        """What could not be decoded, is unknown or does not fit its type, and why."""
        return self.table("quarantine")

    def table(self, name: str) -> DataFrame:
        """``events``, ``deliveries`` or ``quarantine``."""
        self.layout.make()
        finish_interrupted(self.layout)
        rows = self.spark.read.schema(spark_schema(name)).parquet(str(self.layout.table(name)))
        return with_way(rows) if "way" in rows.columns else rows

    def _event_type(self, event: type[Any] | str | EventType) -> EventType | None:
        if isinstance(event, EventType):
            return event
        if not isinstance(event, str):
            return event_type_of(event)
        return None if self.schema is None else self.schema.find(event)


def with_way(rows: DataFrame) -> DataFrame:
    """Rows whose ``way`` is never null: what an older version has written is of events."""
    return rows.withColumn("way", sql.coalesce(rows.way, sql.lit(EVENT)))
