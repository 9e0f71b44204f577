"""The older body, still written by services that were not upgraded: read, never written.

``{key, data, metadata, universal: {event_id, user_id, correlation_id, …}, before?,
options: {delayMs}?, targetSubscriber}``
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from matador.codec.base import RawEnvelope, Stamp
from matador.errors import DecodeError
from matador.model.envelope import Docket, Importance
from matador.model.message import Headers


class _Options(msgspec.Struct, frozen=True, rename="camel"):
    delay_ms: float | None = None


_STRING = msgspec.json.Decoder(str)
_MAPPING: msgspec.json.Decoder[dict[str, Any] | None] = msgspec.json.Decoder(dict[str, Any] | None)
_OPTIONS = msgspec.json.Decoder(_Options | None)
_IMPORTANCE = msgspec.json.Decoder(Importance)


def is_older_body(fields: Mapping[str, msgspec.Raw]) -> bool:
    """Is it one? Strings ``key`` and ``targetSubscriber``, and ``data``, but no ``payload``."""
    return (
        "data" in fields
        and "payload" not in fields
        and _is_string(fields.get("key"))
        and _is_string(fields.get("targetSubscriber"))
    )


def read_older_body(
    fields: Mapping[str, msgspec.Raw], headers: Headers, stamp: Stamp
) -> RawEnvelope:
    """The older body as an envelope of today.

    Raises:
        DecodeError: a field that is there has the wrong type.
    """
    try:
        key = _STRING.decode(fields["key"])
        target = _STRING.decode(fields["targetSubscriber"])
        universal = _mapping(fields.get("universal"))
        metadata = _mapping(fields.get("metadata"))
        options = _OPTIONS.decode(fields.get("options", _NULL))
        importance = _importance(headers)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"an older body with a wrong field: {error}") from error
    now = stamp.now()
    event_id = universal.pop("event_id", None)
    user_id = universal.pop("user_id", None)
    correlation = universal.pop("correlation_id", None)
    if user_id is not None:
        metadata["user_id"] = user_id
    metadata.update(universal)
    before = fields.get("before")
    delay = options.delay_ms if options else None
    return RawEnvelope(
        id=_text(headers.get("x-event-id")) or _text(event_id) or stamp.new_id(),
        data=fields["data"],
        before=None if before is None or bytes(before) == b"null" else before,
        docket=Docket(
            event_key=key,
            target_subscriber=target,
            created_at=now,
            attempts=_attempts(headers),
            importance=importance,
            scheduled_for=None if delay is None else now + timedelta(milliseconds=delay),
            correlation_id=_text(headers.get("x-matador-correlation-id"))
            or _text(headers.get("x-correlation-id"))
            or _text(correlation),
            metadata=metadata,
        ),
    )


_NULL = msgspec.Raw(b"null")


def _mapping(raw: msgspec.Raw | None) -> dict[str, Any]:
    found: dict[str, Any] | None = None if raw is None else _MAPPING.decode(raw)
    return found or {}


def _is_string(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw).startswith(b'"')


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _attempts(headers: Headers) -> int:
    try:
        return max(1, int(headers.get("x-matador-attempts", 1)))
    except ValueError:
        return 1


def _importance(headers: Headers) -> Importance:
    given = headers.get("x-matador-importance")
    return (
        "should-investigate"
        if given is None
        else _IMPORTANCE.decode(msgspec.json.encode(str(given)))
    )
