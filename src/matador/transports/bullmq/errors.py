"""Errors of jobs. Those of the server: ``matador.transports.redis_client.errors``."""

from __future__ import annotations

from redis.exceptions import ResponseError

from matador.errors import MatadorError, TransportError, UnstorableError
from matador.model.message import Receipt


def is_wrong_type(answer: object) -> bool:
    """Whether a command found a key of another type."""
    return isinstance(answer, MatadorError) and "WRONGTYPE" in str(answer.__cause__)


def refused(error: MatadorError, receipt: Receipt) -> MatadorError:
    """The error of a script that settles a job: permanent if what is in the job caused it."""
    cause = error.__cause__
    if type(error) is not TransportError or not isinstance(cause, ResponseError):
        return error
    # A script that fails names its line; errors of the server itself do not.
    if "WRONGTYPE" not in str(cause) and "user_script:" not in str(cause):
        return error
    made = UnstorableError(f"a malformed job of {receipt.queue!r} cannot be settled: {cause}")
    made.__cause__ = cause
    return made
