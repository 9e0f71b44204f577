"""Payloads of all five kinds to bytes and back, one precompiled pair of functions a type.

msgspec reads and writes dataclasses, structs, attrs classes and TypedDicts itself; pydantic models
bring their own validator, which is used without importing pydantic here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from matador.errors import InvalidEventError
from matador.model.event import EventType

Format: TypeAlias = Literal["json", "msgpack"]


class PayloadFormat:
    """Encodes and decodes payloads in one format; makes what it needs for a type once."""

    __slots__ = ("_decoders", "_encode", "_format")

    def __init__(self, format: Format) -> None:
        self._format: Format = format
        self._encode: Callable[[Any], bytes] = (
            msgspec.json.Encoder().encode if format == "json" else msgspec.msgpack.Encoder().encode
        )
        self._decoders: dict[type[Any], Callable[[Any], Any]] = {}

    def encode(self, event: EventType, payload: Any) -> msgspec.Raw:
        """A payload, or plain data of its shape, as bytes, checked against the type.

        Raises:
            InvalidEventError: it does not fit; the field is named.
        """
        try:
            if hasattr(payload, "__pydantic_serializer__"):
                encoded = self._encode_pydantic(payload)
            else:
                encoded = self._encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            # UnicodeEncodeError and msgspec's own errors are ValueErrors.
            raise InvalidEventError(f"event {event.key!r}: {error}") from error
        raw = msgspec.Raw(encoded)
        self.decode(event, raw)  # the sender learns of a wrong field, not the worker hours later
        return raw

    def decode(self, event: EventType, raw: msgspec.Raw) -> Any:
        """Bytes as a payload of the event's type.

        Raises:
            InvalidEventError: they do not fit; the field is named.
        """
        decoder = self._decoders.get(event.payload)
        if decoder is None:
            decoder = self._decoders[event.payload] = self._decoder(event)
        try:
            return decoder(raw)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidEventError(f"event {event.key!r}: {_readable(error)}") from error

    def _encode_pydantic(self, payload: Any) -> bytes:
        serializer = payload.__pydantic_serializer__
        if self._format == "json":
            return serializer.to_json(payload, by_alias=True)
        return self._encode(serializer.to_python(payload, mode="json", by_alias=True))

    def _decoder(self, event: EventType) -> Callable[[Any], Any]:
        payload = event.payload
        validator = getattr(payload, "__pydantic_validator__", None)
        if validator is not None:
            if self._format == "json":
                return lambda raw: validator.validate_json(bytes(raw))
            return lambda raw: validator.validate_python(msgspec.msgpack.decode(raw))
        try:
            if self._format == "json":
                return msgspec.json.Decoder(payload).decode
            return msgspec.msgpack.Decoder(payload).decode
        except (TypeError, NameError) as error:
            raise InvalidEventError(
                f"event {event.key!r}: {payload.__name__} cannot be used as a payload type: {error}"
            ) from error


def _readable(error: Exception) -> str:
    """A validation error in a line that names the field. Values are left out: they may be secret."""
    errors = getattr(error, "errors", None)
    if not callable(errors):  # msgspec's: "Expected `int`, got `str` - at `$.amount`"
        return str(error)
    found: Any = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(
        f"{one['msg']} - at `$.{'.'.join(str(step) for step in one['loc'])}`" for one in found
    )
