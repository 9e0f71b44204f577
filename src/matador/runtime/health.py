"""The health of a service: its connection, and each consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from matador.model.message import ConnectionStatus
from matador.policy.circuit import CircuitState

STALLED_AFTER = 60.0
"""Seconds without a poll after which a queue with free slots counts as stalled."""


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The health of the consumer of one queue.

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
        """Whether nothing was received or polled for a minute although slots are free."""
        return not self.receiving and self.last_poll > STALLED_AFTER


@dataclass(frozen=True, slots=True)
class SenderHealth:
    """The health of sending.

    Attributes:
        circuit: the state of the circuit breaker; None: there is none.
        buffered: how many sends wait for the connection.
    """

    circuit: CircuitState | None = None
    buffered: int = 0


HealthStatus: TypeAlias = Literal["healthy", "degraded", "unhealthy"]


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an application, a worker, a server, a client or a service.

    Attributes:
        status: in one word, for a probe. ``unhealthy``: there is no connection, or the circuit
            breaker is open. ``degraded``: a queue that should be consumed was not polled for a
            minute.
        connection_state: the state of the connection.
        processing: messages received and not yet settled.
        last_message_at: when a message was last sent or received.
        last_error: the text of the last error.
        disconnected_since: since when there is no connection; None while there is one.

    Example:
        >>> app.health().status
        'healthy'
    """

    status: HealthStatus
    connection_state: ConnectionStatus
    processing: int = 0
    last_message_at: datetime | None = None
    last_error: str | None = None
    disconnected_since: datetime | None = None


def health_status(
    connection: ConnectionStatus,
    circuit: CircuitState | None = None,
    consumers: Sequence[ConsumerHealth] = (),
    *,
    consumes: bool = False,
) -> HealthStatus:
    """The status of a service; ``consumes``: whether it should consume queues."""
    if connection != "connected" or circuit == "open":
        return "unhealthy"
    if consumes and not consumers:
        return "degraded"
    return "degraded" if any(one.stalled for one in consumers) else "healthy"
