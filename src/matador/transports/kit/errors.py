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
    """There is no such queue; ``known`` ones are suggested."""
    return QueueNotFoundError(f"there is no queue {queue!r} in {where}{suggestion(queue, known)}")


def lease_lost(queue: str, why: str = "its lease ended") -> LeaseLostError:
    """A delivery cannot be settled: somebody did, or it belongs to somebody else."""
    return LeaseLostError(f"a delivery from {queue!r} was already settled, or {why}")


def no_retention(queue: str) -> UnsupportedError:
    """The queue cannot be read again."""
    return UnsupportedError(
        f"queue {queue!r} keeps no finished messages, so it cannot be read again; "
        f"declare it with a retention: WorkQueue(name, retention=seconds)"
    )


def cannot_pause_letters(queue: str) -> ConfigurationError:
    """Dead letters wait in any case."""
    return ConfigurationError(
        f"queue {queue!r} has dead letters, which nobody receives until they are redriven; "
        f"pause the queue that they came from"
    )


def refuse_letters(queue: str) -> None:
    """For transports that know dead letters by their names.

    Raises:
        ConfigurationError: it is a queue of dead letters, which cannot be paused.
    """
    if queue.endswith(tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)):
        raise cannot_pause_letters(queue)


def queues_paused(names: Iterable[str]) -> QueuePausedError:
    """The error of whoever should empty queues that are paused."""
    return QueuePausedError(
        f"messages are waiting in {', '.join(names)}, but nobody receives them while it is paused; "
        "run `matador queues resume`, then start again"
    )
