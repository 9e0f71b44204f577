"""Requests and replies as they travel: plain JSON, and a form of their own for errors.

Services in other languages read and write the same. An error reply is an object whose only key is
``error``, which has a ``code`` and a ``message``, perhaps ``details``, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from matador.errors import ConfigurationError, InvalidMessageError, RemoteError
from matador.model.message import Delivery
from matador.model.text import SHORT_TEXT, error_text, storable_text

CORRELATION_ID = "x-matador-correlation-id"
"""The header with the caller's correlation id, if another request has used it before: then the
request has one of its own, by which its reply is found."""

_parse = msgspec.json.Decoder().decode
_encode = msgspec.json.encode
_OF_ERROR = frozenset({"code", "message", "details"})


def command_name(command: object, where: str) -> str:
    """A command as it is written on the wire: in upper case.

    Raises:
        ConfigurationError: it is empty, or not text.
    """
    if not isinstance(command, str) or not command.strip():
        raise ConfigurationError(f"{where}: a command must be a non-empty text, got {command!r}")
    return command.upper()


def error_reply(code: str, message: str, details: object = None) -> bytes:
    """The body of an error reply. Details that cannot be written as JSON are left out."""
    error: dict[str, object] = {"code": storable_text(code), "message": storable_text(message)}
    if details is not None:
        try:
            return _encode({"error": {**error, "details": details}})
        except Exception:  # noqa: BLE001 - whatever they are, the rest must arrive
            return _encode({"error": error})
    return _encode({"error": error})


def read_reply(delivery: Delivery, decode: Callable[[bytes], Any] | None, command: str) -> Any:
    """The result in a reply.

    Args:
        delivery: the reply.
        decode: reads the result in the type that the caller wants; None: plain data.
        command: for errors.

    Raises:
        RemoteError: it is an error reply.
        InvalidMessageError: it cannot be read, or the result is not of that type.
    """
    body = delivery.body
    try:
        if delivery.problem is not None:
            raise ValueError(delivery.problem)
        if decode is not None and b'"error"' not in body:
            return decode(body)
        found = _parse(body)
        error = _error_in(found)
        if error is None:
            return found if decode is None else decode(body)
    except Exception as cause:  # a validator of the user's may raise anything
        excerpt = str(body[:100], "utf-8", "replace")
        raise InvalidMessageError(
            f"the reply to {command} cannot be read ({error_text(cause, SHORT_TEXT)}): {excerpt}"
        ) from cause
    raise error


def _error_in(found: Any) -> RemoteError | None:
    if not isinstance(found, dict) or len(cast("dict[str, Any]", found)) != 1:
        return None
    error = cast("dict[str, Any]", found).get("error")
    if not isinstance(error, dict):
        return None
    fields = cast("dict[str, Any]", error)
    code, message = fields.get("code"), fields.get("message")
    if not isinstance(code, str) or not isinstance(message, str) or not fields.keys() <= _OF_ERROR:
        return None
    return RemoteError(code, message, fields.get("details"))
