"""Any payload as JSON, whatever the codec of the application: for records and for people."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def as_json(payload: Any) -> bytes:
    """A payload of any of the five kinds, or plain data, as JSON. Not checked against its type.

    Raises:
        TypeError: something in it cannot be written as JSON.
    """
    serializer = getattr(payload, "__pydantic_serializer__", None)
    if serializer is not None:
        return serializer.to_json(payload, by_alias=True, round_trip=True, warnings=False)
    return _encode(payload)
