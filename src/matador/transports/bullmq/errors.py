"""Errors of a queue of jobs. Those of the server: ``matador.transports.redis_client.errors``."""

from __future__ import annotations

from matador.errors import LeaseLostError, QueueNotFoundError
from matador.model.message import Receipt


def lost(receipt: Receipt) -> LeaseLostError:
    """The error for a delivery that is not in these hands any more."""
    return LeaseLostError(
        f"a delivery from {receipt.queue!r} was settled already, or was taken back"
    )


def no_such_queue(queue: str, where: str) -> QueueNotFoundError:
    """The error for a queue that nobody has declared."""
    return QueueNotFoundError(
        f"{where} has no queue {queue!r}: apply the topology that declares it"
    )
