"""Encodes and decodes payloads of all five kinds, with precompiled functions for each type.

msgspec supports dataclasses, structs, attrs classes and TypedDicts. Pydantic models have their own
validator, which is used without importing pydantic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from matador.codec.base import PayloadDecoder, PayloadEncoder
from matador.codec.json_text import (
    duplicate_key,
    find_duplicate_key,
    written_surrogate,
)
from matador.codec.plain import (
    has_raw_parts,
    has_room_for_null,
    lost_as_text,
    lost_in_msgpack,
    may_have_keys,
    not_finite,
    not_finite_in,
    same_key,
)
from matador.errors import AmbiguousPayloadError, InvalidEventError
from matador.model.event import EventType
from matador.model.text import storable_text

Format: TypeAlias = Literal["json", "msgpack"]

_LONGEST_PROBLEM = 1000


class _Coder(NamedTuple):
    """How payloads of one type are encoded and decoded.

    Attributes:
        lost: describes the part of a payload that cannot be encoded. May raise like ``encode``.
        loses: encoding may lose such a part without an error, and decoding may not detect it.
        keys: mappings may have different keys with the same text, such as 1 and ``"1"`` in JSON.
        clash: describes such keys, given the payload, its bytes and the decoded payload.
        again: encodes a decoded payload, usually to the same bytes; None if that is not so.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[Any], Any]
    lost: Callable[[Any], str | None]
    loses: bool = False
    keys: bool = False
    clash: Callable[[Any, bytes, Any], str | None] = lambda payload, encoded, read: None
    again: Callable[[Any], bytes] | None = None


def _clash_in_json(
    encode: Callable[[Any], bytes] | None,
) -> Callable[[Any, bytes, Any], str | None]:
    """Uses ``encode`` to encode the payload again, which is much faster than a search."""

    def clash(payload: Any, encoded: bytes, read: Any) -> str | None:
        if encode is not None and encode(read) == encoded:
            return None  # nothing was lost, so there is no duplicate key
        twice = find_duplicate_key(encoded)
        return None if twice is None else same_key(twice)

    return clash


class PayloadCodec:
    """The part of a codec for payloads. Prepares its functions once for each type.

    With ``check_sends`` (the default), a payload is decoded again after encoding, so that the
    sender gets the error for an invalid field; without it, the worker does, later.
    """

    __slots__ = ("_check", "_decoders", "_encoders", "_format")

    def __init__(self, format: Format, *, check_sends: bool = True) -> None:
        self._format: Format = format
        self._check = check_sends
        self._encoders: dict[type[Any], PayloadEncoder] = {}
        self._decoders: dict[type[Any], PayloadDecoder] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Prepared functions cannot be pickled; the other process prepares them again.
        if type(self) is PayloadCodec:
            return partial(PayloadCodec, self._format, check_sends=self._check), ()
        return partial(type(self), check_sends=self._check), ()

    def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
        """Takes a payload, or plain data of its shape."""
        return (self._encoders.get(event.payload) or self.payload_encoder(event))(payload)

    def decode_payload(self, event: EventType, raw: msgspec.Raw) -> Any:
        return (self._decoders.get(event.payload) or self.payload_decoder(event))(raw)

    def payload_encoder(self, event: EventType) -> PayloadEncoder:
        encode, decode, lost, loses, keys, clash, _ = self._coder(event)

        def unchecked(payload: Any) -> msgspec.Raw:
            try:
                return msgspec.Raw(encode(payload))
            except Exception as error:  # users' serializers may raise anything
                raise _invalid(event, error, _why(error, lost, payload)) from error

        def checked(payload: Any) -> msgspec.Raw:
            try:
                encoded = encode(payload)
            except Exception as error:
                raise _invalid(event, error, _why(error, lost, payload)) from error
            try:
                read = decode(encoded)
            except Exception as error:  # noqa: BLE001 - see payload_decoder
                raise _invalid(event, error, lost(payload)) from _cause(error)
            if loses and encoded.find(b"null") >= 0 and (what := lost(payload)) is not None:
                raise InvalidEventError(f"event {event.key!r}: {what}")
            if keys or type(payload) is dict:
                what = clash(payload, encoded, read)
                if what is not None:
                    raise InvalidEventError(f"event {event.key!r}: {what}")
            return msgspec.Raw(encoded)

        encoder = self._encoders[event.payload] = checked if self._check else unchecked
        return encoder

    def payload_decoder(self, event: EventType) -> PayloadDecoder:
        coder = self._coder(event)
        decode, again = coder.decode, coder.again
        json = self._format == "json"

        def decoder(raw: msgspec.Raw) -> Any:
            try:
                payload = decode(raw)
                if not json or (again is not None and again(payload) == bytes(raw)):
                    return payload  # it encodes to the same bytes: no duplicate keys
            except Exception as error:  # noqa: BLE001 - users' validators may raise anything
                raise _invalid(event, error) from _cause(error)
            twice = find_duplicate_key(bytes(raw))
            if twice is not None:
                raise AmbiguousPayloadError(duplicate_key(twice))
            return payload

        self._decoders[event.payload] = decoder
        return decoder

    def _coder(self, event: EventType) -> _Coder:
        payload = event.payload
        try:
            if hasattr(payload, "__pydantic_validator__"):
                coder = _pydantic_coder(payload, self._format)
            elif self._format == "json":
                encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(payload).decode
                again = None if has_raw_parts(payload) else encode
                coder = _Coder(
                    encode,
                    decode,
                    not_finite,
                    has_room_for_null(payload),
                    may_have_keys(payload),
                    _clash_in_json(again),
                    again,
                )
            else:
                encode = msgspec.msgpack.Encoder().encode
                coder = _Coder(encode, msgspec.msgpack.Decoder(payload).decode, lost_in_msgpack)
        except (TypeError, NameError) as error:
            raise InvalidEventError(
                f"event {event.key!r}: {payload.__name__} cannot be used as a payload type: {error}"
            ) from error
        return coder


