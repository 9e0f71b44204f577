"""Envelopes, codecs and a fixed stamp for tests of the codecs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from matador.codec import (
    Codec,
    CompressedCodec,
    HeaderCodec,
    JsonCodec,
    MessagePackCodec,
    RawEnvelope,
)
from matador.model.envelope import Docket, Envelope
from matador.model.message import Headers

NOW = datetime(2026, 11, 15, 19, 2, 37, 435000, tzinfo=UTC)
NEW_ID = "00000000-0000-4000-8000-000000000000"


class FixedStamp:
    """A clock that stands still and a maker of ids with one id."""

    def now(self) -> datetime:
        return NOW

    def new_id(self) -> str:
        return NEW_ID


STAMP = FixedStamp()

CODECS: dict[str, Codec] = {
    "json": JsonCodec(),
    "msgpack": MessagePackCodec(),
    "headers": HeaderCodec(),
    "gzip-json": CompressedCodec(JsonCodec(), "gzip", threshold=0),
    "gzip-msgpack": CompressedCodec(MessagePackCodec(), "gzip", threshold=0),
    "zstd-json": CompressedCodec(JsonCodec(), "zstd", threshold=0),
    "zstd-headers": CompressedCodec(HeaderCodec(), "zstd", threshold=0),
}


def make_docket(**changes: Any) -> Docket:
    fields: dict[str, Any] = {
        "event_key": "order.placed",
        "target_subscriber": "email-receipt",
        "created_at": NOW,
        "attempts": 1,
        "importance": "should-investigate",
    }
    return Docket(**fields | changes)


def make_raw(data: bytes = b"1", *, before: bytes | None = None, **docket: Any) -> RawEnvelope:
    """An envelope whose payload is given as bytes of the codec's format."""
    return Envelope(
        "50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e",
        msgspec.Raw(data),
        make_docket(**docket),
        None if before is None else msgspec.Raw(before),
    )


def there_and_back(codec: Codec, envelope: RawEnvelope) -> RawEnvelope:
    encoded = codec.encode(envelope)
    return codec.decode(encoded.body, encoded.headers, STAMP)


def wire_headers(**changes: Any) -> Headers:
    """The required headers, as another implementation writes them; None takes one away."""
    headers: dict[str, Any] = {
        "x-matador-event-key": "user.created",
        "x-matador-subscriber": "send-email",
        "x-matador-created-at": "2026-11-15T19:02:37.435Z",
        "x-matador-importance": "must-investigate",
        "x-matador-attempts": 1,
    }
    headers |= {f"x-{name.replace('_', '-')}": value for name, value in changes.items()}
    return {name: value for name, value in headers.items() if value is not None}
