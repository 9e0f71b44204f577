"""MessagePack: smaller than JSON, and binary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from matador.codec.base import Encoded, RawEnvelope, Stamp
from matador.codec.payload import PayloadFormat
from matador.codec.times import to_wire
from matador.codec.wire import ReadEnvelope, WireDocket, WireEnvelope
from matador.errors import DecodeError, InvalidEventError
from matador.model.event import EventType
from matador.model.message import Headers

_HEADERS: Headers = {}
_NIL = b"\xc0"


class MessagePackCodec:
    """Envelopes as MessagePack, with the same fields as in JSON.

    Example:
        >>> from matador import Matador, MessagePackCodec
        >>> app = Matador("sqlite:///shop.db", schema=schema, codec=MessagePackCodec())
    """

    __slots__ = ("_encode", "_payloads", "_read")

    content_type = "application/msgpack"

    def __init__(self) -> None:
        self._encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self._read = msgspec.msgpack.Decoder(ReadEnvelope).decode
        self._payloads = PayloadFormat("msgpack")

    def __repr__(self) -> str:
        return "MessagePackCodec()"

    def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
        """See ``Codec``."""
        return self._payloads.encode(event, payload)

    def decode_payload(self, event: EventType, raw: msgspec.Raw) -> Any:
        """See ``Codec``."""
        return self._payloads.decode(event, raw)

    def encode(self, envelope: RawEnvelope) -> Encoded:
        """See ``Codec``."""
        docket = envelope.docket
        scheduled = docket.scheduled_for
        wire = WireEnvelope(
            envelope.id,
            envelope.data,
            WireDocket(
                docket.event_key,
                docket.target_subscriber,
                docket.attempts,
                msgspec.Raw(self._encode(to_wire(docket.created_at))),
                docket.importance,
                docket.event_description,
                docket.original_queue,
                None if scheduled is None else msgspec.Raw(self._encode(to_wire(scheduled))),
                docket.first_error,
                docket.last_error,
                docket.correlation_id,
                docket.metadata or None,
            ),
            envelope.before,
        )
        try:
            return Encoded(self._encode(wire), _HEADERS)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidEventError(
                f"event {docket.event_key!r}: the metadata cannot be written: {error}"
            ) from error

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        """See ``Codec``."""
        if not body:
            raise DecodeError("the body is empty")
        try:
            return self._read(body).as_envelope(_NIL)
        except (ValueError, RecursionError) as error:
            hint = "; it looks like JSON: use JsonCodec" if body[:1] in b"{[" else ""
            raise DecodeError(f"not an envelope in MessagePack: {error}{hint}") from error
