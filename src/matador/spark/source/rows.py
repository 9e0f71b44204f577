"""Stored messages and journal records as columns. Runs in the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from matador.codec.as_json import as_json
from matador.codec.base import Codec, RawEnvelope
from matador.codec.json import JsonCodec
from matador.errors import DecodeError, InvalidEventError
from matador.model.event import EventType
from matador.model.message import StoredMessage
from matador.observe.journal.records import LAST_MOMENT, MalformedRecord, SentRecord
from matador.spark.runtime.arrow import RecordBatch, pa
from matador.spark.runtime.arrow import Schema as ArrowSchema
from matador.spark.runtime.payload_columns import TypedColumn
from matador.spark.source.columns import DATA, Column, batch_of
from matador.spark.tables.decode import OUT_OF_RANGE, parse_lines, raw_bytes, texts
from matador.transports.clock import SystemClock

_ANY = EventType("any", "Any payload.", object)


class Shape(NamedTuple):
    """The shape of batches: their columns, and their event, if the read names one."""

    schema: ArrowSchema
    keys: frozenset[str] | None = None
    typed: TypedColumn | None = None

    def data(self, payloads: Callable[[], Sequence[bytes | None]]) -> dict[str, Column]:
        """The column ``data``, if it is wanted."""
        typed = self.typed
        if typed is None or DATA not in self.schema.names:
            return {}
        return {DATA: lambda: typed.make(payloads(), self.schema.field(DATA).type)}


class MessageRows:
    """Makes batches of stored messages."""

    def __init__(self, shape: Shape, codec: Codec) -> None:
        self._shape = shape
        self._codec = codec
        self._json = isinstance(codec, JsonCodec)
        self._clock = SystemClock()

    def batch(self, messages: Sequence[StoredMessage]) -> RecordBatch | None:
        """The messages as a batch; None if none of them is wanted."""
        keys = self._shape.keys
        stored: list[StoredMessage] = []
        envelopes: list[RawEnvelope] = []
        unread: list[StoredMessage] = []
        problems: list[str] = []
        decode, clock = self._codec.decode, self._clock
        for message in messages:
            try:
                envelope = decode(message.body, message.headers, clock)
            except DecodeError as error:
                unread.append(message)
                problems.append(str(error))
                continue
            if keys is None or envelope.docket.event_key in keys:
                stored.append(message)
                envelopes.append(envelope)
        schema = self._shape.schema
        batches: list[RecordBatch] = []
        if stored:
            batches.append(batch_of(self._columns(stored, envelopes), schema, len(stored)))
        if unread and keys is None:
            columns = {**_of_stored(unread), "decode_error": lambda: problems}
            batches.append(batch_of(columns, schema, len(unread)))
        return pa.concat_batches(batches) if batches else None

    def _columns(
        self, stored: Sequence[StoredMessage], envelopes: Sequence[RawEnvelope]
    ) -> Mapping[str, Column]:
        dockets = [one.docket for one in envelopes]

        def payloads() -> list[bytes | None]:
            return [self._as_json(one.data) for one in envelopes]

        return {
            **_of_stored(stored),
            "id": lambda: [one.id for one in envelopes],
            **{name: _attribute(name, dockets) for name in _OF_DOCKET},
            "subscriber": _attribute("target_subscriber", dockets),
            "metadata": lambda: [texts(one.metadata) for one in dockets],
            "data_json": payloads,
            "before_json": lambda: [
                None if one.before is None else self._as_json(one.before) for one in envelopes
            ],
            **self._shape.data(payloads),
        }

    def _as_json(self, raw: msgspec.Raw) -> bytes | None:
        if self._json:
            return bytes(raw)
        try:
            return as_json(self._codec.decode_payload(_ANY, raw))
        except InvalidEventError:
            return None


_OF_STORED = (
    *("position", "id", "queue", "state", "stored_at", "due_at", "reason", "delivery_count"),
    *("priority", "ordering_key"),
)
_OF_DOCKET = (
    *("event_key", "attempts", "created_at", "scheduled_for", "correlation_id", "importance"),
    *("first_error", "last_error"),
)


def _of_stored(stored: Sequence[StoredMessage]) -> dict[str, Column]:
    columns = {name: _attribute(name, stored) for name in _OF_STORED}
    return {**columns, "raw": _attribute("body", stored)}


def _attribute(name: str, of: Sequence[Any]) -> Column:
    get = attrgetter(name)
    return lambda: list(map(get, of))


class RecordRows:
    """Makes batches of lines of the journal: what was sent, and what could not be read."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def batches(self, block: bytes, segment: str) -> Iterator[RecordBatch]:
        """Whole lines as batches; none if nothing in them is wanted."""
        keys = self._shape.keys
        sent: list[tuple[SentRecord, bytes]] = []
        unread: list[tuple[bytes, str, str | None]] = []
        for line, record in parse_lines(block):
            if isinstance(record, str):
                unread.append((line, record, None))
            elif type(record) is SentRecord:
                moments = (record.created_at, record.recorded_at, record.scheduled_for or 0)
                if not (min(moments) >= 0 and max(moments) <= LAST_MOMENT):
                    unread.append((line, OUT_OF_RANGE, record.queue))
                elif keys is None or record.event_key in keys:
                    sent.append((record, line))
            elif type(record) is MalformedRecord:
                unread.append((raw_bytes(record), record.reason, record.queue))
        if sent:
            yield batch_of(self._columns(sent, segment), self._shape.schema, len(sent))
        if unread and keys is None:
            columns = {name: _item(at, unread) for at, name in enumerate(_OF_UNREAD)}
            columns |= {"position": _same(segment, unread), "state": _same("malformed", unread)}
            yield batch_of(columns, self._shape.schema, len(unread))

    def _columns(
        self, sent: Sequence[tuple[SentRecord, bytes]], segment: str
    ) -> Mapping[str, Column]:
        records = [record for record, _ in sent]

        def payloads() -> list[bytes | None]:
            return [bytes(one.data) for one in records]

        return {
            "position": _same(segment, records),
            "state": _same("sent", records),
            "stored_at": _attribute("recorded_at", records),
            "attempts": _same(1, records),
            **{name: _attribute(name, records) for name in _OF_RECORD},
            "metadata": lambda: [texts(one.metadata or {}) for one in records],
            "data_json": payloads,
            "before_json": lambda: [
                None if one.earlier is None else bytes(one.earlier) for one in records
            ],
            "raw": _item(1, sent),
            **self._shape.data(payloads),
        }


_OF_RECORD = (
    *("id", "queue", "event_key", "subscriber", "created_at", "scheduled_for"),
    *("correlation_id", "importance"),
)
_OF_UNREAD = ("raw", "decode_error", "queue")


def _item(at: int, of: Sequence[Sequence[Any]]) -> Column:
    return lambda: [one[at] for one in of]


def _same(value: Any, of: Sequence[Any]) -> Column:
    return lambda: [value] * len(of)
