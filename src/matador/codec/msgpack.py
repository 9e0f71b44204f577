"""The MessagePack codec: a binary format, smaller than JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from matador.codec.base import Encoded, RawEnvelope, Stamp
from matador.codec.json_text import written_surrogate
from matador.codec.payload import PayloadCodec
from matador.codec.plain import metadata_problem, unwritable
from matador.codec.times import to_wire
from matador.codec.wire import EnvelopeWithBefore, LooseEnvelope
from matador.errors import DecodeError
from matador.model.message import Headers

_HEADERS: Headers = {}
_NIL = b"\xc0"


class _Docket(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An encoded docket, with its times as text, as in JSON."""

    created_at: str
    event_key: str
    target_subscriber: str
    attempts: int
    importance: str
    event_description: str | None = None
    original_queue: str | None = None
    first_error: str | None = None
    last_error: str | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] = {}
    scheduled_for: str | None = None


class _Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    data: msgspec.Raw
    docket: _Docket
    before: msgspec.Raw | None = None


class MessagePackCodec(PayloadCodec):
    """Envelopes as MessagePack, with the same fields as in JSON.

    Example:
        >>> from matador import Matador, MessagePackCodec
        >>> app = Matador("sqlite:///shop.db", schema=schema, codec=MessagePackCodec())
    """

    __slots__ = ("_encode", "_read", "_read_loosely", "_read_with_before")

    content_type = "application/msgpack"

    def __init__(self, *, check_sends: bool = True) -> None:
        super().__init__("msgpack", check_sends=check_sends)
        self._encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self._read = msgspec.msgpack.Decoder(RawEnvelope).decode
        self._read_with_before = msgspec.msgpack.Decoder(EnvelopeWithBefore).decode
        self._read_loosely = msgspec.msgpack.Decoder(LooseEnvelope).decode

    def __repr__(self) -> str:
        return "MessagePackCodec()"

    def encode(self, envelope: RawEnvelope) -> Encoded:
        docket = envelope.docket
        metadata = docket.metadata
        scheduled = docket.scheduled_for
        try:
            wire = _Envelope(
                envelope.id,
                envelope.data,
                _Docket(
                    to_wire(docket.created_at),
                    docket.event_key,
                    docket.target_subscriber,
                    docket.attempts,
                    docket.importance,
                    docket.event_description,
                    docket.original_queue,
                    docket.first_error,
                    docket.last_error,
                    docket.correlation_id,
                    metadata,
                    None if scheduled is None else to_wire(scheduled),
                ),
                envelope.before,
            )
            body = self._encode(wire)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise unwritable(docket, error) from error
        if metadata and (problem := metadata_problem(metadata, nested=False)) is not None:
            raise unwritable(docket, problem)
        return Encoded(body, _HEADERS)

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        if not body:
            raise DecodeError("the body is empty")
        try:
            return self._read(body)
        except (ValueError, RecursionError):
            return self._read_otherwise(body)

    def _read_otherwise(self, body: bytes) -> RawEnvelope:
        for read in (self._read_with_before, self._read_loosely):
            try:
                return read(body).as_envelope(_NIL)
            except (ValueError, RecursionError) as error:
                problem = error
        if isinstance(problem, UnicodeDecodeError) and (half := written_surrogate(body)):
            raise DecodeError(f"the body {half}") from problem
        hint = "; it looks like JSON: use JsonCodec" if body[:1] in b"{[" else ""
        raise DecodeError(f"not an envelope in MessagePack: {problem}{hint}") from problem