def _pydantic_coder(model: type[Any], format: Format) -> _Coder:
    validator: Any = model.__pydantic_validator__
    # Invalid values are found by decoding, so pydantic need not warn. Computed fields are left out,
    # because they could not be decoded.
    options: dict[str, Any] = {"by_alias": True, "round_trip": True, "warnings": False}

    def plain(payload: Any, mode: str) -> Any:
        if not isinstance(payload, model):
            return payload  # plain data of its shape
        return payload.__pydantic_serializer__.to_python(payload, mode=mode, **options)

    if format == "msgpack":
        pack, unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode

        def to_msgpack(payload: Any) -> bytes:
            return pack(plain(payload, "json"))

        def from_msgpack(raw: Any) -> Any:
            return validator.validate_python(unpack(raw))

        def lost_of_it(payload: Any) -> str | None:
            return lost_in_msgpack(plain(payload, "json"))

        def clash(payload: Any, encoded: bytes, read: Any) -> str | None:
            if read == payload or not isinstance(payload, model):
                return None
            return lost_as_text(plain(payload, "python"))  # pydantic converts keys to text

        return _Coder(to_msgpack, from_msgpack, lost_of_it, keys=True, clash=clash)

    write, check = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode

    def to_json(payload: Any) -> bytes:
        if not isinstance(payload, model):
            return write(payload)
        encoded = payload.__pydantic_serializer__.to_json(payload, **options)
        if encoded.find(b"NaN") >= 0 or encoded.find(b"Infinity") >= 0:
            try:  # pydantic can be configured to write these, which are not JSON
                check(encoded)
            except ValueError as error:
                raise ValueError(lost(payload)) from error
        return encoded

    def from_json(raw: Any) -> Any:
        return validator.validate_json(bytes(raw))

    def lost(payload: Any) -> str | None:
        return not_finite_in(plain(payload, "python"))

    as_strings = getattr(model, "model_config", {}).get("ser_json_inf_nan") == "strings"
    return _Coder(to_json, from_json, lost, not as_strings, True, _clash_in_json(to_json))


def _invalid(event: EventType, error: Exception, lost: str | None = None) -> InvalidEventError:
    text = storable_text(lost or _readable(error), _LONGEST_PROBLEM)
    return InvalidEventError(f"event {event.key!r}: {text}")


def _why(error: Exception, lost: Callable[[Any], str | None], payload: Any) -> str | None:
    """The location of a text that cannot be encoded, if it caused the error."""
    if isinstance(error, ValueError) and "surrogates not allowed" in str(error):
        with contextlib.suppress(Exception):  # a payload that failed once may fail again
            return lost(payload)
    return None


def _cause(error: Exception) -> Exception | None:
    """None for pydantic errors, whose text contains values that may be secret."""
    return None if callable(getattr(error, "errors", None)) else error


def _readable(error: Exception) -> str:
    """An error in one line that names the field, without values, which may be secret."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        found: Any = errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(
            f"{one['msg']} - at `$.{'.'.join(str(step) for step in one['loc'])}`" for one in found
        )
    if isinstance(error, UnicodeDecodeError) and (half := written_surrogate(error.object)):
        return f"a text {half}"
    if isinstance(error, ValueError | TypeError | OverflowError | RecursionError):
        return str(error)  # msgspec's: "Expected `int`, got `str` - at `$.amount`"
    return f"{type(error).__name__}: {error}"
