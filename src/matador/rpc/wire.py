"""The wire format of requests and replies: plain JSON, and a special form for errors.

Services in other languages use the same format. An error reply is an object whose only key is
``error``, which has a ``code`` and a ``message``, perhaps ``details``, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from matador.errors import ConfigurationError, InvalidMessageError, RemoteError
from matador.model.message import Delivery
from matador.model.text import BOM, SHORT_TEXT, error_text, storable_text

CORRELATION_ID = "x-matador-correlation-id"
"""The header with the caller's correlation id, if another request has used it before. The request
then has a new correlation id, which identifies its reply."""

_parse = msgspec.json.Decoder().decode


class _Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    code: str
    message: str
    details: Any = None


class _ErrorReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    error: _Error


_parse_error = msgspec.json.Decoder(_ErrorReply).decode


def non_empty(text: object, what: str) -> str:
    """Check a text argument.

    Raises:
        ConfigurationError: it is empty, or not text.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{what} must be a non-empty text, got {text!r}")
    return text


def command_name(command: object, where: str) -> str:
    """A command as it is written on the wire: in upper case.

    Raises:
        ConfigurationError: it is empty, or not text.
    """
    return non_empty(command, f"{where}: a command").upper()


def error_reply(code: str, message: str, details: object = None) -> bytes:
    """The body of an error reply. Details that cannot be written as JSON are left out."""
    # A user's RemoteError may have anything as its code and message.
    code, message = storable_text(str(code)), storable_text(str(message))
    try:
        return msgspec.json.encode(_ErrorReply(_Error(code, message, details)))
    except Exception:  # noqa: BLE001 - unencodable details must not prevent the reply
        return msgspec.json.encode(_ErrorReply(_Error(code, message)))


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
    body = delivery.body.removeprefix(BOM)
    if b'"error"' in body and delivery.problem is None and (found := _error_in(body)) is not None:
        raise RemoteError(found.code, found.message, found.details)
    try:
        if delivery.problem is not None:
            raise ValueError(delivery.problem)
        return _parse(body) if decode is None else decode(body)
    except Exception as cause:  # a user's validator may raise anything
        excerpt = str(body[:100], "utf-8", "replace")
        raise InvalidMessageError(
            f"the reply to {command} cannot be read ({error_text(cause, SHORT_TEXT)}): {excerpt}"
        ) from cause


def _error_in(body: bytes) -> _Error | None:
    try:
        return _parse_error(body).error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
