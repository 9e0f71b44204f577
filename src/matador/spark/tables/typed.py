"""Typed tables, one for each event: any engine sees the fields of a payload as columns.

A typed table is made of ``events``: its files that are new are converted and added, and the version
that was converted is in the same commit. If the payload class has changed, the whole table is
written again, in one commit. A value that its column cannot hold is null, and ``unfit`` names it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, StringType, StructType

from matador.errors import ConfigurationError, InvalidEventError
from matador.model.event import EventType
from matador.model.schema import Schema as EventSchema
from matador.spark.runtime.arrow import Schema, Table, arrow_schema, compute, pa
from matador.spark.runtime.executors import run_tasks
from matador.spark.runtime.payload_columns import Misfits, TypedColumn
from matador.spark.runtime.payload_types import struct_of
from matador.spark.tables.append import EXPIRED
from matador.spark.tables.delta import Changes, CommitConflictError, DataFile, DeltaTable
from matador.spark.tables.keys import EVENT
from matador.spark.tables.layout import EVENTS, Layout
from matador.spark.tables.parquet_writer import FileWriter, stored_rows
from matador.storage import Storage

log = logging.getLogger("matador.lake")

CONVERTED = "matador.events"
"""The application whose transaction says which version of ``events`` is converted."""

_NO_NAME = re.compile(r"\W")
_LEFT_OUT = ("data_json", "before_json", "way", "options")
_FIRST = [one for one in EVENTS if one.name not in _LEFT_OUT]


def table_name(event_key: str) -> str:
    """The name of the table of an event: that of ``order.placed`` is ``order_placed``."""
    return _NO_NAME.sub("_", event_key)


class TypedEvent(msgspec.Struct, frozen=True):
    """An event as a task needs it: its keys, and the type of its payload as JSON."""

    key: str
    keys: list[str]
    struct: str
    filled: str

    @property
    def columns(self) -> Schema:
        """The columns of its table."""
        struct = StructType.fromJson(msgspec.json.decode(self.struct))
        made = StructType().add("data", struct).add("before", struct)
        made = made.add("unfit", ArrayType(StringType()))
        return pa.schema([*_FIRST, *arrow_schema(made)])

    def table(self, lake: Storage) -> DeltaTable:
        """Its table."""
        return DeltaTable(lake, f"typed/{table_name(self.key)}", self.columns)


def typed_events(schema: EventSchema) -> list[TypedEvent]:
    """The events of a schema that have columns."""
    found: dict[str, TypedEvent] = {}
    for event in schema.events:
        try:
            made = _typed_event(event)
        except InvalidEventError as error:
            log.warning("%s has no typed table: %s", event.key, error)
            continue
        other = found.setdefault(table_name(event.key), made)
        if other is not made:
            raise ConfigurationError(
                f"the events {other.key!r} and {event.key!r} have the same table name, "
                f"{table_name(event.key)!r}; rename one of them"
            )
    return [*found.values()]


def _typed_event(event: EventType) -> TypedEvent:
    filled = struct_of(event, defaults=True)
    return TypedEvent(event.key, [*event.keys], struct_of(event).json(), filled.json())


def publish(spark: SparkSession, layout: Layout, schema: EventSchema | None) -> dict[str, int]:
    if schema is None:
        raise ConfigurationError("publish needs a schema: Lake(path, schema=…)")
    events = layout.table("events").open()
    return {
        table_name(one.key): _Publisher(spark, layout.storage, events, one).run()
        for one in typed_events(schema)
    }


class _Publisher:
    def __init__(
        self, spark: SparkSession, lake: Storage, events: DeltaTable, event: TypedEvent
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._events = events
        self._event = event
        self._table = event.table(lake).open()

    def run(self) -> int:
        """Add what is new; returns the number of rows added."""
        while True:
            versions = {CONVERTED: self._events.version}
            since = self._table.transaction(CONVERTED) or 0
            changes = None
            if self._table.has_columns():
                if since >= self._events.version:
                    return 0
                changes = self._events.changes(since)
            try:
                made = None if changes is None else self._converted(self._to_convert(changes))
                if changes is not None and made is not None:
                    again = [one for one in self._table.files() if one.date in changes.days]
                    self._table.commit(made, again, versions)
                else:  # another type, or files that were deleted: from the beginning
                    made = self._converted(self._events.files()) or []
                    self._table.replace(made, versions)
                return sum(one.rows for one in made)
            except CommitConflictError:
                continue

    def _to_convert(self, changes: Changes) -> list[DataFile]:
        """The files with new rows, and all of the days that another program has changed."""
        days = changes.days
        files = [one for one in changes.added if one.date not in days]
        if days:
            files += [one for one in self._events.files() if one.date in days]
        return files

    def _converted(self, files: Sequence[DataFile]) -> list[DataFile] | None:
        """The files, converted by tasks; None if one of them was deleted."""
        limit = self._events.transaction(EXPIRED)
        work = partial(_convert, self._lake, self._event, files, limit)
        answers = run_tasks(self._spark, work, len(files))
        made = [msgspec.msgpack.decode(answer, type=DataFile | None) for answer in answers]
        present = [one for one in made if one is not None]
        return [one for one in present if one.rows] if len(present) == len(made) else None


# -- tasks --------------------------------------------------------------------------------------


def _convert(
    lake: Storage, event: TypedEvent, files: Sequence[DataFile], limit: int | None, which: int
) -> bytes:
    """Convert the rows of one event of a file of ``events``."""
    file = files[which]
    writer = FileWriter(lake.child(f"typed/{table_name(event.key)}"), event.columns, file.date)
    try:
        opened = lake.child("events").reader(file.path)
    except FileNotFoundError:
        return msgspec.msgpack.encode(None)
    wanted = (compute.field("way") == EVENT) & compute.field("event_key").isin(event.keys)
    if limit is not None:
        time = pa.scalar(limit, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        wanted &= compute.field("recorded_at") >= time
    convert = _Converter(event)
    with opened as source:
        for stored in stored_rows(source, EVENTS):
            rows = stored.filter(wanted)
            if rows.num_rows:
                writer.write(convert.rows(rows))
    return msgspec.msgpack.encode(writer.close())


class _Converter:
    def __init__(self, event: TypedEvent) -> None:
        filled: Mapping[str, Any] = msgspec.json.decode(event.filled)
        struct = StructType.fromJson(dict(filled))
        self._columns = event.columns
        self._typed = TypedColumn(struct)
        self._misfits = Misfits(struct)

    def rows(self, rows: Table) -> Table:
        """Rows of ``events`` with the payload as columns."""
        data, before = rows.column("data_json").to_pylist(), rows.column("before_json").to_pylist()
        made = {
            "data": self._typed.make(data, self._columns.field("data").type),
            "before": self._typed.make(before, self._columns.field("before").type),
            "unfit": self._misfits.column(data, before),
        }
        return pa.table(
            [
                made[one.name] if one.name in made else rows.column(one.name)
                for one in self._columns
            ],
            schema=self._columns,
        )
