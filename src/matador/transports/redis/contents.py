"""A message as one string, for lists and for pub/sub: a line of JSON about it, then the body."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from matador.model.message import REASON_HEADER, DeadLetter, Headers, Message
from matador.model.text import SHORT_TEXT, storable_text

_NO_HEADERS: Headers = {}
_PARTS, _PLACE, _COUNT = 3, 16, 9  # place:deliveries:content; digits of the numbers


class About(msgspec.Struct, omit_defaults=True, gc=False):
    """What a message is, but for its body."""

    i: str
    """The id."""
    h: dict[str, str | int] = {}
    """Headers."""
    p: int | None = None
    """The priority."""
    k: str | None = None
    """The ordering key."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(About).decode


def content_of(message: Message, *, reason: str | None = None) -> bytes:
    """A message as one string; ``reason``: it is a dead letter.

    Raises:
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
    """
    headers = dict(message.headers)
    if reason is not None:
        headers[REASON_HEADER] = reason
    about = About(message.id, headers, message.priority, message.ordering_key)
    return _encode(about) + b"\n" + message.body


def letter_of(letter: DeadLetter, received: Callable[[], Message]) -> bytes:
    """A dead letter as one string; ``received`` gives the message as it came.

    Raises:
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
    """
    if letter.bare:
        short = storable_text(letter.reason, SHORT_TEXT)
        return content_of(Message("", letter.receipt.queue, received().body), reason=short)
    return content_of(letter.message or received(), reason=letter.reason)


def message_of(queue: str, content: bytes) -> Message:
    """The message that a string stands for; one of other origin is a body and nothing more."""
    line, found, body = content.partition(b"\n")
    try:
        about = _decode(line) if found else None
    except Exception:  # noqa: BLE001 - whatever it is: somebody else wrote it
        about = None
    if about is None:
        return Message("", queue, content)
    return Message(
        id=about.i,
        queue=queue,
        body=body,
        headers=about.h or _NO_HEADERS,
        priority=about.p,
        ordering_key=about.k,
    )


def element_of(element: bytes) -> tuple[str, int, bytes]:
    """An element of a list, whoever wrote it: its name, how often it was delivered, its content.

    The name is the place, a number that is never used twice. One of other origin has none: its name
    is made of its bytes, as ``list_common.lua`` does, and all of it is content.
    """
    parts = element.split(b":", 2)
    if len(parts) == _PARTS:
        place, count, content = parts
        if place.isdigit() and count.isdigit() and len(place) <= _PLACE and len(count) <= _COUNT:
            return place.decode(), int(count), content
    digest = hashlib.sha1(element, usedforsecurity=False).hexdigest()
    return f"9{int(digest[:12], 16):015d}", 0, element
