"""Pauses the queues of an application's transport, for all who receive from them."""

from __future__ import annotations

from matador.errors import UnsupportedError
from matador.transports.base import QueuePausing, Transport


def pausing(transport: Transport) -> QueuePausing | None:
    """The transport, if it can pause queues."""
    if transport.capabilities.pause and isinstance(transport, QueuePausing):
        return transport
    return None


def why_not(transport: Transport) -> str:
    """Why a queue of this transport cannot be paused, and what to do instead."""
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
