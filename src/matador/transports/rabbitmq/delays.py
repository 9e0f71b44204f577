"""Delays without a plugin: messages expire in one queue after the other.

A delay is written like a time of day: days, hours, minutes, seconds and a part of a second, of
which the three largest are kept. Each is a queue, created on first use. All messages of a queue
wait equally long, so none waits behind another. Five minutes and twenty seconds::

    exchange ….hops.2 ── matador-delay-2: 5m ──► queue ….hops.2.5m ─ expired ─► exchange ….hops.1
    exchange ….hops.1 ── matador-delay-1: 20s ─► queue ….hops.1.20s ─ expired ─► exchange ….due
    exchange ….due ── by routing key ──► the work queue, or else the queue ….lost

A message enters at the exchange for the number of hops it has to make, and has one header for each
of them, so it never skips a hop and never arrives early. If the next queue is missing, the message
waits where it is. Its routing key is the name of the work queue all the way.

There are at most three hops, because services in other languages count each as a delivery. No queue
is passed twice, so RabbitMQ's cycle detection never drops a message; a retry is a new message
without the headers of the last delay. The queues are quorum queues that dead-letter at least once:
a message is removed only when the next queue has it.

A work queue that refuses messages while it is full has last hops of its own. RabbitMQ tries again
every three minutes, and forwards at most 32 messages of a hop at a time: in a shared hop, the
messages of other work queues would have to wait behind the refused ones.

This module has the arithmetic and the names; ``outgoing`` creates the hops on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from matador.transports.rabbitmq.topology import AmqpBinding, AmqpExchange, AmqpObject, AmqpQueue

MOST_HOPS = 3

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000  # milliseconds
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s"), (1, "ms"))
_MOST_DAYS = 49  # per queue: RabbitMQ counts milliseconds in 32 bits
_LONGEST = (f"{_MOST_DAYS}d", _MOST_DAYS * DAY)
_LONGEST_NAME = 255  # bytes
_LONGEST_LABEL = 100  # bytes of the name of a hop that tell whose it is

# Delays up to ... are rounded up to a multiple of ..., so that random delays need few queues.
_STEPS = (
    (200, 10),
    (4 * SECOND, 50),
    (16 * SECOND, 250),
    (DAY, SECOND),
    (_MOST_DAYS * DAY, MINUTE),
)

MAX_DELAY = MOST_HOPS * _MOST_DAYS * DAY / 1000
"""The longest delay in seconds: 147 days."""

MARK = "matador-delay-"  # headers exchanges do not compare headers that start with "x-"


class Hop(NamedTuple):
    """A queue in which messages wait ``ttl`` ms; ``left`` hops are left, this one included."""

    left: int
    name: str
    ttl: int


def path(delay: float) -> list[Hop]:
    """Split a delay in seconds into hops. Together they are never shorter than the delay."""
    waits = _waits(max(1, -int(-delay * 1000 // 1)))
    return [Hop(len(waits) - place, *wait) for place, wait in enumerate(waits)]


def _waits(milliseconds: int) -> list[tuple[str, int]]:
    times = min((milliseconds - 1) // _LONGEST[1], MOST_HOPS - 1)
    if times:  # the rest must fit in the hops that are left
        step = DAY if times == MOST_HOPS - 1 else HOUR
    else:
        step = next((step for below, step in _STEPS if milliseconds <= below), MINUTE)
    rest = -(-(milliseconds - times * _LONGEST[1]) // step) * step
    waits: list[tuple[str, int]] = [_LONGEST] * times
    for unit, letters in _UNITS:
        count, rest = divmod(rest, unit)
        if count:
            waits.append((f"{count}{letters}", count * unit))
    return waits


def with_own_end(prefix: str, hops: Sequence[Hop], queue: str) -> list[Hop]:
    """The same hops, but the last one is used by this work queue alone.

    Work queues with the same label share it, which is no harm: their routing keys differ. A label
    has no dots, because receivers recognize a hop by the last part of its name.
    """
    *shared, last = hops
    return [*shared, last._replace(name=_own_end(prefix, last.left, last.name, queue))]


def _own_end(prefix: str, left: int, name: str, queue: str) -> str:
    room = _LONGEST_NAME - len(f"{hop_exchange(prefix, left)}.{name}-".encode())
    label = queue.replace(".", ":").encode()[: max(0, min(_LONGEST_LABEL, room))]
    return f"{name}-{str(label, 'utf-8', 'ignore')}"


def every_hop(prefix: str, queue: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield all possible hops in the order in which messages pass them, with how many are left.

    ``queue``: include those that only this work queue uses.
    """
    days = [f"{count}d" for count in range(1, _MOST_DAYS + 1)]
    hours = [f"{count}h" for count in range(1, 24)]
    minutes, seconds = ([f"{count}{unit}" for count in range(1, 60)] for unit in ("m", "s"))
    parts = [f"{count}ms" for count in sorted({*range(10, 201, 10), *range(50, 1000, 50)})]
    last = [*days, *hours, *minutes, *seconds, *parts]
    if queue is not None:
        last += [_own_end(prefix, 1, name, queue) for name in last]
    yield 3, [*days, *hours]
    yield 2, [*days, *hours, *minutes, *seconds]
    yield 1, last


def marks(hops: Iterable[Hop]) -> dict[str, str]:
    """The headers that route a message from hop to hop."""
    return {f"{MARK}{hop.left}": hop.name for hop in hops}


def hop_exchange(prefix: str, left: int) -> str:
    """Where a message with so many hops left enters."""
    return f"{prefix}.hops.{left}"


def due_exchange(prefix: str) -> str:
    """Where messages leave the last hop. Every work queue is bound to it by its name."""
    return f"{prefix}.due"


def lost_queue(prefix: str) -> str:
    """Where messages are kept whose work queue no longer exists when they are due."""
    return f"{prefix}.lost"


def objects(prefix: str) -> Iterator[AmqpObject]:
    """The objects that all delays need, each after those that it refers to."""
    lost = lost_queue(prefix)
    yield AmqpExchange(lost, "fanout")
    yield AmqpQueue(lost, {"x-queue-type": "quorum"})
    yield AmqpBinding(lost, lost, "")
    yield AmqpExchange(due_exchange(prefix), "direct", {"alternate-exchange": lost})


def hop_objects(prefix: str, hops: Iterable[Hop]) -> Iterator[AmqpObject]:
    """The objects that these hops need, each after those that it refers to."""
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
