"""How an application is doing: its connection, and how each queue is being consumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from matador.model.message import ConnectionState

STALLED_AFTER = 60.0
"""Seconds after which a queue that could be received from, and was not, counts as stalled."""


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """How one queue is being consumed.

    Attributes:
        queue: its full name.
        concurrency: how many messages are handled at once.
        running: callbacks that are running.
        waiting: messages received that wait for a free slot.
        handled: messages handled since the start.
        receiving: a worker is waiting for messages right now, has no free slot, or is paused.
        last_poll: seconds since messages were last received or asked for.
    """

    queue: str
    concurrency: int
    running: int
    waiting: int
    handled: int
    receiving: bool
    last_poll: float

    @property
    def stalled(self) -> bool:
        """Has nothing been received, or asked for, for a minute, though slots are free?"""
        return not self.receiving and self.last_poll > STALLED_AFTER


@dataclass(frozen=True, slots=True)
class Health:
    """How an application is doing.

    ``status`` is ``healthy`` while it is connected and no queue is stalled.
    """

    connection: ConnectionState
    queues: tuple[ConsumerHealth, ...] = ()

    @property
    def status(self) -> Literal["healthy", "unhealthy"]:
        """In one word, for a probe."""
        stalled = any(queue.stalled for queue in self.queues)
        return "healthy" if self.connection.status == "connected" and not stalled else "unhealthy"
