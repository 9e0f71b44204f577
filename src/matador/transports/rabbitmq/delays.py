"""Delays without a plugin: queues whose messages expire, passed one after the other.

A delay is written as a time of day is: days, hours, minutes, seconds and a part of a second, of
which the three largest are kept. Each is a queue, made when it is first used. Every message of one
queue waits equally long, so none waits behind another. Five minutes and twenty seconds::

    exchange ….hops.2 ── matador-delay-2: 5m ──► queue ….hops.2.5m ─ expired ─► exchange ….hops.1
    exchange ….hops.1 ── matador-delay-1: 20s ─► queue ….hops.1.20s ─ expired ─► exchange ….due
    exchange ….due ── by routing key ──► the work queue, or else the queue ….lost

A message enters where as many hops are left as it has to make, and every one of its marks leads to
a queue: none is ever skipped, so nothing comes early. If a queue is missing on its way, it waits
where it is. The routing key stays the name of the work queue all the way.

Three hops at most, as services in other languages count each as a delivery. No queue is passed
twice, so RabbitMQ's detection of cycles never drops a message; a retry is a new message without the
marks of the last. The queues are quorum queues that dead-letter at least once: a message is removed
only when the next queue has it.

This module is arithmetic and names; ``declaring`` makes the objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from matador.transports.rabbitmq.topology import AmqpBinding, AmqpExchange, AmqpQueue

MOST_HOPS = 3

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000  # milliseconds
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s"), (1, "ms"))
_MOST_DAYS = 49  # of one queue: RabbitMQ counts milliseconds in 32 bits

# What a delay is rounded up to, by how long it is: few queues for delays that are drawn by lot.
_STEPS = (
    (200, 10),
    (4 * SECOND, 50),
    (16 * SECOND, 250),
    (DAY, SECOND),
    (_MOST_DAYS * DAY, MINUTE),
)

MAX_DELAY = MOST_HOPS * _MOST_DAYS * DAY / 1000
"""The longest delay in seconds: 147 days."""

MARK = "matador-delay-"  # not "x-": such headers are not compared


class Hop(NamedTuple):
    """A queue on the way: messages wait ``ttl`` ms in it; ``left``: how many to go, it included."""

    left: int
    name: str
    ttl: int


def path(delay: float) -> list[Hop]:
    """The hops of a delay of so many seconds; never shorter than it altogether."""
    waits = _waits(max(1, -int(-delay * 1000 // 1)))
    return [Hop(len(waits) - place, *wait) for place, wait in enumerate(waits)]


def _waits(milliseconds: int) -> list[tuple[str, int]]:
    longest = (f"{_MOST_DAYS}d", _MOST_DAYS * DAY)
    if (
        milliseconds > longest[1]
    ):  # as often as needed, and what is left in as many hops as are left
        times = min((milliseconds - 1) // longest[1], MOST_HOPS - 1)
        step = DAY if times == MOST_HOPS - 1 else HOUR
        return [longest] * times + _split(_up(milliseconds - times * longest[1], step))
    step = next((step for below, step in _STEPS if milliseconds <= below), MINUTE)
    return _split(_up(milliseconds, step))


def _split(milliseconds: int) -> list[tuple[str, int]]:
    waits: list[tuple[str, int]] = []
    for unit, letters in _UNITS:
        count, milliseconds = divmod(milliseconds, unit)
        if count:
            waits.append((f"{count}{letters}", count * unit))
    return waits


def _up(milliseconds: int, step: int) -> int:
    return -(-milliseconds // step) * step


def marks(hops: Iterable[Hop]) -> dict[str, str]:
    """The headers that lead a message along its way."""
    return {f"{MARK}{hop.left}": hop.name for hop in hops}


def hop_exchange(prefix: str, left: int) -> str:
    """Where a message enters with so many hops before it."""
    return f"{prefix}.hops.{left}"


def due_exchange(prefix: str) -> str:
    """Where messages leave the last hop; every work queue is bound to it by its name."""
    return f"{prefix}.due"


def lost_queue(prefix: str) -> str:
    """Where messages are kept whose work queue is gone when their time has come."""
    return f"{prefix}.lost"


def objects(prefix: str) -> Iterator[AmqpExchange | AmqpQueue | AmqpBinding]:
    """What there must be from the beginning, each after what it refers to."""
    lost = lost_queue(prefix)
    yield AmqpExchange(lost, "fanout")
    yield AmqpQueue(lost, {"x-queue-type": "quorum"})
    yield AmqpBinding(lost, lost, "")
    yield AmqpExchange(due_exchange(prefix), "direct", {"alternate-exchange": lost})


def hop_objects(
    prefix: str, hops: Iterable[Hop]
) -> Iterator[AmqpExchange | AmqpQueue | AmqpBinding]:
    """What must be there for these hops, each after what it refers to."""
    for left, name, ttl in sorted(hops):
        entry = hop_exchange(prefix, left)
        yield AmqpExchange(entry, "headers")
        queue = f"{entry}.{name}"
        yield AmqpQueue(
            queue,
            {
                "x-queue-type": "quorum",
                "x-message-ttl": ttl,
                "x-dead-letter-exchange": (
                    hop_exchange(prefix, left - 1) if left > 1 else due_exchange(prefix)
                ),
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        )
        yield AmqpBinding(queue, entry, "", {"x-match": "all", f"{MARK}{left}": name})
