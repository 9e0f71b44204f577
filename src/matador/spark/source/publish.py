"""Turns rows of a DataFrame into events, and publishes them without an event loop."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from matador.codec.json import JsonCodec
from matador.errors import ConfigurationError, InvalidEventError
from matador.events.app import Matador, SyncMatador
from matador.events.fanout import derived_id
from matador.loading import load_application
from matador.model.event import EventType
from matador.model.message import Once
from matador.model.options import suggestion
from matador.model.schema import Schema
from matador.model.sending import SendOptions, SendResult
from matador.spark.runtime.arrow import DataType, RecordBatch, pa
from matador.spark.runtime.payload_types import struct_of
from matador.spark.source.rows import COLUMNS, DATA, JSON
from matador.transports.base import Deduplicating

T = TypeVar("T")


class Item(NamedTuple):
    """One event to publish."""

    event: EventType
    payload: Any
    options: SendOptions


class EventPublisher:
    """A started application that only sends. Used by one thread."""

    def __init__(self, running: SyncMatador) -> None:
        self._running = running
        self.app = running.wait(_itself)
        self.json = JsonCodec()

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine in the event loop of the application."""
        return self._running.wait(lambda _: call)

    def publish(self, items: Sequence[Item], once: Once) -> list[SendResult]:
        """Publish events, each once if the transport supports it. Failures are in the results."""
        return self.wait(self.app.publish(items, once=once, send_errors="report"))

    def seal(self, once: Once) -> None:
        """Close ``once`` for further events, if the transport supports it."""
        transport = self.app.transport
        if transport.capabilities.once and isinstance(transport, Deduplicating):
            self.wait(transport.seal(once))


@contextlib.contextmanager
def open_publisher(app: Matador | SyncMatador | str) -> Generator[EventPublisher]:
    """Start the producer of an application, given as an object or by its reference.

    An ``app.sync()`` is used as it is, and stays open.
    """
    if isinstance(app, SyncMatador):
        yield EventPublisher(app)
        return
    given = load_application(app).app if isinstance(app, str) else app
    running = given.producer().sync()
    try:
        yield EventPublisher(running)
    finally:
        running.shutdown()


async def _itself(app: Matador) -> Matador:
    return app


_SEND_OPTIONS = ("metadata", "correlation_id", "delay", "ordering_key", "priority")
OPTIONS = ("id", "event_key", "subscriber", *_SEND_OPTIONS)

_encode = msgspec.json.Encoder().encode


def check_columns(names: Sequence[str], schema: Schema, event: str | None) -> None:
    """Check that rows with these columns can be events."""
    whole = JSON in names or DATA in names
    if event is None:
        if "event_key" not in names:
            raise ConfigurationError(
                "matador: no event; set option('event', key), or add a column event_key"
            )
        if not whole:
            raise ConfigurationError(
                "matador: rows with an event_key need the payload in one column: "
                "data (a struct) or data_json"
            )
        return
    fields = struct_of(schema.event(event)).names
    meant = {*OPTIONS, *(COLUMNS if whole else ()), *((DATA, JSON) if whole else fields)}
    for name in names:
        if name not in meant:
            known = ", ".join(fields)
            raise ConfigurationError(
                f"matador: unknown column {name!r}: neither a field of {event!r} ({known}) nor an "
                f"option{suggestion(name, meant)}"
            )


class RowEvents:
    """Turns the rows of one task into events.

    A row with a ``subscriber`` goes to that one only, and keeps its ``id``. A row without an id
    gets one that stays the same when the task is retried: it is derived from the content, and how
    often that occurred before in the same partition.
    """

    def __init__(self, schema: Schema, event: str | None, write: str) -> None:
        self._schema = schema
        self._event = None if event is None else schema.event(event)
        self._fields = () if self._event is None else tuple(struct_of(self._event).names)
        self._write = write
        self._codec = JsonCodec()
        self._times: Counter[bytes] = Counter()

    def items(self, batch: RecordBatch) -> Iterator[Item]:
        """The events of a batch. Raises ``InvalidEventError`` if a row does not fit its event."""
        columns = {name: _values(batch.column(name)) for name in batch.schema.names}
        whole = columns.get(JSON) or columns.get(DATA)
        fields = [] if whole else [name for name in self._fields if name in columns]
        options = [name for name in OPTIONS if name in columns and name not in fields]
        for index in range(batch.num_rows):
            given = {name: columns[name][index] for name in options}
            event = self._event or self._schema.event(_named(given))
            flat = {name: columns[name][index] for name in fields}
            text, value = self._payload(event, whole[index] if whole else flat)
            yield Item(event, value, self._options(event, given, text))

    def _payload(self, event: EventType, payload: Any) -> tuple[bytes, Any]:
        text = payload.encode() if isinstance(payload, str) else _encode(payload)
        try:
            return text, self._codec.decode_payload(event, msgspec.Raw(text))
        except InvalidEventError:
            # A field that must not be null may have a default: a row cannot leave out a column.
            lean = text if isinstance(payload, str) else _encode(_without_nulls(payload))
            if lean == text:
                raise
            return lean, self._codec.decode_payload(event, msgspec.Raw(lean))

    def _options(self, event: EventType, given: dict[str, Any], payload: bytes) -> SendOptions:
        subscriber = given.get("subscriber")
        return SendOptions(
            **{name: given.get(name) for name in _SEND_OPTIONS},
            id=given.get("id") or self._id(event, given, payload),
            subscribers=None if subscriber is None else (subscriber,),
        )

    def _id(self, event: EventType, given: dict[str, Any], payload: bytes) -> str:
        content = hashlib.sha256(_encode([event.key, sorted(given.items())]) + payload).digest()
        self._times[content] += 1
        return derived_id(self._write, content.hex(), str(self._times[content]))


def _named(given: dict[str, Any]) -> str:
    key = given.get("event_key")
    if not isinstance(key, str):
        raise InvalidEventError("a row has no event_key")
    return key


def _values(column: Any) -> list[Any]:
    values = cast("list[Any]", column.to_pylist())
    return [_plain(value, column.type) for value in values] if _has_map(column.type) else values


def _has_map(kind: DataType) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pa.types.is_map(kind)) or any(map(_has_map, inner))


def _plain(value: Any, kind: DataType) -> Any:
    """Arrow represents a map as a list of pairs; JSON needs an object."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(one, kind.item_type) for key, one in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_plain(one, kind.value_type) for one in value]
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        return {key: _without_nulls(one) for key, one in given.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in cast("list[Any]", value)]
    return value
