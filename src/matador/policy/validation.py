"""Validation of plain messages, before anything is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import msgspec

from matador.model.options import one_of, whole_number

Malformed: TypeAlias = Literal["dead-letter", "reject", "ignore"]
"""What happens to a message that cannot be read. ``dead-letter`` and ``reject``: it is not
requeued, but kept unchanged among the dead letters, or deleted with an error in the log if they are
disabled. ``ignore``: it is deleted."""

MAX_SIZE = 1024 * 1024
_EXCERPT = 100


@dataclass(frozen=True, slots=True)
class Validation:
    """The requirements for an incoming message.

    Args:
        max_size: the largest body in bytes.
        malformed: what happens to a message that is too large, not valid JSON, or not of the type
            that its handler takes.
        null: whether the body may be ``null``. None: it may for RPC, whose calls need no data.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> Validation().problem_of(b'{"id": 1')
        'not valid JSON (Input data was truncated): {"id": 1'
    """

    max_size: int = MAX_SIZE
    malformed: Malformed = "dead-letter"
    null: bool | None = None

    def __post_init__(self) -> None:
        whole_number(self.max_size, "Validation: max_size", minimum=1)
        one_of(self.malformed, "Validation: malformed", get_args(Malformed))

    def problem_of(self, body: bytes) -> str | None:
        """The problem of a body; None if it may be decoded. Never raises an error.

        Example:
            >>> Validation().problem_of(b"")
            'the body is empty'
        """
        if len(body) > self.max_size:
            return f"{len(body)} bytes, but at most {self.max_size} are allowed"
        if not body:
            return "the body is empty"
        if b"\0" in body:
            return f"the body has NUL bytes: {_excerpt(body)}"
        try:
            found = _parse(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return f"not valid JSON ({error}): {_excerpt(body)}"
        if found is None and not self.null:
            return "the body is null"
        return None


_parse = msgspec.json.Decoder().decode


def _excerpt(body: bytes) -> str:
    return body[:_EXCERPT].decode("utf-8", "replace")
