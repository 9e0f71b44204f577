"""The codec protocol: an envelope with its payload still encoded, to bytes and headers and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from matador.model.envelope import Docket, Envelope
from matador.model.event import EventType
from matador.model.message import Headers

RawEnvelope: TypeAlias = Envelope[msgspec.Raw]
"""An envelope whose ``data`` and ``before`` are bytes of the codec's format, not yet looked at."""


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """What a transport is given: the body, and the headers that belong to it."""

    body: bytes
    headers: Headers


class Stamp(Protocol):
    """Where a codec gets what older messages lack: the time, and a new id."""

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

Stencil: TypeAlias = Callable[[str, msgspec.Raw, datetime], Encoded]
"""``stencil(id, data, created_at)``: an envelope encoded, all else of it known beforehand."""


class Codec(Protocol):
    """Turns envelopes into bytes and back. Pure: no I/O, no clock; safe to share between threads.

    The payload is encoded once (``encode_payload``) for any number of subscribers, and decoded
    once, straight into the user's type (``decode_payload``), after the docket was looked at.
    """

    @property
    def content_type(self) -> str:
        """The media type of what ``encode`` makes."""
        ...

    def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
        """A payload as bytes.

        Raises:
            InvalidEventError: it does not fit the event's type; the field is named.
        """
        ...

    def decode_payload(self, event: EventType, raw: msgspec.Raw) -> Any:
        """Bytes as a payload of the event's type.

        Raises:
            AmbiguousPayloadError: a JSON object in it has a key twice.
            InvalidEventError: they do not fit the type; the field is named.
        """
        ...

    def encode(self, envelope: RawEnvelope) -> Encoded:
        """An envelope as body and headers.

        Raises:
            InvalidEventError: the metadata cannot be encoded.
        """
        ...

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        """Body and headers as an envelope.

        Raises:
            DecodeError: empty, malformed, or not an envelope; the message says which.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """A codec that can be told beforehand what most of the envelopes of an event have in common."""

    def prepare(self, docket: Docket) -> Stencil:
        """How envelopes with this docket are encoded, whenever they are created.

        The stencil makes the very bytes and headers that ``encode`` makes, in less time.

        Raises:
            InvalidEventError: the docket cannot be encoded.
        """
        ...

    def payload_encoder(self, event: EventType) -> PayloadEncoder:
        """``encode_payload`` for payloads of this event.

        Raises:
            InvalidEventError: its type cannot be a payload.
        """
        ...

    def payload_decoder(self, event: EventType) -> PayloadDecoder:
        """``decode_payload`` for payloads of this event.

        Raises:
            InvalidEventError: its type cannot be a payload.
        """
        ...


def preparing(codec: Codec) -> Preparing | None:
    """The codec, if what it prepares is what it does.

    Not so if a subclass does something else in ``encode`` or ``encode_payload``, and inherits what
    prepares it.
    """
    if not isinstance(codec, Preparing):
        return None
    for done, prepared in (("encode", "prepare"), ("encode_payload", "payload_encoder")):
        if _home(type(codec), done) is not _home(type(codec), prepared):
            return None
    return codec


def _home(kind: type[Any], name: str) -> type[Any] | None:
    return next((one for one in kind.__mro__ if name in vars(one)), None)
