"""A message as one string, for lists and for pub/sub: a line of JSON about it, then the body."""

from __future__ import annotations

import msgspec

from matador.model.message import REASON_HEADER, Headers, Message

_NO_HEADERS: Headers = {}


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
        TypeError: the headers cannot be stored.
    """
    headers = dict(message.headers)
    if reason is not None:
        headers[REASON_HEADER] = reason
    about = About(message.id, headers, message.priority, message.ordering_key)
    return _encode(about) + b"\n" + message.body


def message_of(queue: str, content: bytes) -> Message:
    """The message that a string stands for; one of other origin is a body and nothing more."""
    line, found, body = content.partition(b"\n")
    try:
        about = _decode(line) if found else None
    except msgspec.DecodeError:
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
