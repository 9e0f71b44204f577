"""Errors that say what happened and what to do: those of redis-py translated, and common ones."""

from __future__ import annotations

from redis import exceptions as redis_errors
from redis.asyncio.sentinel import MasterNotFoundError

from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    MatadorError,
    MessageTooLargeError,
    NotConnectedError,
    SendUnconfirmedError,
    StorageFullError,
    TransportError,
    UnstorableError,
    UnsupportedError,
)

_REFUSED = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
    redis_errors.ExternalAuthProviderError,
)
_CLUSTER = (
    redis_errors.RedisClusterException,
    redis_errors.ClusterError,
    redis_errors.AskError,
    redis_errors.TryAgainError,
    redis_errors.ClusterCrossSlotError,
)
_GONE = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)
# How the error of a server that cannot write begins; inside a script or a transaction it is
# somewhere in the middle of the text.
_FULL = ("OOM ", "MISCONF ", "NOREPLICAS ")


def is_gone(error: BaseException) -> bool:
    """Whether the connection is lost, so that the outcome of commands in flight is unknown."""
    return isinstance(error, _GONE) and not isinstance(
        error, (*_REFUSED, redis_errors.BusyLoadingError, redis_errors.ClusterDownError)
    )


def is_moved_on(error: BaseException) -> bool:
    """Whether the server became a replica, so that the primary has to be found again."""
    return isinstance(error, redis_errors.ReadOnlyError)


def has_lost_group(error: BaseException) -> bool:
    """Whether the server has lost a queue: it was emptied, or restored from an older copy."""
    return isinstance(error, redis_errors.ResponseError) and str(error).startswith(
        ("NOGROUP", "UNBLOCKED")
    )


def translate(error: BaseException, where: str, *, opening: bool = False) -> MatadorError:
    """The error of this package for ``error``, with ``error`` as its cause.

    ``where`` names the server, without credentials.
    """
    if isinstance(error, MatadorError):
        return error
    made = _translate(error, where, opening)
    made.__cause__ = error
    return made


def _reason(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, MasterNotFoundError):  # goes on with the Sentinels, as Python shows them
        text = text.partition(" : ")[0]
    if not text and isinstance(error, TimeoutError):
        return "no answer in time"
    return text.rstrip(".") or type(error).__name__


def _translate(error: BaseException, where: str, opening: bool) -> MatadorError:
    said = f"{where}: {_reason(error)}"
    match error:
        case _ if isinstance(error, _REFUSED):
            hint = "check the user, the password and the user's rights (ACL)"
            kind = ConnectionFailedError if opening else TransportError
            return kind(f"{said}; {hint}")
        case redis_errors.OutOfMemoryError():
            return StorageFullError(f"the server accepts no more data: {said}")
        case redis_errors.ResponseError() if any(word in str(error) for word in _FULL):
            return StorageFullError(f"the server accepts no more data: {said}")
        case redis_errors.ReadOnlyError():
            return NotConnectedError(f"{where} is a replica now; reconnecting")
        case redis_errors.BusyLoadingError():
            kind = ConnectionFailedError if opening else NotConnectedError
            return kind(f"{where} is loading its data; it accepts commands once it has finished")
        case redis_errors.MasterDownError():
            return NotConnectedError(f"{where} is a replica that has lost its primary: {error}")
        case _ if isinstance(error, _CLUSTER):
            return UnsupportedError(
                f"{where} is a node of a Redis Cluster, which is not supported; use a standalone "
                f"server ({type(error).__name__})"
            )
        case _ if isinstance(error, _GONE):
            if opening:
                return ConnectionFailedError(f"cannot reach {said}; check host, port and TLS")
            return SendUnconfirmedError(
                f"the connection was lost before the reply arrived; the outcome is unknown: {said}"
            )
        case UnicodeEncodeError():
            return UnstorableError(f"a text cannot be encoded: {said}")
        case redis_errors.ResponseError() if str(error).startswith("BUSY "):
            return NotConnectedError(
                f"{where} is busy with a script; it accepts commands once that has finished"
            )
        case redis_errors.ResponseError() if str(error).startswith("WRONGTYPE"):
            return TransportError(
                f"a key of ours has another type: {said}; another program uses this prefix: give "
                f"one of them another prefix, or delete the key"
            )
        case redis_errors.DataError() | redis_errors.LockError():
            return ConfigurationError(said)
        case _:
            return ConnectionFailedError(said) if opening else TransportError(said)


UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, MessageTooLargeError)
"""Raised for a message that cannot be encoded, or is too large."""


def unstorable(what: str, error: Exception) -> UnstorableError:
    """The error for a message, or a dead letter, that can never be stored."""
    if isinstance(error, UnstorableError):
        return error
    made = UnstorableError(f"{what} cannot be stored: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
