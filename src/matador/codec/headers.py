"""The codec for AMQP: the docket in message headers, payload and metadata in the body.

Compatible with services in other languages (``x-matador-*``).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from matador.codec.base import Encoded, RawEnvelope, Stamp, Stencil
from matador.codec.json import read_json_object
from matador.codec.json_text import refuse_duplicate_keys
from matador.codec.older import is_older_body, read_older_body
from matador.codec.payload import PayloadCodec
from matador.codec.plain import metadata_problem, unwritable
from matador.codec.times import from_wire, to_wire
from matador.codec.wire import (
    header_text,
    importance_of,
    none_if,
    readable_text,
    readable_time,
)
from matador.errors import DecodeError
from matador.model.envelope import MOST_ATTEMPTS, Docket, Envelope
from matador.model.message import Headers
from matador.model.text import BOM

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

_ABSENT = msgspec.Raw(b"")


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body to encode."""

    id: str
    data: msgspec.Raw
    metadata: dict[str, Any] = {}
    before: msgspec.Raw | None = None


class _ReadBody(msgspec.Struct, frozen=True):
    """A decoded body. With the last two fields, it may have the older format."""

    id: str
    data: msgspec.Raw
    metadata: dict[str, Any] | None = None
    before: msgspec.Raw = _ABSENT
    key: msgspec.Raw = _ABSENT
    target_subscriber: msgspec.Raw = msgspec.field(name="targetSubscriber", default=_ABSENT)


class HeaderCodec(PayloadCodec):
    """Envelopes for brokers whose messages have headers. The default on RabbitMQ.

    Example:
        >>> from matador import HeaderCodec, Matador
        >>> app = Matador("memory://", schema=schema, codec=HeaderCodec())
    """

    __slots__ = ("_encode", "_read")

    content_type = "application/json"

    def __init__(self, *, check_sends: bool = True) -> None:
        super().__init__("json", check_sends=check_sends)
        self._encode = msgspec.json.Encoder().encode
        self._read = msgspec.json.Decoder(_ReadBody).decode

    def __repr__(self) -> str:
        return "HeaderCodec()"

    def encode(self, envelope: RawEnvelope) -> Encoded:
        docket = envelope.docket
        metadata = docket.metadata
        try:
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
            for text in headers.values():
                if isinstance(text, str) and not text.isascii():
                    text.encode()
            body = self._encode(_Body(envelope.id, envelope.data, metadata, envelope.before))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise unwritable(docket, error) from error
        if metadata and (problem := metadata_problem(metadata, nested=True)) is not None:
            raise unwritable(docket, problem)
        return Encoded(body, headers)

    def prepare(self, docket: Docket) -> Stencil:
        known = dict(self.encode(Envelope("", msgspec.Raw(b"null"), docket)).headers)
        encode, join = self._encode, b"".join

        def stencil(
            id: str,
            data: msgspec.Raw,
            created_at: datetime,
            before: msgspec.Raw | None,
            correlation_id: str | None,
            metadata: Mapping[str, Any] | None,
        ) -> Encoded:
            headers = known.copy()
            try:
                headers[CREATED_AT] = to_wire(created_at)
                if correlation_id is not None:
                    correlation_id.encode()
                    headers[CORRELATION_ID] = correlation_id
                body = b'{"id":', encode(id), b',"data":', data
                if metadata:
                    body = *body, b',"metadata":', encode(metadata)
                if before is not None:
                    body = *body, b',"before":', before
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise unwritable(docket, error, metadata) from error
            if metadata and (problem := metadata_problem(metadata, nested=True)) is not None:
                raise unwritable(docket, problem)
            return Encoded(join((*body, b"}")), headers)

        return stencil

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        """Also reads the older format."""
        try:
            if not body.isascii():
                str(body, "utf-8")  # payloads are not validated yet
            read = self._read(body)
        except (ValueError, RecursionError) as error:
            if body.startswith(BOM) and not body.startswith(BOM, len(BOM)):
                return self.decode(body.removeprefix(BOM), headers, stamp)
            fields = read_json_object(body)
            if is_older_body(fields):
                refuse_duplicate_keys(body)
                return read_older_body(fields, headers, stamp)
            raise DecodeError(f"not an envelope: {error}") from error
        parts = (b'{"id":', self._encode(read.id), b',"data":', read.data, b"}")
        if b"".join(parts) != body:  # otherwise, decode_payload finds any duplicate key
            refuse_duplicate_keys(body)
        if len(read.key) and len(read.target_subscriber):
            fields = read_json_object(body)
            if is_older_body(fields):
                return read_older_body(fields, headers, stamp)
        docket = _docket(headers, read.metadata or {})
        return Envelope(read.id, read.data, docket, none_if(read.before, b"null"))


def _docket(headers: Headers, metadata: dict[str, Any]) -> Docket:
    given = headers.get
    if given(IMPORTANCE) in (None, ""):
        raise DecodeError(f"the header {IMPORTANCE} is missing")
    return Docket(
        event_key=header_text(headers, EVENT_KEY),
        target_subscriber=header_text(headers, SUBSCRIBER),
        created_at=_created_at(headers),
        attempts=_attempts(headers),
        importance=importance_of(given(IMPORTANCE)),
        original_queue=readable_text(given(ORIGINAL_QUEUE)),
        scheduled_for=readable_time(given(SCHEDULED_FOR)),
        first_error=readable_text(given(FIRST_ERROR)),
        last_error=readable_text(given(LAST_ERROR)),
        correlation_id=readable_text(given(CORRELATION_ID)),
        metadata=metadata,
    )


def _attempts(headers: Headers) -> int:
    text = header_text(headers, ATTEMPTS)
    if text.isascii() and text.isdigit() and 0 < len(text) <= 10:
        attempts = int(text)
        if 1 <= attempts <= MOST_ATTEMPTS:
            return attempts
    raise DecodeError(f"the header {ATTEMPTS} must be a number >= 1, got {text[:20]!r}")


def _created_at(headers: Headers) -> datetime:
    try:
        return from_wire(header_text(headers, CREATED_AT))
    except ValueError as error:
        raise DecodeError(f"the header {CREATED_AT} is not a time: {error}") from error
