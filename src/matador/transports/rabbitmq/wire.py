"""Messages in RabbitMQ's format: their properties and headers, sent and received.

Services in other languages read and write the same format. They ignore what is added here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from matador.errors import MessageTooLargeError, UnstorableError
from matador.model.message import DELIVERIES_HEADER, REASON_HEADER, Headers, Message, Properties
from matador.model.text import SHORT_TEXT, storable_text
from matador.transports.rabbitmq import frames as amqp
from matador.transports.rabbitmq.delays import MARK
from matador.transports.rabbitmq.frames import DEATHS, OURS, read_properties

ORDERING_KEY = "x-matador-ordering-key"
DELIVERIES = DELIVERIES_HEADER

ROUTING_KEY = "x-matador-routing-key"
EXPIRES_AT = "x-matador-expires-at"
"""Properties that AMQP cannot carry: its routing key is the name of the queue, and the broker would
act on its expiration."""

DELIVERY_COUNT = "x-delivery-count"
ATTEMPTS = "x-matador-attempts"

RESERVE = 3072
"""Bytes of a header frame that a send leaves free for retries and dead letters: two errors and a
reason in their short form, the original queue, the hops of a delay."""

_OF_MESSAGE = frozenset({ORDERING_KEY, ROUTING_KEY, EXPIRES_AT})
_OURS = frozenset({*_OF_MESSAGE, DELIVERIES, DELIVERY_COUNT, DEATHS})
# The flags of the properties that AMQP has for ours, by their bytes.
_NATIVE_HIGH, _NATIVE_LOW = (amqp.CORRELATION_ID | amqp.REPLY_TO) >> 8, amqp.TYPE
_INTERNAL = ("x-first-death-", "x-last-death-", MARK)
_COPIES_TO = frozenset({b"CC", b"BCC"})  # queues that already have their copies
_CONTENT_TYPE = amqp.short_text("application/json")
_HEADER_FRAME = 12 + 8  # bytes of a header frame around the properties
_LONGEST_SHORT = 255
_MOST_COUNTED = 1_000_000
_TRANSIENT, _PERSISTENT = b"\1", b"\2"


def _is_internal(name: str) -> bool:
    """Whether a header belongs to the broker or the transport, and not to the message."""
    return name in _OURS or name.startswith(_INTERNAL)


def id_property(id: str) -> str:
    """The id as a property: a digest if it is too long. The body has the whole id, too."""
    if len(id) * 4 <= _LONGEST_SHORT or len(id.encode("utf-8", "replace")) <= _LONGEST_SHORT:
        return id
    return f"sha256:{sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def properties_of(
    message: Message,
    id_: str,
    now_ms: int,
    frame_max: int,
    marks: Headers | None = None,
    *,
    routed: bool = False,
) -> bytes:
    """The properties of a message, with ``marks`` added to its headers.

    ``routed``: it is published with its own routing key, which then needs no header.

    Raises:
        UnstorableError: they cannot be encoded; ``MessageTooLargeError``: no frame holds them.
    """
    headers: Headers = message.headers
    given = message.properties
    kept_key = None if given is None or routed else given.routing_key
    if (
        message.ordering_key is not None
        or marks
        or kept_key is not None
        or (given is not None and given.expires_at is not None)
    ):
        more: dict[str, str | int] = dict(headers)
        if message.ordering_key is not None:
            more[ORDERING_KEY] = message.ordering_key
        if kept_key is not None:
            more[ROUTING_KEY] = kept_key
        if given is not None and given.expires_at is not None:
            more[EXPIRES_AT] = repr(float(given.expires_at))
        if marks:
            more.update(marks)
        headers = more
    try:
        table = amqp.write_table(headers) if headers else amqp.EMPTY_TABLE
        if given is not None:
            written = _with_properties(given, table, id_, now_ms, message.priority)
        else:
            written = amqp.write_properties(
                headers=table,
                message_id=id_,
                timestamp=now_ms,
                content_type=_CONTENT_TYPE,
                priority=message.priority,
            )
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        raise UnstorableError(
            f"a message for {message.queue} cannot be encoded: {error}"
        ) from error
    return _fitting(written, frame_max)


def _with_properties(
    given: Properties, table: bytes, id_: str, now_ms: int, priority: int | None
) -> bytes:
    """As RPC and pub/sub send them: nothing that has no value, and a reply without id and time."""
    flags = amqp.CONTENT_TYPE
    parts = [b"", _CONTENT_TYPE]  # in the order of their flags
    if len(table) > len(amqp.EMPTY_TABLE):
        flags |= amqp.HEADERS
        parts.append(table)
    if id_ or not given.transient:
        flags |= amqp.DELIVERY_MODE
        parts.append(_TRANSIENT if given.transient else _PERSISTENT)
    if priority is not None:
        flags |= amqp.PRIORITY
        parts.append(bytes((max(0, min(priority, 255)),)))
    if given.correlation_id is not None:
        flags |= amqp.CORRELATION_ID
        parts.append(amqp.short_text(given.correlation_id))
    if given.reply_to is not None:
        flags |= amqp.REPLY_TO
        parts.append(amqp.short_text(given.reply_to))
    if id_:
        flags |= amqp.MESSAGE_ID | amqp.TIMESTAMP
        parts.append(amqp.short_text(id_))
        parts.append(struct.pack(">Q", now_ms))
    if given.type is not None:
        flags |= amqp.TYPE
        parts.append(amqp.short_text(given.type))
    parts[0] = struct.pack(">H", flags)
    return b"".join(parts)


def _fitting(written: bytes, frame_max: int) -> bytes:
    limit = frame_max - _HEADER_FRAME
    if len(written) > limit:
        raise MessageTooLargeError(len(written), limit, what="header of the message")
    return written


# -- copies ---------------------------------------------------------------------------------------


def copy_of(
    given: bytes, deliveries: int, frame_max: int, user: str, routing_key: str | None = None
) -> bytes:
    """The properties of a delivery that is given back, with how often it was delivered before.

    Raises:
        UnstorableError: no frame holds them.
    """
    changes: dict[str, str | int] = {DELIVERIES: deliveries} if deliveries else {}
    parts = _copied(given, changes, user, routing_key)
    return _fitting(amqp.join_properties(parts), frame_max)


def marked(given: bytes, marks: Mapping[str, str], frame_max: int) -> bytes:
    """The properties of a copy, with the headers that route it from hop to hop.

    Raises:
        UnstorableError: no frame holds them, or it has an expiration, which a hop would remove.
    """
    parts = amqp.split_properties(given)
    if amqp.EXPIRATION in parts:
        raise UnstorableError("a message that expires cannot be delayed")
    fields = [field for _, field in amqp.split_table(parts.get(amqp.HEADERS, b""))]
    parts[amqp.HEADERS] = amqp.write_table(marks, fields)
    return _fitting(amqp.join_properties(parts), frame_max)


def expiring(given: bytes, milliseconds: int) -> bytes:
    """The properties of a message that waits in a hop, which its own time ends, too.

    A queue that another process is creating at this moment may take a message before it knows its
    time to live. Such a message would stay for ever, and with it all that come after it.
    """
    parts = amqp.split_properties(given)
    text = b"%d" % milliseconds
    parts.setdefault(amqp.EXPIRATION, bytes([len(text)]) + text)
    return amqp.join_properties(parts)


def raw_letter(
    given: bytes,
    reason: str,
    now_ms: int,
    frame_max: int,
    user: str,
    routing_key: str | None = None,
) -> bytes:
    """The properties of an unreadable message as a dead letter: the sender's, but no expiration.

    Raises:
        UnstorableError: the reason cannot be encoded, or no frame holds them.
    """
    parts = _copied(given, {REASON_HEADER: reason}, user, routing_key)
    parts.pop(amqp.EXPIRATION, None)
    parts.setdefault(amqp.TIMESTAMP, struct.pack(">Q", now_ms))
    return _fitting(amqp.join_properties(parts), frame_max)


def bare_letter(given: bytes, reason: str, now_ms: int) -> bytes:
    """Properties of a dead letter that always fit: a short reason, and the type of the body."""
    parts = {
        amqp.HEADERS: amqp.write_table({REASON_HEADER: storable_text(reason, SHORT_TEXT)}),
        amqp.DELIVERY_MODE: _PERSISTENT,
        amqp.TIMESTAMP: struct.pack(">Q", now_ms),
    }
    content_type = amqp.split_properties(given).get(amqp.CONTENT_TYPE)
    if content_type is not None:
        parts[amqp.CONTENT_TYPE] = content_type
    return amqp.join_properties(parts)


def _copied(
    given: bytes, changed: dict[str, str | int], user: str, routing_key: str | None
) -> dict[int, bytes]:
    """Copy properties byte for byte, as ``user`` may publish them again: always persistent.

    Leaves out what the broker added, what it would act on once more (``CC``) and what it would
    refuse (the ``user-id`` of another user), and changes some headers.
    """
    old = read_properties(given)[0]
    if routing_key is not None and ROUTING_KEY not in old:
        changed[ROUTING_KEY] = routing_key  # the copy is published with another one
    parts = amqp.split_properties(given)
    rounds = _rounds(old)
    if rounds and ATTEMPTS not in old:
        changed[ATTEMPTS] = 1 + rounds  # the deaths that tell it do not go with the copy
    names = {name.encode() for name in changed}
    kept = [
        field
        for name, field in amqp.split_table(parts.get(amqp.HEADERS, b""))
        if name not in names and name not in _COPIES_TO and not _is_trace(name)
    ]
    try:
        parts[amqp.HEADERS] = amqp.write_table(changed, kept)
    except ValueError as error:
        raise UnstorableError(f"a copy of a message cannot be encoded: {error}") from error
    parts[amqp.DELIVERY_MODE] = _PERSISTENT
    if parts.get(amqp.USER_ID, b"")[1:] != user.encode():
        parts.pop(amqp.USER_ID, None)
    return parts


def _is_trace(name: bytes) -> bool:
    text = str(name, "utf-8", "replace")
    return text not in _OF_MESSAGE and _is_internal(text)


def id_of(given: bytes) -> str:
    """The message id in properties, or an empty text."""
    raw = amqp.split_properties(given).get(amqp.MESSAGE_ID, b"\0")
    return str(raw[1:], "utf-8", "replace")


# -- what arrives ---------------------------------------------------------------------------------


class IncomingProperties:
    """What the properties of a message say. Any bytes can be read: see ``problem``.

    ``deaths``: where the broker dead-lettered it, newest first. ``deliveries``: how often it was
    delivered before, as far as the broker tells. ``uncounted``: it was, by a queue that does not
    count.
    """

    def __init__(self, given: bytes, redelivered: bool, routing_key: str | None = None) -> None:
        table, self.priority, self.id, self.timestamp, self.problem = read_properties(given)
        self.ordering_key: str | None = None
        self.deaths: list[dict[str, Any]] = []
        before = 0
        counted = False
        internal = False
        carried = routing_key is not None or (
            len(given) > 1 and (given[0] & _NATIVE_HIGH or given[1] & _NATIVE_LOW)
        )
        for name, value in table.items():
            if (name.startswith(OURS) and name not in _OURS) or not _is_internal(name):
                continue
            internal = True
            if name == DEATHS:
                self.deaths = value if isinstance(value, list) else []
            elif name == ORDERING_KEY:
                self.ordering_key = value if isinstance(value, str) else None
            elif name in _OF_MESSAGE:
                carried = True
            elif name in (DELIVERY_COUNT, DELIVERIES) and isinstance(value, int):
                # Any sender may write these: a negative number must not undo what was counted.
                before += max(0, min(value, _MOST_COUNTED))
                counted = counted or name == DELIVERY_COUNT
        self.uncounted = redelivered and not counted
        self.deliveries = min(before + self.uncounted, _MOST_COUNTED)
        self.headers: dict[str, str | int] = _cleaned(table) if internal else table
        self.properties = _read(given, table, routing_key) if carried else None


def _read(given: bytes, table: dict[str, Any], routing_key: str | None) -> Properties:
    """The properties of a message without those that cannot be read."""
    parts = amqp.split_properties(given)

    def text(flag: int) -> str | None:
        return str(parts[flag][1:], "utf-8", "replace") if flag in parts else None

    key, expires = table.get(ROUTING_KEY), table.get(EXPIRES_AT)
    try:
        expires_at = None if expires is None else float(expires)
    except (TypeError, ValueError):
        expires_at = None
    return Properties(
        routing_key=key if isinstance(key, str) else routing_key,
        reply_to=text(amqp.REPLY_TO),
        correlation_id=text(amqp.CORRELATION_ID),
        type=text(amqp.TYPE),
        expires_at=expires_at,
    )


def _cleaned(table: dict[str, Any]) -> dict[str, str | int]:
    headers = {name: value for name, value in table.items() if not _is_internal(name)}
    rounds = _rounds(table)
    if rounds and ATTEMPTS not in headers:
        headers[ATTEMPTS] = 1 + rounds
    return headers


def _rounds(table: dict[str, Any]) -> int:
    """How often the broker dead-lettered a message, for senders that do not count attempts.

    The hops of a delay do not count: each has a header of ours.
    """
    if not isinstance(table.get(DEATHS), list):
        return 0
    deaths: list[dict[str, Any]] = table[DEATHS]
    marks = {str(value) for name, value in table.items() if name.startswith(MARK)}
    marks |= {name.removeprefix(MARK) for name in table if name.startswith(MARK)}
    rounds = 0
    for death in deaths:
        hop = str(death.get("queue", "")).rpartition(".")[2]
        count = death.get("count", 1)
        if hop not in marks:
            rounds += max(0, count) if isinstance(count, int) else 1
    return min(rounds, _MOST_COUNTED)


_DEATH_REASONS = {
    "expired": "expired by the broker in queue {queue}",
    "maxlen": "dropped by the broker: queue {queue} was over its length limit",
    "delivery_limit": "dropped by the broker: delivered more often than queue {queue} allows",
    "rejected": "rejected by a consumer of queue {queue}",
}


def death_reason(death: dict[str, Any]) -> str:
    """Why the broker dead-lettered a message, in words."""
    reason, queue = str(death.get("reason", "")), str(death.get("queue", "?"))
    text = _DEATH_REASONS.get(reason, "removed by the broker from queue {queue}: {reason}")
    return storable_text(text.format(queue=queue, reason=reason or "no reason given"), SHORT_TEXT)
