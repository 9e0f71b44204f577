"""Errors of a queue of jobs. Those of the server: ``matador.transports.redis_client.errors``."""

from __future__ import annotations

from redis.exceptions import ResponseError

from matador.errors import (
    LeaseLostError,
    MatadorError,
    QueueNotFoundError,
    TransportError,
    UnstorableError,
)
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


def is_wrong_type(answer: object) -> bool:
    """Did a command find a key of another type than its own?"""
    return isinstance(answer, MatadorError) and "WRONGTYPE" in str(answer.__cause__)


def refused(error: MatadorError, receipt: Receipt) -> MatadorError:
    """The error of a script that settles a job: was it what is in the job, or may it pass?"""
    cause = error.__cause__
    if type(error) is not TransportError or not isinstance(cause, ResponseError):
        return error
    # A script that breaks off names its line; what the server says of itself has other errors.
    if "WRONGTYPE" not in str(cause) and "user_script:" not in str(cause):
        return error
    made = UnstorableError(f"a job of {receipt.queue!r} is odd and cannot be settled: {cause}")
    made.__cause__ = cause
    return made
