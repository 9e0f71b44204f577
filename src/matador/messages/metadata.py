"""Metadata of plain messages: what a sender adds for tracing and debugging, as headers."""

from __future__ import annotations

from collections.abc import Mapping

from matador.errors import InvalidMessageError
from matador.model.message import Headers

_RESERVED = ("x-retry", "x-hermes", "x-matador-", "x-first-failure", "x-death", "x-delivery-count")
_COPIES_TO = frozenset({"CC", "BCC"})  # RabbitMQ would send copies to other queues

_NO_HEADERS: Headers = {}


def metadata_headers(metadata: Mapping[str, object] | None, where: str) -> Headers:
    """The headers for metadata, without the names that brokers and Matador use themselves.

    Raises:
        InvalidMessageError: a value is neither text nor a number.
    """
    if not metadata:
        return _NO_HEADERS
    headers: dict[str, str | int] = {}
    for name, value in metadata.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise InvalidMessageError(f"{where}: names of metadata must be text, got {name!r}")
        if name.lower().startswith(_RESERVED) or name in _COPIES_TO or value is None:
            continue
        if isinstance(value, str | int):
            headers[name] = value
        elif isinstance(value, float):
            headers[name] = repr(value)
        else:
            raise InvalidMessageError(
                f"{where}: metadata {name!r} must be text or a number, got {value!r}"
            )
    return headers
