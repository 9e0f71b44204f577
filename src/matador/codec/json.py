"""JSON: the default codec."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from matador.codec.base import Encoded, RawEnvelope, Stamp
from matador.codec.older import is_older_body, read_older_body
from matador.codec.payload import PayloadFormat
from matador.codec.wire import ReadEnvelope, WireDocket, WireEnvelope
from matador.errors import DecodeError, InvalidEventError
from matador.model.event import EventType
from matador.model.message import Headers

_NO_HEADERS: Headers = {}
_WITH_MICROSECONDS = len(b'"2026-11-15T19:02:37.435123Z"')


class JsonCodec:
    """Envelopes as JSON.

    Example:
        >>> from matador import JsonCodec, Matador
        >>> app = Matador("memory://", schema=schema, codec=JsonCodec())
    """

    __slots__ = ("_encode", "_payloads", "_read")

    content_type = "application/json"

    def __init__(self) -> None:
        self._encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        self._read = msgspec.json.Decoder(ReadEnvelope).decode
        self._payloads = PayloadFormat("json")

    def __repr__(self) -> str:
        return "JsonCodec()"

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
                self._time(docket.created_at),
                docket.importance,
                docket.event_description,
                docket.original_queue,
                None if scheduled is None else self._time(scheduled),
                docket.first_error,
                docket.last_error,
                docket.correlation_id,
                docket.metadata or None,
            ),
            envelope.before,
        )
        try:
            return Encoded(self._encode(wire), _NO_HEADERS)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidEventError(
                f"event {docket.event_key!r}: the metadata cannot be written as JSON: {error}"
            ) from error

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        """See ``Codec``. Reads the older body too."""
        try:
            return self._read(body).as_envelope(b"null")
        except (ValueError, RecursionError) as error:
            return self._read_otherwise(body, headers, stamp, error)

    def _read_otherwise(
        self, body: bytes, headers: Headers, stamp: Stamp, error: Exception
    ) -> RawEnvelope:
        fields = read_json_object(body)
        if is_older_body(fields):
            return read_older_body(fields, headers, stamp)
        raise DecodeError(f"not an envelope: {error}") from error

    def _time(self, moment: datetime) -> msgspec.Raw:
        text = self._encode(moment if moment.tzinfo is UTC else moment.astimezone(UTC))
        if len(text) == _WITH_MICROSECONDS:  # cut to milliseconds, as every reader expects
            return msgspec.Raw(text[:24] + b'Z"')
        return msgspec.Raw(text[:20] + b'.000Z"')


def read_json_object(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, each still encoded.

    Raises:
        DecodeError: empty, not UTF-8, not JSON or not an object.
    """
    if not body:
        raise DecodeError("the body is empty")
    try:
        return _OBJECT.decode(body)
    except RecursionError as error:
        raise DecodeError("the body is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"the body is not UTF-8: {error}") from error
    except msgspec.ValidationError as error:
        raise DecodeError(f"the body is not a JSON object: {error}") from error
    except ValueError as error:
        raise DecodeError(f"the body is not JSON: {error}{_looks_like(body)}") from error


def find_duplicate_key(body: bytes) -> str | None:
    """The first key that one JSON object of the body has twice, or None.

    Parsers keep one of the two and drop the other in silence, so such a body is ambiguous. A body
    that reads and writes back to the same length has no duplicates; only others are searched.
    """
    try:
        if len(_ENCODER.encode(_ANY.decode(body))) == len(body):
            return None
        found: list[str] = []

        def note(pairs: list[tuple[str, Any]]) -> None:
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    found.append(key)
                seen.add(key)

        json.loads(body, object_pairs_hook=note)
    except (ValueError, RecursionError):
        return None  # not JSON at all: that is found elsewhere
    return found[0] if found else None


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()


def _looks_like(body: bytes) -> str:
    if body[:2] == b"\x1f\x8b":
        return "; it looks like gzip: use CompressedCodec"
    if body[:4] == b"\x28\xb5\x2f\xfd":
        return "; it looks like zstd: use CompressedCodec"
    if body[0] in (0xDE, 0xDF) or 0x80 <= body[0] <= 0x8F:
        return "; it looks like MessagePack: use MessagePackCodec"
    return ""
