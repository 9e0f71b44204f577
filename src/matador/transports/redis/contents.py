"""A message as one string, for lists and for pub/sub: a line of JSON about it, then the body."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec

from matador.model.message import REASON_HEADER, DeadLetter, Headers, Message
from matador.model.text import SHORT_TEXT, storable_text

_NO_HEADERS: Headers = {}
_ELEMENT = re.compile(rb"([0-9]{1,16}):([0-9]{1,9}):")


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


def letter_of(letter: DeadLetter, raw: Message) -> bytes:
    """A dead letter as one string; ``raw`` is the message as it was received.

    Raises:
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
    """
    if letter.bare:
        short = storable_text(letter.reason, SHORT_TEXT)
        return content_of(Message("", raw.queue, raw.body), reason=short)
    return content_of(letter.message or raw, reason=letter.reason)


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


class Element(NamedTuple):
    """An element of a list, taken apart.

    ``name`` is the place, a number that is never used twice. One of other origin has none: its name
    is made of its bytes, as ``list_common.lua`` does, and all of it is content.
    """

    name: str
    deliveries: int
    content: bytes


def element_of(element: bytes) -> Element:
    """Take an element apart, whoever wrote it."""
    found = _ELEMENT.match(element)
    if found is None:
        digest = hashlib.sha1(element, usedforsecurity=False).hexdigest()
        return Element(f"9{int(digest[:12], 16):015d}", 0, element)
    place, count = found.groups()
    return Element(place.decode(), int(count), element[found.end() :])
