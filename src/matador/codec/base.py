"""The codec protocol: converts envelopes to bytes and headers, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from matador.model.envelope import Docket, Envelope
from matador.model.event import EventType
from matador.model.message import Headers

RawEnvelope: TypeAlias = Envelope[msgspec.Raw]
"""An envelope whose ``data`` and ``before`` are still encoded."""


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An encoded envelope: the body and the headers of a message."""

    body: bytes
    headers: Headers


class DecodedPayload(msgspec.Struct, frozen=True, gc=False):
    """A payload and the JSON that it was decoded from, by a codec that has checked it.

    To send it as JSON, use that text instead of encoding and validating it again.
    """

    payload: Any
    json: msgspec.Raw


class Stamp(Protocol):
    """Provides the time and new ids, for older messages that lack them."""

    def now(self) -> datetime:
        """The current time, in UTC."""
        ...

    def new_id(self) -> str:
        """A new UUID."""
        ...


PayloadEncoder: TypeAlias = Callable[[Any], msgspec.Raw]
"""``encode_payload`` for one event."""

PayloadDecoder: TypeAlias = Callable[[msgspec.Raw], Any]
"""``decode_payload`` for one event."""

Stencil: TypeAlias = Callable[
    [str, msgspec.Raw, datetime, msgspec.Raw | None, str | None, Mapping[str, Any] | None], Encoded
]
"""``stencil(id, data, created_at, before, correlation_id, metadata)``: encodes an envelope whose
other fields are known."""


class Codec(Protocol):
    """Encodes and decodes envelopes. Pure: no I/O, no clock; safe to share between threads.

    ``encode_payload`` encodes a payload once for any number of subscribers. ``decode_payload``
    decodes it into the user's type, after the docket has been read.
    """

    @property
    def content_type(self) -> str:
        """The media type of an encoded body."""
        ...

    def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
        """Encode a payload.

        Raises:
            InvalidEventError: it does not match the event's type; names the field.
        """
        ...

    def decode_payload(self, event: EventType, raw: msgspec.Raw) -> Any:
        """Decode a payload of the event's type.

        Raises:
            AmbiguousPayloadError: a JSON object in it has a duplicate key.
            InvalidEventError: it does not match the type; names the field.
        """
        ...

    def encode(self, envelope: RawEnvelope) -> Encoded:
        """Encode an envelope.

        Raises:
            InvalidEventError: the metadata cannot be encoded.
        """
        ...

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        """Decode an envelope, except for its payload.

        Raises:
            DecodeError: the body is empty, malformed, or not an envelope.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """A codec that can prepare for the envelopes of an event, to encode and decode them faster."""

    def prepare(self, docket: Docket) -> Stencil:
        """Prepare to encode envelopes whose dockets differ from this one only in their creation
        times, correlation ids and metadata. The docket has neither of the last two.

        The stencil produces the same bytes and headers as ``encode``, and raises the same errors,
        in less time.

        Raises:
            InvalidEventError: the docket cannot be encoded.
        """
        ...

    def payload_encoder(self, event: EventType) -> PayloadEncoder:
        """``encode_payload`` for payloads of this event.

        Raises:
            InvalidEventError: its type cannot be used as a payload.
        """
        ...

    def payload_decoder(self, event: EventType) -> PayloadDecoder:
        """``decode_payload`` for payloads of this event.

        Raises:
            InvalidEventError: its type cannot be used as a payload.
        """
        ...


def preparing(codec: Codec) -> Preparing | None:
    """The codec as ``Preparing``, if it can prepare.

    None for a subclass that overrides ``encode`` or ``encode_payload``, but inherits the methods
    that prepare them, because the prepared functions would skip the override.
    """
    if not isinstance(codec, Preparing):
        return None
    for done, prepared in (("encode", "prepare"), ("encode_payload", "payload_encoder")):
        if _home(type(codec), done) is not _home(type(codec), prepared):
            return None
    return codec


def _home(kind: type[Any], name: str) -> type[Any] | None:
    return next((one for one in kind.__mro__ if name in vars(one)), None)
