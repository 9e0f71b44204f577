"""The errors that all transports raise in the same words."""

from __future__ import annotations

from collections.abc import Iterable

from matador.errors import (
    ConfigurationError,
    LeaseLostError,
    QueueNotFoundError,
    QueuePausedError,
    UnsupportedError,
)
from matador.model.options import suggestion
from matador.model.topology import DEAD_LETTER_KINDS


def queue_not_found(queue: str, where: str, known: Iterable[str] = ()) -> QueueNotFoundError:
    """The queue does not exist; a similar name in ``known`` is suggested."""
    return QueueNotFoundError(f"there is no queue {queue!r} in {where}{suggestion(queue, known)}")


def lease_lost(queue: str, why: str = "its lease ended") -> LeaseLostError:
    """A delivery cannot be settled: it is already settled, or belongs to another receiver."""
    return LeaseLostError(f"a delivery from {queue!r} was already settled, or {why}")


def no_retention(queue: str) -> UnsupportedError:
    return UnsupportedError(
        f"queue {queue!r} keeps no finished messages, so it cannot be read again; "
        f"declare it with a retention: WorkQueue(name, retention=seconds)"
    )


def cannot_pause_letters(queue: str) -> ConfigurationError:
    """A dead-letter queue cannot be paused."""
    return ConfigurationError(
        f"queue {queue!r} has dead letters, which are not delivered until they are redriven; "
        f"pause the queue that they came from"
    )


def refuse_letters(queue: str) -> None:
    """Refuse to pause a dead-letter queue, for transports that recognize one by its name.

    Raises:
        ConfigurationError: it is a dead-letter queue.
    """
    if queue.endswith(tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)):
        raise cannot_pause_letters(queue)


def queues_paused(names: Iterable[str]) -> QueuePausedError:
    """The error of a drain that meets paused queues."""
    return QueuePausedError(
        f"messages are waiting in {', '.join(names)}, but a paused queue delivers none; "
        "run `matador queues resume`, then start again"
    )
