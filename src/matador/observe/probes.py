"""Liveness and readiness: what a health check of a worker answers, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from matador.messages.health import MessagingHealth
from matador.runtime.health import ConsumerHealth, Health

AnyHealth: TypeAlias = Health | MessagingHealth


@runtime_checkable
class HasHealth(Protocol):
    """An application, a worker, a server: whatever says how it is doing."""

    def health(self) -> AnyHealth:
        """How it is doing."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to a health check: yes or no, and what it was concluded from."""

    ok: bool
    details: dict[str, Any]


def live(source: HasHealth) -> Probe:
    """Would a restart help? No, as long as messages are received, or can be.

    False if a queue was not asked for messages lately, although the connection is up, slots are
    free and nothing is running. A broker that is down is no reason to restart a worker.
    """
    health = source.health()
    connected = health.connection.status == "connected"
    stuck = any(one.stalled and not one.running for one in consumers_of(health))
    return Probe(not (connected and stuck), _details(health))


def ready(source: HasHealth) -> Probe:
    """Is it at work? Connected, not stopping, and every queue was asked for messages lately."""
    health = source.health()
    state = getattr(source, "state", None)
    status = getattr(state, "status", "running")
    ok = health.status == "healthy" and status == "running"
    details = _details(health)
    if state is not None:
        details["state"] = status
    return Probe(ok, details)


def consumers_of(health: AnyHealth) -> tuple[ConsumerHealth, ...]:
    """How each queue is being consumed."""
    return health.queues if isinstance(health, Health) else health.consumers


def _details(health: AnyHealth) -> dict[str, Any]:
    # No error texts: they may name hosts, and anybody may ask.
    return {
        "status": health.status,
        "connection": health.connection.status,
        "queues": {
            one.queue: {
                "receiving": one.receiving,
                "stalled": one.stalled,
                "last_poll_seconds": 0.0 if one.receiving else round(one.last_poll, 3),
                "running": one.running,
                "concurrency": one.concurrency,
            }
            for one in consumers_of(health)
        },
    }
