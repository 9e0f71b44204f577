"""Messages in RabbitMQ's terms: properties and headers of what is sent, deliveries of what comes.

The format that services in other languages read and write; what is added here they ignore.
"""

from __future__ import annotations

from typing import Any, cast

from pika.spec import BasicProperties

from matador.errors import MatadorError, MessageTooLargeError, SendRefusedError
from matador.model.message import REASON_HEADER, Headers, Message
from matador.transports.rabbitmq import frames
from matador.transports.rabbitmq.delays import MARK

ORDERING_KEY = "x-matador-ordering-key"
DELIVERIES = "x-matador-deliveries"
"""How often a message was delivered before it was given back by way of a copy."""

DELIVERY_COUNT = "x-delivery-count"
ATTEMPTS = "x-matador-attempts"
DEATHS = "x-death"

_OURS = frozenset({ORDERING_KEY, DELIVERIES, DELIVERY_COUNT, DEATHS})
_INTERNAL = ("x-first-death-", "x-last-death-", MARK)
_CONTENT_TYPE = frames.short_text("application/json")
_HEADER_FRAME = 14 + 8  # bytes of a header frame around its properties


def is_internal(name: str) -> bool:
    """Is this a header of the broker's or of the transport's own, and no part of the message?"""
    return name in _OURS or name.startswith(_INTERNAL)


def properties_of(
    message: Message, now_ms: int, frame_max: int, marks: dict[str, int] | None = None
) -> bytes:
    """The properties of a message, ``marks`` added to its headers.

    Raises:
        MatadorError: they cannot be written.
    """
    headers: Headers = message.headers
    if message.ordering_key is not None or marks:
        more: dict[str, str | int] = dict(headers)
        if message.ordering_key is not None:
            more[ORDERING_KEY] = message.ordering_key
        if marks:
            more.update(marks)
        headers = more
    try:
        properties = frames.write_properties(
            headers=frames.write_table(headers),
            message_id=message.id,
            timestamp=now_ms,
            content_type=_CONTENT_TYPE,
            priority=message.priority,
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise SendRefusedError(
            f"a message for {message.queue} cannot be written: {error}", cause=error
        ) from error
    if len(properties) + _HEADER_FRAME > frame_max:
        limit = frame_max - _HEADER_FRAME
        raise MessageTooLargeError(len(properties), limit, what="message's headers")
    return properties


def copied_properties(properties: bytes, changes: dict[str, str | int]) -> bytes:
    """The same properties, without what the broker added, and with other headers changed."""
    read = BasicProperties()
    cast("Any", read).decode(properties)
    old = cast("dict[str, Any]", read.headers or {})
    kept = {name: value for name, value in old.items() if not is_internal(name)}
    if ORDERING_KEY in old:
        kept[ORDERING_KEY] = old[ORDERING_KEY]
    deaths = old.get(DEATHS)
    if ATTEMPTS not in kept and isinstance(deaths, list):
        rounds = _rounds(cast("list[Any]", deaths), old)
        if rounds:  # told by the deaths so far, which must not go round with the copy
            kept[ATTEMPTS] = 1 + rounds
    cast("Any", read).headers = {**kept, **changes}
    return b"".join(cast("list[bytes]", cast("Any", read).encode()))


def dead_letter_properties(properties: bytes, reason: str) -> bytes:
    """The properties of a message that nobody could read, as a dead letter."""
    return copied_properties(properties, {REASON_HEADER: reason})


def id_of(properties: bytes) -> str:
    """The message id, if there is one."""
    return frames.read_properties(properties, 0)[2] or ""


class Incoming:
    """What the headers of a message say."""

    __slots__ = (
        "deliveries",
        "headers",
        "id",
        "ordering_key",
        "priority",
        "timestamp",
        "uncounted",
    )

    def __init__(self, properties: bytes, redelivered: bool) -> None:
        table, priority, message_id, timestamp = frames.read_properties(properties, 0)
        self.priority = priority
        self.id = message_id
        self.timestamp = timestamp
        self.ordering_key: str | None = None
        before = 0
        counted = False
        odd = False
        for name, value in table.items():
            if name.startswith("x-matador-") and name not in _OURS:
                continue
            if name == DELIVERY_COUNT and isinstance(value, int):
                before += value
                counted = True
            elif name == DELIVERIES and isinstance(value, int):
                before += value
            elif name == ORDERING_KEY:
                self.ordering_key = str(value)
            odd = odd or is_internal(name) or not isinstance(value, str | int)
        self.uncounted = redelivered and not counted
        """It was delivered before, by a queue that does not count."""
        if self.uncounted:
            before += 1
        self.deliveries = before
        """How often it was delivered before, as far as the broker tells."""
        self.headers: dict[str, str | int] = _cleaned(table) if odd else table


def _cleaned(table: dict[str, Any]) -> dict[str, str | int]:
    headers: dict[str, str | int] = {
        name: value
        for name, value in table.items()
        if isinstance(value, str | int) and not is_internal(name)
    }
    deaths = table.get(DEATHS)
    if ATTEMPTS not in headers and isinstance(deaths, list):
        rounds = _rounds(cast("list[Any]", deaths), table)
        if rounds:
            headers[ATTEMPTS] = 1 + rounds
    return headers


def _rounds(deaths: list[Any], table: dict[str, Any]) -> int:
    """How often a message was sent round by the broker, for senders that do not count attempts.

    The levels of a delay are no rounds: each has left its mark.
    """
    rounds = 0
    for death in deaths:
        if isinstance(death, dict):
            told = cast("dict[str, Any]", death)
            level = str(told.get("queue", "")).rpartition(".")[2]
            count = told.get("count", 1)
            if f"{MARK}{level}" not in table:
                rounds += count if isinstance(count, int) else 1
    return rounds


def check_size(message: Message, limit: int) -> MatadorError | None:
    """Why a message is too large, or None."""
    size = len(message.body)
    return MessageTooLargeError(size, limit) if size > limit else None
