"""Encodes messages for the server, and decodes them.

In a stream it is an entry with the fields ``i`` (id) and ``b`` (body), and where they are set ``h``
(headers, JSON), ``p`` (priority), ``k`` (ordering key) and ``r`` (why it is a dead letter). ``f``
has all fields of a foreign entry with more fields than a script can store.

In a list, and for pub/sub, it is one string: a line of JSON with the same names, then the body. An
element of a list has ``number:deliveries:`` in front of that.

Foreign programs may write entries, so reading never fails. Parts that cannot be read are left out
and reported.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

import msgspec

from matador.model.message import (
    REASON_HEADER,
    DeadLetter,
    Delivery,
    Headers,
    Message,
    MessageState,
    Receipt,
    StoredMessage,
)
from matador.model.text import SHORT_TEXT, storable_text
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.properties import (
    PROPERTIES_HEADER,
    headers_with_properties,
    split_properties,
)
from matador.transports.redis_client.connection import Argument

log = logging.getLogger("matador.transports.redis")

_NO_HEADERS: Headers = {}
_PLAIN = 4  # values in an entry of id and body only
# An element of a list: number, earlier deliveries, content.
_ELEMENT = re.compile(rb"(\d{1,16}):(\d{1,9}):(.*)", re.DOTALL)
_OURS = (b"i", b"b", b"h", b"p", b"k", b"r")

Read = TypeVar("Read")

_encode = msgspec.json.Encoder().encode
_decode_headers = msgspec.json.Decoder(dict[str, str | int]).decode


class Lane:
    """One stream or list of a queue, from the view of one consumer. Compared by identity."""

    __slots__ = ("base", "consumer", "held", "key", "name", "queue")

    def __init__(self, queue: str, base: str, name: str, consumer: str) -> None:
        self.queue = queue
        self.base = base
        self.name = name
        self.key = f"{base}:{name}"
        self.consumer = consumer
        self.held: set[bytes] = set()
        """The entries or elements that were delivered and are not settled yet."""


Hold: TypeAlias = tuple[Lane, bytes, int]
"""The handle of a delivery: a stream's entry with the number of its claim, or a list's element."""


def is_plain(message: Message) -> bool:
    """Whether the message has nothing but an id and a body."""
    return (
        not message.headers
        and message.delay <= 0
        and message.priority is None
        and message.ordering_key is None
        and message.properties is None
    )


def fields_of(message: Message) -> list[Argument]:
    """The fields of a message.

    Raises:
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
    """
    fields: list[Argument] = ["i", message.id.encode(), "b", message.body]
    headers = message.headers
    if message.properties is not None:
        headers = headers_with_properties(message)
    if headers:
        fields += ("h", _encode(headers))
    if message.priority is not None:
        fields += ("p", int(message.priority))
    if message.ordering_key is not None:
        fields += ("k", message.ordering_key.encode())
    return fields


def milliseconds(delay: float) -> int:
    """A delay for the scripts: rounded up, and one more because they round their clock down."""
    return 0 if delay <= 0 else int(delay * 1000) + 1


def deliveries_of(lane: Lane, entries: Sequence[tuple[bytes, list[bytes]]]) -> list[Delivery]:
    """First deliveries."""
    queue, held = lane.queue, lane.held
    found: list[Delivery] = []
    for id_, fields in entries:
        held.add(id_)
        if len(fields) == _PLAIN and fields[0] == b"i" and fields[2] == b"b":
            receipt = Receipt(queue, (lane, id_, 1))
            message_id = fields[1].decode(errors="replace")
            found.append(Delivery(fields[3], _NO_HEADERS, receipt, None, None, message_id))
        elif (quick := _with_headers(lane, id_, fields)) is not None:
            found.append(quick)
        else:
            found.append(_delivery(lane, id_, fields, 1, 0))
    return found


def _with_headers(lane: Lane, id_: bytes, fields: Sequence[bytes]) -> Delivery | None:
    """The first delivery of an entry with only id, body and headers; None for other entries."""
    if len(fields) != _PLAIN + 2 or (fields[0], fields[2], fields[4]) != (b"i", b"b", b"h"):
        return None
    try:
        headers = _decode_headers(fields[5])
    except (ValueError, RecursionError):
        return None  # handled by the general path
    properties = problem = None
    if PROPERTIES_HEADER in headers:
        headers, properties, problem = split_properties(headers)
    receipt = Receipt(lane.queue, (lane, id_, 1))
    message_id = fields[1].decode(errors="replace")
    return Delivery(fields[3], headers, receipt, problem, properties, message_id)


def claimed_of(lane: Lane, row: Sequence[Any]) -> Delivery:
    """A delivery from a row of the scripts ``claim`` and ``take``."""
    _, id_, fields, claim, uncounted = row
    lane.held.add(id_)
    return _delivery(lane, id_, fields, claim, uncounted)


def _delivery(
    lane: Lane, id_: bytes, fields: Sequence[bytes], claim: int, uncounted: int
) -> Delivery:
    count = max(1, claim - uncounted)
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    try:  # the fast path, for well-formed entries
        if 2 * len(values) == len(fields):
            get = values.get
            given, reason, priority, key = get(b"h"), get(b"r"), get(b"p"), get(b"k")
            headers = _NO_HEADERS if given is None else _decode_headers(given)
            properties = problem = None
            if PROPERTIES_HEADER in headers:
                headers, properties, problem = split_properties(headers)
            if reason is not None:
                headers = {**headers, REASON_HEADER: reason.decode()}
            level = None if priority is None else int(priority)
            order = None if key is None else key.decode()
            receipt = Receipt(lane.queue, (lane, id_, claim), count, count > 1, level, order)
            message_id = get(b"i", b"").decode(errors="replace")
            return Delivery(values[b"b"], headers, receipt, problem, properties, message_id)
    except Exception as error:  # noqa: BLE001 - foreign data may raise anything
        log.debug("%s: entry %r: %s", lane.key, id_, error)
    message, problem = _read(lane.queue, fields)
    return delivery_of(message, (lane, id_, claim), count, problem)


def delivery_of(
    message: Message, handle: object, count: int, problem: str | None = None
) -> Delivery:
    """The delivery of a message, the ``count``-th one."""
    receipt = Receipt(
        message.queue, handle, count, count > 1, message.priority, message.ordering_key
    )
    return Delivery(message.body, message.headers, receipt, problem, message.properties, message.id)


def stored_of(
    queue: str,
    position: str,
    fields: Sequence[bytes],
    state: MessageState,
    time: int,
    delivery_count: int = 0,
) -> StoredMessage:
    """A message for browsing; ``time``, in milliseconds: when it is due, or was stored."""
    message, _ = _read(queue, fields)
    return StoredMessage(
        position=position,
        id=message.id,
        queue=queue,
        body=message.body,
        headers=message.headers,
        state=state,
        stored_at=None if state == "delayed" else _moment(time),
        due_at=_moment(time) if state == "delayed" else None,
        delivery_count=max(0, delivery_count),
        priority=message.priority,
        ordering_key=message.ordering_key,
        properties=message.properties,
    )


def _read(queue: str, fields: Sequence[bytes]) -> tuple[Message, str | None]:
    """The readable parts of an entry, and a description of the others."""
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    problems: list[str] = []
    if len(fields) != 2 * len(values):
        names = fields[::2]
        problems += [f"field {n.decode()!r} is repeated" for n in _OURS if names.count(n) > 1]
    if b"b" not in values:
        problems.append("field 'b', the body, is missing")

    def part(name: bytes, read: Callable[[bytes], Read]) -> Read | None:
        value = values.get(name)
        if value is None:
            return None
        try:
            return read(value)
        except Exception as error:  # noqa: BLE001 - foreign data may raise anything
            problems.append(f"field {name.decode()!r}: {type(error).__name__}: {error}"[:200])
            return None

    headers, properties, problem = split_properties(part(b"h", _decode_headers) or _NO_HEADERS)
    if problem is not None:
        problems.append(problem)
    reason = part(b"r", bytes.decode)
    message = Message(
        id=values.get(b"i", b"").decode(errors="replace"),
        queue=queue,
        body=values.get(b"b", b""),
        headers=headers if reason is None else {**headers, REASON_HEADER: reason},
        priority=part(b"p", int),
        ordering_key=part(b"k", bytes.decode),
        properties=properties,
    )
    return message, "; ".join(problems) or None


def _moment(milliseconds: float) -> datetime | None:
    """Milliseconds since 1970 as a time; None if it is out of range."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


