"""The older format, still written by services that have not been upgraded. Read, never written.

``{key, data, metadata, universal: {event_id, user_id, correlation_id, …}, before?,
options: {delayMs}?, targetSubscriber}``
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from matador.codec.base import RawEnvelope, Stamp
from matador.codec.wire import importance_of, none_if, readable_text
from matador.errors import DecodeError
from matador.model.envelope import MOST_ATTEMPTS, Docket, Envelope
from matador.model.message import Headers


class _Options(msgspec.Struct, frozen=True, rename="camel"):
    delay_ms: float | None = None


_STRING = msgspec.json.Decoder(str)
_MAPPING: msgspec.json.Decoder[dict[str, Any] | None] = msgspec.json.Decoder(dict[str, Any] | None)
_OPTIONS = msgspec.json.Decoder(_Options | None)


def is_older_body(fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether it has strings ``key`` and ``targetSubscriber``, and ``data``, but no ``payload``."""
    return (
        "data" in fields
        and "payload" not in fields
        and _is_string(fields.get("key"))
        and _is_string(fields.get("targetSubscriber"))
    )


def read_older_body(
    fields: Mapping[str, msgspec.Raw], headers: Headers, stamp: Stamp
) -> RawEnvelope:
    """Convert the older format to an envelope.

    Raises:
        DecodeError: a field has the wrong type.
    """
    try:
        key = _STRING.decode(fields["key"])
        target = _STRING.decode(fields["targetSubscriber"])
        if not key or not target:
            raise ValueError("`key` and `targetSubscriber` must not be empty")
        universal = _mapping(fields.get("universal"))
        metadata = _mapping(fields.get("metadata"))
        options = _OPTIONS.decode(fields.get("options", _NULL))
        now = stamp.now()
        scheduled = _later(now, options)
        event_id = _text(universal.pop("event_id", None), "universal.event_id")
        correlation = _text(universal.pop("correlation_id", None), "universal.correlation_id")
    except (ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"invalid field in a body of the older format: {error}") from error
    user_id = universal.pop("user_id", None)
    if user_id is not None:
        metadata["user_id"] = user_id
    metadata.update(universal)
    return Envelope(
        id=readable_text(headers.get("x-event-id")) or event_id or stamp.new_id(),
        data=fields["data"],
        before=none_if(fields.get("before"), b"null"),
        docket=Docket(
            event_key=key,
            target_subscriber=target,
            created_at=now,
            attempts=_attempts(headers),
            importance=importance_of(headers.get("x-matador-importance", "should-investigate")),
            scheduled_for=scheduled,
            correlation_id=readable_text(headers.get("x-matador-correlation-id"))
            or readable_text(headers.get("x-correlation-id"))
            or correlation,
            metadata=metadata,
        ),
    )


_NULL = msgspec.Raw(b"null")


def _mapping(raw: msgspec.Raw | None) -> dict[str, Any]:
    found: dict[str, Any] | None = None if raw is None else _MAPPING.decode(raw)
    return found or {}


def _is_string(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw).startswith(b'"')


def _text(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"`{where}` is neither text nor a number")


def _later(now: datetime, options: _Options | None) -> datetime | None:
    if options is None or options.delay_ms is None:
        return None
    return now + timedelta(milliseconds=options.delay_ms)


def _attempts(headers: Headers) -> int:
    try:
        return min(max(1, int(headers.get("x-matador-attempts", 1))), MOST_ATTEMPTS)
    except (TypeError, ValueError, OverflowError):
        return 1
