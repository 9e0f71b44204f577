"""How a client is doing, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from matador.model.message import ConnectionState
from matador.policy.circuit import CircuitState


@dataclass(frozen=True, slots=True)
class RpcClientHealth:
    """How a client is doing.

    Attributes:
        connection: the state of its connection.
        circuit: the state of its circuit breaker; None if it has none.
        pending: calls that wait for their reply.
        buffered: requests that wait for the connection.
    """

    connection: ConnectionState
    circuit: CircuitState | None = None
    pending: int = 0
    buffered: int = 0

    @property
    def status(self) -> Literal["healthy", "unhealthy"]:
        """In one word, for a probe."""
        fine = self.connection.status == "connected" and self.circuit != "open"
        return "healthy" if fine else "unhealthy"


@dataclass(slots=True)
class RpcClientMetrics:
    """Counts of a client since it was made.

    Attributes:
        calls: calls that were begun, retries included.
        succeeded: calls that returned a result.
        remote_errors: calls that the server answered with an error.
        unreadable: calls whose reply could not be read.
        timeouts: calls without a reply in time.
        connection_losses: calls whose connection was lost.
        not_sent: calls whose request could not be sent.
        cancelled: calls that the caller has given up.
        retries: calls that were made again.
        notified: requests without a reply that the broker has confirmed.
    """

    calls: int = 0
    succeeded: int = 0
    remote_errors: int = 0
    unreadable: int = 0
    timeouts: int = 0
    connection_losses: int = 0
    not_sent: int = 0
    cancelled: int = 0
    retries: int = 0
    notified: int = 0
