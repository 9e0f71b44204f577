"""Stored messages and journal records as record batches. Runs in the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from pyspark.sql.types import StructField, StructType

from matador.codec.as_json import as_json
from matador.codec.base import Codec, RawEnvelope
from matador.codec.json import JsonCodec
from matador.errors import ConfigurationError, DecodeError, InvalidEventError
from matador.model.event import EventType
from matador.model.message import StoredMessage
from matador.model.options import suggestion
from matador.observe.journal.records import LAST_MOMENT, MalformedRecord, SentRecord
from matador.spark.runtime.arrow import RecordBatch, arrow_schema, pa, struct_type
from matador.spark.runtime.arrow import Schema as ArrowSchema
from matador.spark.runtime.payload_columns import TypedColumn
from matador.spark.runtime.payload_types import struct_of
from matador.spark.tables.decode import EVENT, OUT_OF_RANGE, parse_lines, raw_bytes, texts
from matador.transports.clock import SystemClock

_INSTANT = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()

COLUMNS: Final[dict[str, Any]] = {
    "position": _TEXT,
    "id": _TEXT,
    "queue": _TEXT,
    "state": _TEXT,
    "stored_at": _INSTANT,
    "due_at": _INSTANT,
    "event_key": _TEXT,
    "subscriber": _TEXT,
    "attempts": pa.int32(),
    "created_at": _INSTANT,
    "scheduled_for": _INSTANT,
    "correlation_id": _TEXT,
    "importance": _TEXT,
    "metadata": pa.map_(_TEXT, _TEXT),
    "first_error": _TEXT,
    "last_error": _TEXT,
    "reason": _TEXT,
    "delivery_count": pa.int32(),
    "priority": pa.int32(),
    "ordering_key": _TEXT,
    "data_json": _TEXT,
    "before_json": _TEXT,
    "raw": pa.binary(),
    "decode_error": _TEXT,
    "way": _TEXT,
}
"""Every column of a message except ``data``. All may be null: undecodable bytes have few."""

DATA: Final = "data"
JSON: Final = "data_json"

Getters: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""How each column is read from a row. Columns that a query does not ask for are not made."""

_ANY = EventType("any", "Any payload.", object)


def full_schema(event: EventType | None) -> StructType:
    """All columns; with an event also its typed ``data``."""
    columns = struct_type(pa.schema(list(COLUMNS.items())))
    return columns if event is None else columns.add(StructField(DATA, struct_of(event)))