# -- one string, for lists and pub/sub -------------------------------------------------------------


class ContentHeader(msgspec.Struct, omit_defaults=True, gc=False):
    """The line in front of the body: id, headers, priority, ordering key."""

    i: str
    h: dict[str, str | int] = {}
    p: int | None = None
    k: str | None = None


_decode_header = msgspec.json.Decoder(ContentHeader).decode


def content_of(message: Message) -> bytes:
    """A message as one string.

    Raises:
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
    """
    headers = dict(headers_with_properties(message))
    header = ContentHeader(message.id, headers, message.priority, message.ordering_key)
    return _encode(header) + b"\n" + message.body


def letter_of(letter: DeadLetter, received: Message) -> Message:
    """A dead letter as a message; ``received`` is the message that was delivered."""
    if letter.bare:
        short = storable_text(letter.reason, SHORT_TEXT)
        letter = DeadLetter(letter.receipt, letter.kind, short, bare=True)
        received = Message("", received.queue, received.body)
    return dead_letter_of(letter, received)


def message_of(queue: str, content: bytes) -> Message:
    """The message in a string; a foreign string is only a body."""
    line, found, body = content.partition(b"\n")
    foreign = Message("", queue, content)
    if not found:
        return foreign
    try:
        header = _decode_header(line)
    except Exception:  # noqa: BLE001 - foreign data may raise anything
        return foreign
    headers, properties, problem = split_properties(header.h or _NO_HEADERS)
    if problem is not None:
        return foreign
    return Message(
        id=header.i,
        queue=queue,
        body=body,
        headers=headers,
        priority=header.p,
        ordering_key=header.k,
        properties=properties,
    )


def listed_of(lane: Lane, element: bytes) -> Delivery:
    """The delivery of an element of a list."""
    lane.held.add(element)
    deliveries, content = element_of(element)
    return delivery_of(message_of(lane.queue, content), (lane, element, 0), deliveries + 1)


def element_of(element: bytes) -> tuple[int, bytes]:
    """The earlier deliveries and the content of an element of a list, foreign ones included."""
    found = _ELEMENT.fullmatch(element)
    return (0, element) if found is None else (int(found[2]), found[3])
