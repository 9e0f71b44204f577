"""Stored messages and journal records as columns. Runs in the executors."""

from __future__ import annotations

import base64
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
from matador.observe.journal.records import LAST_MOMENT, MalformedRecord, Record, SentRecord
from matador.spark.runtime.arrow import RecordBatch, pa
from matador.spark.runtime.arrow import Schema as ArrowSchema
from matador.spark.runtime.payload_columns import TypedColumn
from matador.spark.source.columns import DATA, Column, batch_of
from matador.transports.clock import SystemClock

_ANY = EventType("any", "Anything at all.", object)

_records = msgspec.json.Decoder(Record)


class Shape(NamedTuple):
    """What batches are made of: their columns, and the one event they are of, if it was named."""

    schema: ArrowSchema
    keys: frozenset[str] | None = None
    typed: TypedColumn | None = None

    def data(self, payloads: Callable[[], Sequence[bytes | None]]) -> dict[str, Column]:
        """The column ``data``, if there is one."""
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
        """The messages as a batch; None if none of them is of the event that was named."""
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
        return together(batches)

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
    "position",
    "id",
    "queue",
    "state",
    "stored_at",
    "due_at",
    "reason",
    "delivery_count",
    "priority",
    "ordering_key",
)
_OF_DOCKET = (
    "event_key",
    "attempts",
    "created_at",
    "scheduled_for",
    "correlation_id",
    "importance",
    "first_error",
    "last_error",
)


def _of_stored(stored: Sequence[StoredMessage]) -> dict[str, Column]:
    columns = {name: _attribute(name, stored) for name in _OF_STORED}
    return {**columns, "raw": _attribute("body", stored)}


def _attribute(name: str, of: Sequence[Any]) -> Column:
    get = attrgetter(name)
    return lambda: list(map(get, of))


def together(batches: Sequence[RecordBatch]) -> RecordBatch | None:
    """Batches as one; None if there is none."""
    if len(batches) <= 1:
        return batches[0] if batches else None
    return pa.concat_batches(batches)


class RecordRows:
    """Makes batches of lines of the journal: what was sent, and what could not be read."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def batches(self, block: bytes, segment: str) -> Iterator[RecordBatch]:
        """Whole lines as batches; none if nothing in them is wanted."""
        keys = self._shape.keys
        sent: list[tuple[SentRecord, bytes]] = []
        unread: list[tuple[bytes, str, str | None]] = []
        for line in block.split(b"\n"):
            if not line:
                continue
            try:
                record = _records.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                unread.append((line, f"not a record of the journal: {error}", None))
                continue
            if type(record) is SentRecord:
                moments = (record.created_at, record.recorded_at, record.scheduled_for or 0)
                if not (min(moments) >= 0 and max(moments) <= LAST_MOMENT):
                    unread.append((line, "a time is before 1970 or after 9999", record.queue))
                elif keys is None or record.event_key in keys:
                    sent.append((record, line))
            elif type(record) is MalformedRecord:
                unread.append((_bytes(record.raw), record.reason, record.queue))
        if sent:
            yield batch_of(self._columns(sent, segment), self._shape.schema, len(sent))
        if unread and keys is None:
            yield batch_of(_unread(unread, segment), self._shape.schema, len(unread))

    def _columns(
        self, sent: Sequence[tuple[SentRecord, bytes]], segment: str
    ) -> Mapping[str, Column]:
        records = [record for record, _ in sent]

        def payloads() -> list[bytes | None]:
            return [bytes(one.data) for one in records]

        return {
            "position": lambda: [segment] * len(records),
            "state": lambda: ["sent"] * len(records),
            "stored_at": _attribute("recorded_at", records),
            "attempts": lambda: [1] * len(records),
            **{name: _attribute(name, records) for name in _OF_RECORD},
            "metadata": lambda: [texts(one.metadata or {}) for one in records],
            "data_json": payloads,
            "before_json": lambda: [
                None if one.earlier is None else bytes(one.earlier) for one in records
            ],
            "raw": lambda: [line for _, line in sent],
            **self._shape.data(payloads),
        }


_OF_RECORD = (
    "id",
    "queue",
    "event_key",
    "subscriber",
    "created_at",
    "scheduled_for",
    "correlation_id",
    "importance",
)


def _unread(rows: Sequence[tuple[bytes, str, str | None]], segment: str) -> Mapping[str, Column]:
    return {
        "position": lambda: [segment] * len(rows),
        "state": lambda: ["malformed"] * len(rows),
        "raw": lambda: [raw for raw, _, _ in rows],
        "decode_error": lambda: [problem for _, problem, _ in rows],
        "queue": lambda: [queue for _, _, queue in rows],
    }


def _bytes(raw: str) -> bytes:
    try:
        return base64.b64decode(raw, validate=True)
    except ValueError:
        return raw.encode()


def texts(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Metadata as a map of strings: what is not a string is its JSON."""
    if not metadata:
        return []
    return [
        (key, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for key, value in metadata.items()
    ]
