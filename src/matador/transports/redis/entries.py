"""A message as the fields of a stream entry, and back.

Fields: ``i`` id, ``b`` body; and only if there is something to say ``h`` headers (JSON), ``p``
priority, ``k`` ordering key, ``r`` why it is a dead letter. ``f``: all fields of a foreign entry
that had more than a script can store.

Anybody may write entries: reading them never fails. What cannot be read is left out and noted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

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

log = logging.getLogger("matador.transports.redis")

_NO_HEADERS: Headers = {}
_PLAIN = 4  # values in an entry of id and body only
_OURS = (b"i", b"b", b"h", b"p", b"k", b"r")

Read = TypeVar("Read")

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
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
    """
    fields: list[Argument] = ["i", message.id.encode(), "b", message.body]
    if message.headers:
        fields += ("h", _encode_headers(message.headers))
    if message.priority is not None:
        fields += ("p", message.priority)
    if message.ordering_key is not None:
        fields += ("k", message.ordering_key.encode())
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
        if len(fields) == _PLAIN and fields[0] == b"i" and fields[2] == b"b":
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
    count = max(1, claim - uncounted)
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    try:  # what is in order, as quickly as it goes
        if 2 * len(values) == len(fields):
            get = values.get
            given, reason, priority, key = get(b"h"), get(b"r"), get(b"p"), get(b"k")
            headers = _NO_HEADERS if given is None else _decode_headers(given)
            if reason is not None:
                headers = {**headers, REASON_HEADER: reason.decode()}
            level = None if priority is None else int(priority)
            order = None if key is None else key.decode()
            receipt = Receipt(lane.queue, (lane, id_, claim), count, count > 1, level, order)
            return Delivery(values[b"b"], headers, receipt)
    except Exception as error:  # noqa: BLE001 - whatever it is: somebody else wrote it
        log.debug("%s: entry %r: %s", lane.key, id_, error)
    read = _read(fields)
    receipt = Receipt(
        lane.queue, (lane, id_, claim), count, count > 1, read.priority, read.ordering_key
    )
    return Delivery(read.body, read.headers, receipt, read.problem)


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
    read = _read(fields)
    return StoredMessage(
        position=position,
        id=read.id,
        queue=queue,
        body=read.body,
        headers=read.headers,
        state=state,
        stored_at=None if stored_at is None else moment(stored_at),
        due_at=None if due_at is None else moment(due_at),
        delivery_count=max(0, delivery_count),
        priority=read.priority,
        ordering_key=read.ordering_key,
    )


class _Entry(NamedTuple):
    """What could be read of an entry, and what could not."""

    id: str
    body: bytes
    headers: Headers
    priority: int | None
    ordering_key: str | None
    problem: str | None


def _read(fields: Sequence[bytes]) -> _Entry:
    """Whatever can be read of an entry, and what cannot."""
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    problems: list[str] = []
    if len(fields) != 2 * len(values):
        names = fields[::2]
        problems += [f"field {n.decode()!r} is there twice" for n in _OURS if names.count(n) > 1]
    if b"b" not in values:
        problems.append("field 'b', the body, is missing")

    def part(name: bytes, read: Callable[[bytes], Read]) -> Read | None:
        value = values.get(name)
        if value is None:
            return None
        try:
            return read(value)
        except Exception as error:  # noqa: BLE001 - whatever it is: somebody else wrote it
            problems.append(f"field {name.decode()!r}: {type(error).__name__}: {error}"[:200])
            return None

    headers = part(b"h", _decode_headers) or _NO_HEADERS
    reason = part(b"r", bytes.decode)
    return _Entry(
        id=values.get(b"i", b"").decode(errors="replace"),
        body=values.get(b"b", b""),
        headers=headers if reason is None else {**headers, REASON_HEADER: reason},
        priority=part(b"p", int),
        ordering_key=part(b"k", bytes.decode),
        problem="; ".join(problems) or None,
    )


def moment(milliseconds: float) -> datetime | None:
    """A time since 1970; None if it is beyond all calendars."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