def check_chosen(chosen: StructType, full: StructType) -> None:
    """Check the names and types of the columns that a query asks for."""
    known = {field.name: field.dataType for field in full}
    for field in chosen:
        if field.name not in known:
            hint = suggestion(field.name, known)
            if field.name == DATA:
                hint = "; it needs an event: option('event', 'order.placed')"
            raise ConfigurationError(f"matador: unknown column {field.name!r}{hint}")
        if field.dataType != known[field.name]:
            raise ConfigurationError(
                f"matador: column {field.name!r} is {known[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


class Shape(NamedTuple):
    """The columns of the batches to make, and their event, if the read names one."""

    schema: ArrowSchema
    keys: frozenset[str] | None = None
    typed: TypedColumn | None = None

    def batch(self, rows: Sequence[Any], getters: Getters) -> RecordBatch:
        """Rows as a record batch; columns without a getter are null."""
        arrays: list[Any] = []
        for field in self.schema:
            if field.name == DATA and self.typed is not None and JSON in getters:
                arrays.append(self.typed.make(list(map(getters[JSON], rows)), field.type))
            elif field.name in getters:
                arrays.append(pa.array(list(map(getters[field.name], rows)), field.type))
            else:
                arrays.append(pa.nulls(len(rows), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def shape_of(event: EventType | None, chosen: StructType) -> Shape:
    """The shape of the batches of a read."""
    if event is None:
        return Shape(arrow_schema(chosen))
    typed = TypedColumn(struct_of(event, defaults=True))
    return Shape(arrow_schema(chosen), frozenset(event.keys), typed)


def _attributes(names: Iterable[str], of: str = "") -> dict[str, Callable[[Any], Any]]:
    return {name: attrgetter(of + name) for name in names}


class _MessageRow(NamedTuple):
    stored: StoredMessage
    envelope: RawEnvelope


class _UndecodedRow(NamedTuple):
    stored: StoredMessage
    problem: str


class _RecordRow(NamedTuple):
    record: SentRecord
    line: bytes


_OF_STORED = (
    *("position", "id", "queue", "state", "stored_at", "due_at", "reason", "delivery_count"),
    *("priority", "ordering_key"),
)
_OF_DOCKET = (
    *("event_key", "attempts", "created_at", "scheduled_for", "correlation_id", "importance"),
    *("first_error", "last_error"),
)
_DECODED: Getters = {
    **_attributes(_OF_STORED, "stored."),
    "raw": attrgetter("stored.body"),
    "id": attrgetter("envelope.id"),
    **_attributes(_OF_DOCKET, "envelope.docket."),
    "subscriber": attrgetter("envelope.docket.target_subscriber"),
    "metadata": lambda one: texts(one.envelope.docket.metadata),
    "way": lambda _: EVENT,
}
_UNDECODED: Getters = {
    **_attributes(_OF_STORED, "stored."),
    "raw": attrgetter("stored.body"),
    "decode_error": attrgetter("problem"),
}


class MessageRows:
    """Makes batches of stored messages."""

    def __init__(self, shape: Shape, codec: Codec) -> None:
        self._shape = shape
        self._codec = codec
        self._json = isinstance(codec, JsonCodec)
        self._clock = SystemClock()
        self._getters: Getters = {
            **_DECODED,
            JSON: lambda one: self._as_json(one.envelope.data),
            "before_json": lambda one: self._as_json(one.envelope.before),
        }

    def batches(self, messages: Iterable[StoredMessage]) -> Iterator[RecordBatch]:
        """The messages as batches; none if no message is wanted."""
        keys = self._shape.keys
        decoded: list[_MessageRow] = []
        undecoded: list[_UndecodedRow] = []
        decode, clock = self._codec.decode, self._clock
        for message in messages:
            try:
                envelope = decode(message.body, message.headers, clock)
            except DecodeError as error:
                undecoded.append(_UndecodedRow(message, str(error)))
                continue
            if keys is None or envelope.docket.event_key in keys:
                decoded.append(_MessageRow(message, envelope))
        if decoded:
            yield self._shape.batch(decoded, self._getters)
        if undecoded and keys is None:
            yield self._shape.batch(undecoded, _UNDECODED)

    def _as_json(self, raw: msgspec.Raw | None) -> bytes | None:
        if raw is None:
            return None
        if self._json:
            return bytes(raw)
        try:
            return as_json(self._codec.decode_payload(_ANY, raw))
        except InvalidEventError:
            return None


_OF_RECORD = (
    *("id", "queue", "event_key", "subscriber", "created_at", "scheduled_for"),
    *("correlation_id", "importance", "way"),
)
_SENT: Getters = {
    **_attributes(_OF_RECORD, "record."),
    "state": lambda _: "sent",
    "attempts": lambda _: 1,
    "stored_at": attrgetter("record.recorded_at"),
    "metadata": lambda one: texts(one.record.metadata or {}),
    JSON: lambda one: bytes(one.record.data),
    "before_json": lambda one: None if one.record.earlier is None else bytes(one.record.earlier),
    "raw": attrgetter("line"),
}
_UNREAD: Getters = {
    "state": lambda _: "malformed",
    **{name: itemgetter(at) for at, name in enumerate(("raw", "decode_error", "queue"))},
}


class RecordRows:
    """Makes batches of lines of the journal: sent messages, and messages that could not be read."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def batches(self, block: bytes, segment: str) -> Iterator[RecordBatch]:
        """Whole lines as batches; none if nothing in them is wanted."""
        keys = self._shape.keys
        sent: list[_RecordRow] = []
        unread: list[tuple[bytes, str, str | None]] = []
        for line, record in parse_lines(block):
            if isinstance(record, str):
                unread.append((line, record, None))
            elif type(record) is SentRecord:
                moments = (record.created_at, record.recorded_at, record.scheduled_for or 0)
                if not (min(moments) >= 0 and max(moments) <= LAST_MOMENT):
                    unread.append((line, OUT_OF_RANGE, record.queue))
                elif keys is None or (record.way == EVENT and record.event_key in keys):
                    sent.append(_RecordRow(record, line))
            elif type(record) is MalformedRecord:
                unread.append((raw_bytes(record), record.reason, record.queue))
        position: Getters = {"position": lambda _: segment}
        if sent:
            yield self._shape.batch(sent, {**position, **_SENT})
        if unread and keys is None:
            yield self._shape.batch(unread, {**position, **_UNREAD})
