"""How a client, server, publisher or subscriber is doing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from matador.model.message import ConnectionState
from matador.policy.circuit import CircuitState
from matador.runtime.health import ConsumerHealth


@dataclass(frozen=True, slots=True)
class MessagingHealth:
    """The health of something that sends or receives plain messages.

    Attributes:
        connection: the state of the connection.
        consumers: how each queue is being consumed; empty for what only sends.
        consumes: whether it is meant to consume queues.
        circuit: the state of the circuit breaker; None: there is none.
        buffered: how many sends wait for the connection.
        last_message_at: when a message was last sent or received.
        last_error: the text of the last error.

    Example:
        >>> publisher.health().status
        'healthy'
    """

    connection: ConnectionState
    consumers: tuple[ConsumerHealth, ...] = ()
    consumes: bool = False
    circuit: CircuitState | None = None
    buffered: int = 0
    last_message_at: datetime | None = None
    last_error: str | None = None

    @property
    def status(self) -> Literal["healthy", "degraded", "unhealthy"]:
        """In one word, for a probe.

        ``unhealthy``: there is no connection, or the circuit breaker is open. ``degraded``: a
        queue should be consumed and is not.
        """
        if self.connection.status != "connected" or self.circuit == "open":
            return "unhealthy"
        if self.consumes and not self.consumers:
            return "degraded"
        return "degraded" if any(one.stalled for one in self.consumers) else "healthy"
