"""A connection that pipelines the commands of many callers. Each caller awaits its own reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import hiredis
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

Argument: TypeAlias = bytes | str | int | float

_NOT_YET = object()
_pack: Callable[[tuple[Argument, ...]], bytes] = getattr(hiredis, "pack_command")  # noqa: B009 - mistyped

# The first word of an error says what it is.
_ERRORS: dict[str, type[redis_errors.RedisError]] = {
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


def error_of(text: str) -> redis_errors.RedisError:
    """The redis-py error for an error reply of the server."""
    word = text.partition(" ")[0]
    return _ERRORS.get(word, redis_errors.ResponseError)(text)


class PipelinedConnection(asyncio.Protocol):
    """Writes commands without waiting for replies; replies arrive in the same order.

    redis-py opens the connection (TLS, authentication, the database). Then this class reads and
    writes its bytes. redis-py itself would need a task and two iterations of the event loop for
    each reply, and would drop the connection when a caller is canceled.

    The command of a canceled caller is still executed, and its reply is dropped. The connection is
    lost, and every command in flight fails, when a reply takes longer than ``timeout``. A silent
    connection is pinged, so that a dead one is noticed within two ``heartbeat``. ``lost`` is done
    then, with the reason.
    """

    def __init__(self, connection: AbstractConnection, *, timeout: float, heartbeat: float) -> None:
        self._connection = connection
        self._heartbeat = heartbeat
        # With the time between two checks, a connection that died under a command is noticed
        # within two heartbeats, too.
        self._reply_within = min(timeout, 1.75 * heartbeat)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._outgoing: list[bytes] = []
        self._wrote = False
        self._heard = self._loop.time()
        self.lost: asyncio.Future[BaseException] = self._loop.create_future()
        # redis-py keeps the writer to itself: there is no public way to it.
        writer = cast("asyncio.StreamWriter", getattr(connection, "_writer"))  # noqa: B009
        self._transport = cast("asyncio.Transport", writer.transport)
        self._reader = hiredis.Reader(replyError=error_of, notEnoughData=_NOT_YET)
        self._before = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self._watching = asyncio.create_task(self._watch(), name="matador-redis-watch")

    def call(self, *arguments: Argument, patience: float = 0.0) -> asyncio.Future[Any]:
        """Send a command; the future is the reply, or the error the server gave.

        ``patience``: seconds for which the command itself blocks on the server.
        """
        return self._send(_pack(arguments), patience)

    def call_all(
        self, commands: Sequence[tuple[Argument, ...]], *, patience: float = 0.0
    ) -> list[asyncio.Future[Any]]:
        """Send several commands. One that cannot be encoded is raised, and none is sent."""
        packed = [_pack(command) for command in commands]
        return [self._send(command, patience) for command in packed]

    def _send(self, packed: bytes, patience: float = 0.0) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(_lost(self.lost.result()))
            return future
        alone = not self._waiting
        self._waiting.append((future, self._loop.time() + patience + self._reply_within))
        # The first command is written at once, others of the same turn of the loop in one write:
        # a lone caller need not wait for the next turn.
        if self._wrote:
            self._outgoing.append(packed)
        elif alone:
            self._transport.write(packed)
        else:
            self._wrote = True
            self._transport.write(packed)
            self._loop.call_soon(self._flush)
        return future

    async def drain(self) -> None:
        """Wait until every command in flight has its reply."""
        while self._waiting:
            await asyncio.wait([self._waiting[-1][0]])

    async def close(self) -> None:
        """Drop the connection; commands in flight fail. Idempotent."""
        self.fail(redis_errors.ConnectionError("closed"))
        self._watching.cancel()
        try:
            await asyncio.gather(self._watching, return_exceptions=True)
        finally:  # also if this is canceled
            with contextlib.suppress(Exception):
                await self._connection.disconnect()

    def fail(self, error: BaseException) -> None:
        """Count as lost from now on, for this reason."""
        if self.lost.done():
            return
        self.lost.set_result(error)
        self._outgoing.clear()
        self._transport.abort()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(_lost(error))

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOT_YET:
                self._answered(reply)
        except Exception as error:  # noqa: BLE001 - not the Redis protocol: useless from here on
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._before.connection_lost(exc)  # ``close`` of the connection waits for this
        self.fail(exc or redis_errors.ConnectionError("the server closed the connection"))

    def _flush(self) -> None:
        self._wrote = False
        if self._outgoing:
            self._transport.write(b"".join(self._outgoing))
            self._outgoing.clear()

    def _answered(self, reply: Any) -> None:
        future, _ = self._waiting.popleft()
        self._heard = self._loop.time()
        if future.done():
            return
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    async def _watch(self) -> None:
        while not self.lost.done():
            await asyncio.sleep(self._heartbeat / 4)
            now = self._loop.time()
            if self._waiting:
                if now > self._waiting[0][1]:
                    self.fail(redis_errors.TimeoutError("no reply in time"))
            elif now > self._heard + self._heartbeat / 2:
                # Half a heartbeat of silence, one for the reply, and the time between two checks:
                # a dead connection is noticed within two heartbeats.
                patience = min(0.0, self._heartbeat - self._reply_within)
                self.call("PING", patience=patience).add_done_callback(forget)


class ListeningConnection(PipelinedConnection):
    """A connection for ``SUBSCRIBE``; ``heard`` is called with channel and message of each push."""

    heard: Callable[[bytes, bytes], None]

    def _answered(self, reply: Any) -> None:
        pushed = cast("list[bytes]", reply) if type(reply) is list else None
        if pushed and pushed[0] == b"message":
            self._heard = self._loop.time()
            self.heard(pushed[1], pushed[2])
        else:
            super()._answered(reply)


def _lost(error: BaseException) -> redis_errors.ConnectionError:
    made = redis_errors.ConnectionError(str(error) or type(error).__name__)
    made.__cause__ = error
    return made


def forget(future: asyncio.Future[Any]) -> None:
    """Ignore how a command ends."""
    if not future.cancelled():
        future.exception()
