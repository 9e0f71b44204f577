"""Takes a server's answers out of the bytes that arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis
from redis import exceptions as redis_errors

_NOT_YET = object()

# The first word of an error says what it is.
_ERRORS: dict[str, type[redis_errors.RedisError]] = {
    "ASK": redis_errors.ResponseError,
    "CLUSTERDOWN": redis_errors.ClusterDownError,
    "CROSSSLOT": redis_errors.ClusterCrossSlotError,
    "LOADING": redis_errors.BusyLoadingError,
    "MASTERDOWN": redis_errors.MasterDownError,
    "NOAUTH": redis_errors.AuthenticationError,
    "NOPERM": redis_errors.NoPermissionError,
    "NOSCRIPT": redis_errors.NoScriptError,
    "OOM": redis_errors.OutOfMemoryError,
    "READONLY": redis_errors.ReadOnlyError,
    "TRYAGAIN": redis_errors.TryAgainError,
    "WRONGPASS": redis_errors.AuthenticationError,
}


class Answers(asyncio.Protocol):
    """Reads what comes in on a connection that redis-py has made.

    Args:
        transport: the connection, taken over from the protocol it has.
        answered: called with every answer; an error is one too.
        lost: called with the reason when the connection ends.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        answered: Callable[[Any], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        self._answered = answered
        self._lost = lost
        self._reader = hiredis.Reader(replyError=error_of, notEnoughData=_NOT_YET)
        self._before = transport.get_protocol()
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        reader = self._reader
        try:
            reader.feed(data)
            while (answer := reader.gets()) is not _NOT_YET:
                self._answered(answer)
        except Exception as error:  # noqa: BLE001 - bytes that are no answers: of no use any more
            self._lost(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._before.connection_lost(exc)  # whoever closes the connection waits for that
        self._lost(exc or redis_errors.ConnectionError("the server closed the connection"))


def error_of(text: str) -> redis_errors.RedisError:
    """The error of redis-py for one that the server has answered with."""
    word = text.partition(" ")[0]
    return _ERRORS.get(word, redis_errors.ResponseError)(text)
