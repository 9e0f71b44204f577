"""Pauses the queues of an application's transport, for all consumers."""

from __future__ import annotations

from collections.abc import Sequence

from matador.errors import QueueNotFoundError, UnsupportedError
from matador.runtime.few_at_once import few_at_once
from matador.transports.base import MeasuringMany, QueuePausing, Transport


def pausing(transport: Transport) -> QueuePausing | None:
    """The transport, if it can pause queues."""
    if transport.capabilities.pause and isinstance(transport, QueuePausing):
        return transport
    return None


async def paused_of(transport: Transport, queues: Sequence[str]) -> Sequence[bool | None]:
    """Whether each queue is paused, in order; None: it does not exist, or cannot be paused."""
    pauses = pausing(transport)
    if pauses is None:
        return [None] * len(queues)
    if isinstance(transport, MeasuringMany):
        return await transport.paused(queues)

    async def paused(name: str) -> bool | None:
        try:
            return await pauses.is_paused(name)
        except QueueNotFoundError:
            return None

    return await few_at_once(paused, queues)


def why_not(transport: Transport) -> str:
    """An error text: a queue of this transport cannot be paused, and what to do instead."""
    return (
        f"{transport.name} cannot pause a queue for all of its workers; stop the workers instead: "
        f"messages wait in the queue"
    )


def require_pausing(transport: Transport) -> QueuePausing:
    """The transport, which can pause queues.

    Raises:
        UnsupportedError: it cannot.
    """
    found = pausing(transport)
    if found is None:
        raise UnsupportedError(why_not(transport))
    return found
