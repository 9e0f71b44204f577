"""Liveness and readiness: the answers to health checks of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from matador.runtime.health import ConsumerHealth, Health


@runtime_checkable
class HasHealth(Protocol):
    """An application, a worker, a server, a client or a service."""

    def health(self) -> Health:
        """The health of the service."""
        ...

    @property
    def consumer_health(self) -> Sequence[ConsumerHealth]:
        """The health of each consumer."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to a health check: yes or no, and the reasons."""

    ok: bool
    details: dict[str, Any]


def live(source: HasHealth) -> Probe:
    """The answer to a liveness check: False if a restart would help.

    False if a queue was not polled recently, although the connection is up, slots are free and
    nothing is running. A broker that is down is no reason to restart a worker.
    """
    health = source.health()
    connected = health.connection_state == "connected"
    stuck = any(one.stalled and not one.running for one in source.consumer_health)
    return Probe(not (connected and stuck), _details(source, health))


def ready(source: HasHealth) -> Probe:
    """The answer to a readiness check: connected, not stopping, and every queue polled recently."""
    health = source.health()
    state = getattr(source, "state", None)
    status = getattr(state, "status", "running")
    ok = health.status == "healthy" and status == "running"
    details = _details(source, health)
    if state is not None:
        details["state"] = status
    return Probe(ok, details)


def together(probes: Sequence[Probe]) -> Probe:
    """The combined answer of several services of one process: yes if all answer yes.

    The status, connection and state are those of the first service that answers no, otherwise of
    the first.
    """
    first = min(probes, key=lambda one: one.ok)
    queues = {name: one for probe in probes for name, one in probe.details["queues"].items()}
    return Probe(first.ok, {**first.details, "queues": queues})


def _details(source: HasHealth, health: Health) -> dict[str, Any]:
    # No error texts: they may name hosts, and the endpoint has no login.
    return {
        "status": health.status,
        "connection": health.connection_state,
        "queues": {
            one.queue: {
                "receiving": one.receiving,
                "stalled": one.stalled,
                "last_poll_seconds": 0.0 if one.receiving else round(one.last_poll, 3),
                "running": one.running,
                "concurrency": one.concurrency,
            }
            for one in source.consumer_health
        },
    }
