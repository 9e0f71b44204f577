"""Delays without a plugin: queues whose messages expire, one for each power of two.

A message passes the queues whose times add up to its delay, longest first. Every message of one
queue waits equally long, so none waits behind another. In front of each queue is an exchange that
looks for the queue's mark among the headers and hands messages without it on to the next::

    exchange matador.delay.512 ── mark? ──► queue matador.delay.512 ─ expired ─► exchange ….256
                               └─ else ──────────────────────────────────────► exchange ….256
    … matador.delay.4 ─► exchange matador.delay.due ── by routing key ──► the work queue
                                                    └─ unknown ──► queue matador.delay.lost

The routing key stays the name of the work queue all the way. A message sees each queue at most
once, so RabbitMQ's detection of cycles never drops one; a retry is a new message without the marks
of the last. The queues are quorum queues that dead-letter at least once: a message is removed
only when the next queue has it. What comes too late for its work queue is kept in ``lost``.

This module is arithmetic and names; ``declaring`` makes the objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from matador.transports.rabbitmq.plan import Binding, Exchange, Queue

SHORTEST = 4
"""Milliseconds of the shortest level."""

_LONGEST = 1 << 31  # RabbitMQ counts milliseconds in 32 bits
_EXTRA = 3  # further levels of the longest time: 25 days each
_COARSEST = 256  # milliseconds by which a delay may be rounded up, or a 16th of it if that is less

MARK = "matador-delay-"  # not "x-": such headers are not compared


@dataclass(frozen=True, slots=True)
class Level:
    """One queue: its messages wait ``ttl`` milliseconds."""

    name: str
    ttl: int

    @property
    def mark(self) -> str:
        """The header that sends a message through it."""
        return f"{MARK}{self.name}"


def _levels() -> Iterator[Level]:
    for number in range(_EXTRA, 0, -1):
        yield Level(f"{_LONGEST}-{number}", _LONGEST)
    ttl = _LONGEST
    while ttl >= SHORTEST:
        yield Level(str(ttl), ttl)
        ttl //= 2


LEVELS = tuple(_levels())
MAX_DELAY = sum(level.ttl for level in LEVELS) / 1000
"""The longest delay in seconds: about four months."""


def path(delay: float) -> list[Level]:
    """The levels a delay of so many seconds leads through; never shorter than it altogether.

    Rounded up a little, so that common delays take one or two steps: 1 s waits for 1.024 s.
    """
    left = _rounded(max(1, -int(-delay * 1000 // 1)))
    chosen: list[Level] = []
    for level in LEVELS:
        if level.ttl <= left:
            chosen.append(level)
            left -= level.ttl
    return chosen


def _rounded(milliseconds: int) -> int:
    step = SHORTEST
    while step * 2 <= min(milliseconds // 16, _COARSEST):
        step *= 2
    return -(-milliseconds // step) * step


def marks(levels: list[Level]) -> dict[str, int]:
    """The headers that send a message through these levels."""
    return {level.mark: 1 for level in levels}


def exchange_of(prefix: str, level: Level) -> str:
    """Where a message enters a level."""
    return f"{prefix}.{level.name}"


def due_exchange(prefix: str) -> str:
    """Where messages leave the last level; every work queue is bound to it by its name."""
    return f"{prefix}.due"


def lost_queue(prefix: str) -> str:
    """Where messages are kept whose work queue is gone when their time has come."""
    return f"{prefix}.lost"


def objects(prefix: str) -> Iterator[Exchange | Queue | Binding]:
    """All there must be, each after what it refers to."""
    lost = lost_queue(prefix)
    yield Exchange(lost, "fanout")
    yield Queue(lost, {"x-queue-type": "quorum"})
    yield Binding(lost, lost, "")
    next_ = due_exchange(prefix)
    yield Exchange(next_, "direct", {"alternate-exchange": lost})
    for level in reversed(LEVELS):
        name = exchange_of(prefix, level)
        yield Exchange(name, "headers", {"alternate-exchange": next_})
        yield Queue(
            name,
            {
                "x-queue-type": "quorum",
                "x-message-ttl": level.ttl,
                "x-dead-letter-exchange": next_,
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        )
        yield Binding(name, name, "", {"x-match": "all", level.mark: 1})
        next_ = name
