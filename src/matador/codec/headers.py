"""The docket in message headers, payload and metadata in the body: what travels on AMQP.

The same bytes that services in other languages write and expect (``x-matador-*``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, get_args

import msgspec

from matador.codec.base import Encoded, RawEnvelope, Stamp
from matador.codec.json import read_json_object
from matador.codec.older import is_older_body, read_older_body
from matador.codec.payload import PayloadFormat
from matador.codec.times import from_wire, to_wire
from matador.errors import DecodeError, InvalidEventError
from matador.model.envelope import Docket, Importance
from matador.model.event import EventType
from matador.model.message import Headers

EVENT_KEY = "x-matador-event-key"
SUBSCRIBER = "x-matador-subscriber"
CREATED_AT = "x-matador-created-at"
IMPORTANCE = "x-matador-importance"
ATTEMPTS = "x-matador-attempts"
SCHEDULED_FOR = "x-matador-scheduled-for"
ORIGINAL_QUEUE = "x-matador-original-queue"
FIRST_ERROR = "x-matador-first-error"
LAST_ERROR = "x-matador-last-error"
CORRELATION_ID = "x-matador-correlation-id"


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    data: msgspec.Raw
    metadata: dict[str, Any] | None = None
    before: msgspec.Raw | None = None


_METADATA = msgspec.json.Decoder(dict[str, Any] | None)
_STRING = msgspec.json.Decoder(str)


class HeaderCodec:
    """Envelopes for brokers whose messages have headers. The default on RabbitMQ.

    Example:
        >>> from matador import HeaderCodec, Matador
        >>> app = Matador("memory://", schema=schema, codec=HeaderCodec())
    """

    __slots__ = ("_encoder", "_payloads")

    content_type = "application/json"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._payloads = PayloadFormat("json")

    def __repr__(self) -> str:
        return "HeaderCodec()"

    def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
        """See ``Codec``."""
        return self._payloads.encode(event, payload)

    def decode_payload(self, event: EventType, raw: msgspec.Raw) -> Any:
        """See ``Codec``."""
        return self._payloads.decode(event, raw)

    def encode(self, envelope: RawEnvelope) -> Encoded:
        """See ``Codec``."""
        docket = envelope.docket
        headers: dict[str, str | int] = {
            EVENT_KEY: docket.event_key,
            SUBSCRIBER: docket.target_subscriber,
            CREATED_AT: to_wire(docket.created_at),
            IMPORTANCE: docket.importance,
            ATTEMPTS: docket.attempts,
        }
        for name, value in (
            (ORIGINAL_QUEUE, docket.original_queue),
            (FIRST_ERROR, docket.first_error),
            (LAST_ERROR, docket.last_error),
            (CORRELATION_ID, docket.correlation_id),
        ):
            if value is not None:
                headers[name] = value
        if docket.scheduled_for is not None:
            headers[SCHEDULED_FOR] = to_wire(docket.scheduled_for)
        try:
            body = self._encoder.encode(
                _Body(envelope.id, envelope.data, docket.metadata or None, envelope.before)
            )
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidEventError(
                f"event {docket.event_key!r}: the metadata cannot be written as JSON: {error}"
            ) from error
        return Encoded(body, headers)

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        """See ``Codec``. Reads the older body too."""
        fields = read_json_object(body)
        if is_older_body(fields):
            return read_older_body(fields, headers, stamp)
        if "data" not in fields:
            raise DecodeError("not an envelope: the body has no `data`")
        try:
            envelope_id = _STRING.decode(fields.get("id", b"null"))
            metadata = _METADATA.decode(fields.get("metadata", b"null"))
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"not an envelope: {error} (in `id` or `metadata`)") from error
        before = fields.get("before")
        return RawEnvelope(
            id=envelope_id,
            data=fields["data"],
            before=None if before is None or bytes(before) == b"null" else before,
            docket=_docket(headers, metadata or {}),
        )


def _docket(headers: Headers, metadata: dict[str, Any]) -> Docket:
    return Docket(
        event_key=_required(headers, EVENT_KEY),
        target_subscriber=_required(headers, SUBSCRIBER),
        created_at=_time(CREATED_AT, _required(headers, CREATED_AT)),
        attempts=_attempts(headers),
        importance=_importance(headers),
        original_queue=_optional(headers, ORIGINAL_QUEUE),
        scheduled_for=(
            None
            if (scheduled := _optional(headers, SCHEDULED_FOR)) is None
            else _time(SCHEDULED_FOR, scheduled)
        ),
        first_error=_optional(headers, FIRST_ERROR),
        last_error=_optional(headers, LAST_ERROR),
        correlation_id=_optional(headers, CORRELATION_ID),
        metadata=metadata,
    )


def _required(headers: Headers, name: str) -> str:
    value = headers.get(name)
    if value is None or value == "":
        raise DecodeError(f"the header {name} is missing")
    return str(value)


def _optional(headers: Headers, name: str) -> str | None:
    value = headers.get(name)
    return None if value is None else str(value)


def _attempts(headers: Headers) -> int:
    text = _required(headers, ATTEMPTS)
    try:
        attempts = int(text)
    except ValueError:
        attempts = 0
    if attempts < 1:
        raise DecodeError(f"the header {ATTEMPTS} must be a number from 1 on, it is {text!r}")
    return attempts


def _importance(headers: Headers) -> Importance:
    text = _required(headers, IMPORTANCE)
    for choice in get_args(Importance):
        if text == choice:
            return choice
    raise DecodeError(f"the header {IMPORTANCE} is not an importance: {text!r}")


def _time(name: str, text: str) -> datetime:
    try:
        return from_wire(text)
    except ValueError as error:
        raise DecodeError(f"the header {name} is not a time: {error}") from error
