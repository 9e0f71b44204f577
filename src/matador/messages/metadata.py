"""The headers that a user may add to a plain message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from matador.errors import InvalidMessageError
from matador.model.message import Headers

RESERVED = ("x-retry", "x-hermes", "x-matador", "x-first-failure", "x-death")
"""How headers begin that are not the user's. They are left out without a word: metadata is often
that of a message that was received."""

_NONE: Headers = {}


def headers_of(metadata: Mapping[str, str | int] | None, where: str) -> Headers:
    """The metadata of a message as its headers, without those that are reserved.

    Raises:
        InvalidMessageError: it is no mapping of names to texts and whole numbers.
    """
    if not metadata:
        return _NONE
    if not isinstance(metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise InvalidMessageError(f"{where}: metadata must be a mapping, got {metadata!r}")
    headers: dict[str, str | int] = {}
    for name, value in cast("Mapping[Any, Any]", metadata).items():
        if not isinstance(name, str) or not name:
            raise InvalidMessageError(f"{where}: metadata has the name {name!r}; use a text")
        if not isinstance(value, str | int):
            raise InvalidMessageError(
                f"{where}: metadata {name!r} must be a text or a whole number, got {value!r}"
            )
        if not name.lower().startswith(RESERVED):
            headers[name] = value
    return headers
