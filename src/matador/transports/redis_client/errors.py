"""Translates what redis-py raises into errors that say what happened and what to do."""

from __future__ import annotations

from redis import exceptions as redis_errors

from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    MatadorError,
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
# What the server says when it cannot write, in front of an error of no class of its own; a script
# and a transaction say it somewhere in the middle.
_FULL = ("OOM ", "MISCONF ", "NOREPLICAS ")


def is_gone(error: BaseException) -> bool:
    """Is the connection lost, so that the outcome of what was under way is unknown?"""
    return isinstance(error, _GONE) and not isinstance(
        error, (*_REFUSED, redis_errors.BusyLoadingError, redis_errors.ClusterDownError)
    )


def is_moved_on(error: BaseException) -> bool:
    """Is the server another than it was, a replica, so that the primary has to be found again?"""
    return isinstance(error, redis_errors.ReadOnlyError)


def translate(error: BaseException, where: str, *, opening: bool = False) -> MatadorError:
    """The error of this package that stands for ``error``, with ``error`` as its cause.

    ``where`` names the server, without credentials.
    """
    if isinstance(error, MatadorError):
        return error
    made = _translate(error, where, opening)
    made.__cause__ = error
    return made


def _translate(error: BaseException, where: str, opening: bool) -> MatadorError:
    said = f"{where}: {error}" if str(error) else f"{where}: {type(error).__name__}"
    match error:
        case _ if isinstance(error, _REFUSED):
            hint = "check user, password and what the user may do (ACL)"
            kind = ConnectionFailedError if opening else TransportError
            return kind(f"{said}; {hint}")
        case _ if _is_full(error):
            return StorageFullError(f"the server takes no more: {said}")
        case redis_errors.ReadOnlyError():
            return NotConnectedError(f"{where} is a replica now; it is connected anew")
        case redis_errors.BusyLoadingError():
            kind = ConnectionFailedError if opening else NotConnectedError
            return kind(f"{where} is loading its data; it takes commands once it has")
        case redis_errors.MasterDownError():
            return NotConnectedError(f"{where} is a replica that has lost its primary: {error}")
        case _ if isinstance(error, _CLUSTER):
            return UnsupportedError(
                f"{where} is a node of a cluster, which this transport does not follow; "
                f"name a server of its own, or a proxy of the cluster ({type(error).__name__})"
            )
        case _ if isinstance(error, _GONE):
            if opening:
                return ConnectionFailedError(f"cannot reach {said}; check host, port and TLS")
            return SendUnconfirmedError(
                f"the connection was lost before the answer came, so the outcome is unknown: {said}"
            )
        case UnicodeEncodeError():
            return UnstorableError(f"a text cannot be encoded: {said}")
        case redis_errors.ResponseError() if str(error).startswith("BUSY "):
            return NotConnectedError(
                f"{where} is busy with a script and takes commands once it is done"
            )
        case redis_errors.ResponseError() if str(error).startswith("WRONGTYPE"):
            return TransportError(
                f"a key that should be ours holds something else: {said}; another program writes "
                f"names with this prefix: give one of the two another prefix, or delete the key"
            )
        case redis_errors.DataError() | redis_errors.LockError():
            return ConfigurationError(said)
        case _:
            return ConnectionFailedError(said) if opening else TransportError(said)


def _is_full(error: BaseException) -> bool:
    if isinstance(error, redis_errors.OutOfMemoryError):
        return True
    return isinstance(error, redis_errors.ResponseError) and any(
        word in str(error) for word in _FULL
    )
