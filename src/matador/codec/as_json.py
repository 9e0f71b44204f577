"""Encodes payloads as JSON, independent of the application's codec: for records and for display."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def as_json(payload: Any) -> bytes:
    """Encode a payload of any supported type, or plain data, as JSON, without validation.

    Raises:
        TypeError: part of it cannot be encoded.
    """
    serializer = getattr(payload, "__pydantic_serializer__", None)
    if serializer is not None:
        return serializer.to_json(payload, by_alias=True, round_trip=True, warnings=False)
    return _encode(payload)
