"""Plain data as JSON, in the type that a handler names: all five kinds of payload classes.

For jobs and plain messages. Events have a codec of their own, with an envelope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from matador.codec.plain import not_finite_in
from matador.errors import MatadorError


def _to_plain(value: Any) -> Any:
    """Encode types that msgspec does not support: pydantic models, with their own serializer."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise NotImplementedError(f"objects of type {type(value).__name__} cannot be written as JSON")


def _from_plain(kind: type[Any], value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise NotImplementedError(f"{kind.__name__} cannot be read from JSON")


_encode = msgspec.json.Encoder(enc_hook=_to_plain).encode


def encode_data(value: Any, where: str, error: type[MatadorError]) -> bytes:
    """A value as JSON.

    Raises:
        MatadorError: an ``error``: the value cannot be encoded, or would be decoded differently.
    """
    try:
        encoded = _encode(value)
        odd = None
        if b"null" in encoded:
            odd = not_finite_in(msgspec.to_builtins(value, enc_hook=_to_plain))
    except Exception as cause:  # a serializer of the user's may raise anything
        raise error(f"{where} cannot be written as JSON: {cause}") from cause
    if odd is not None:
        raise error(f"{where} cannot be written as JSON: {odd}")
    return encoded


def data_decoder(kind: Any, where: str, error: type[MatadorError]) -> Callable[[bytes], Any]:
    """A function that reads JSON into a type.

    Raises:
        MatadorError: an ``error``: the type cannot be decoded.
    """
    try:
        wanted = Any if kind is object else kind  # both mean plain data
        return msgspec.json.Decoder(wanted, dec_hook=_from_plain).decode
    except TypeError as cause:
        raise error(f"{where}: {kind!r} cannot be read from JSON: {cause}") from cause
