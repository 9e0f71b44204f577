"""A message as the fields of a stream entry, and back.

Fields: ``i`` id, ``b`` body; and only if there is something to say ``h`` headers (JSON), ``p``
priority, ``k`` ordering key, ``r`` why it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from matador.model.message import (
    REASON_HEADER,
    Delivery,
    Headers,
    Message,
    MessageState,
    Receipt,
    StoredMessage,
)
from matador.transports.redis.channel import Argument

_NO_HEADERS: Headers = {}
_PLAIN = 4  # values in an entry of id and body only

_encode_headers = msgspec.json.Encoder().encode
_decode_headers = msgspec.json.Decoder(dict[str, str | int]).decode


class Lane:
    """One stream of a queue, as one consumer sees it. Told apart by identity."""

    __slots__ = ("base", "consumer", "held", "key", "name", "queue")

    def __init__(self, queue: str, base: str, name: str, consumer: str) -> None:
        self.queue = queue
        self.base = base
        self.name = name
        self.key = f"{base}:{name}"
        self.consumer = consumer
        self.held: set[bytes] = set()
        """The ids of entries that were handed over and are not settled yet."""


Hold: TypeAlias = tuple[Lane, bytes, int]
"""The handle of a delivery: which entry, and by which claim of it. Plain: made once a message."""


def is_plain(message: Message) -> bool:
    """Has the message nothing but an id and a body?"""
    return (
        not message.headers
        and message.delay <= 0
        and message.priority is None
        and message.ordering_key is None
    )


def fields_of(message: Message) -> list[Argument]:
    """The fields of a message.

    Raises:
        TypeError: the headers cannot be stored.
    """
    fields: list[Argument] = ["i", message.id, "b", message.body]
    if message.headers:
        fields += ("h", _encode_headers(message.headers))
    if message.priority is not None:
        fields += ("p", message.priority)
    if message.ordering_key is not None:
        fields += ("k", message.ordering_key)
    return fields


def milliseconds(delay: float) -> int:
    """A delay as the scripts want it: never shorter, and one more as their clock is rounded."""
    return 0 if delay <= 0 else int(delay * 1000) + 1


def deliveries_of(lane: Lane, entries: Sequence[tuple[bytes, list[bytes]]]) -> list[Delivery]:
    """What is new to everybody: first deliveries."""
    queue, held = lane.queue, lane.held
    found: list[Delivery] = []
    for id_, fields in entries:
        held.add(id_)
        if len(fields) == _PLAIN:
            receipt = Receipt(queue, (lane, id_, 1))
            found.append(Delivery(fields[3], _NO_HEADERS, receipt))
        else:
            found.append(_delivery(lane, id_, fields, 1, 0))
    return found


def claimed_of(lane: Lane, row: Sequence[Any]) -> Delivery:
    """What was delivered before: a row of the scripts ``claim`` and ``take``."""
    _, id_, fields, claim, uncounted = row
    lane.held.add(id_)
    return _delivery(lane, id_, fields, claim, uncounted)


def _delivery(
    lane: Lane, id_: bytes, fields: Sequence[bytes], claim: int, uncounted: int
) -> Delivery:
    values = _values(fields)
    count = max(1, claim - uncounted)
    return Delivery(
        values.get(b"b", b""),
        _headers(values),
        Receipt(lane.queue, (lane, id_, claim), count, count > 1, _priority(values), _key(values)),
    )


def stored_of(
    queue: str,
    position: str,
    fields: Sequence[bytes],
    state: MessageState,
    *,
    stored_at: int | None = None,
    due_at: int | None = None,
    delivery_count: int = 0,
) -> StoredMessage:
    """A message that is looked at. Times in milliseconds."""
    values = _values(fields)
    return StoredMessage(
        position=position,
        id=values.get(b"i", b"").decode(),
        queue=queue,
        body=values.get(b"b", b""),
        headers=_headers(values),
        state=state,
        stored_at=None if stored_at is None else _datetime(stored_at),
        due_at=None if due_at is None else _datetime(due_at),
        delivery_count=delivery_count,
        priority=_priority(values),
        ordering_key=_key(values),
    )


def _values(fields: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(fields[::2], fields[1::2], strict=True))


def _headers(values: dict[bytes, bytes]) -> Headers:
    stored, reason = values.get(b"h"), values.get(b"r")
    headers = _NO_HEADERS if stored is None else _decode_headers(stored)
    return headers if reason is None else {**headers, REASON_HEADER: reason.decode()}


def _priority(values: dict[bytes, bytes]) -> int | None:
    given = values.get(b"p")
    return None if given is None else int(given)


def _key(values: dict[bytes, bytes]) -> str | None:
    given = values.get(b"k")
    return None if given is None else given.decode()


def _datetime(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
