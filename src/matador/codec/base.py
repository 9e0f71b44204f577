"""The codec protocol: an envelope with its payload still encoded, to bytes and headers and back."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol, TypeAlias

import msgspec

from matador.model.envelope import Envelope
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
