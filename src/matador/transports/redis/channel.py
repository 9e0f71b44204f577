"""One connection on which commands of many callers travel together, each awaiting its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

Argument: TypeAlias = bytes | str | int

# Answers, though redis-py takes some of them for the end of a connection.
_ANSWERS = (
    redis_errors.ResponseError,
    redis_errors.BusyLoadingError,
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
)


class Channel:
    """Writes what was called during one turn of the loop in one go; reads answers in order.

    A caller that is cancelled leaves its command as it is: it is carried out, and its answer is
    dropped. The connection is lost, and every command under way fails, when an answer takes
    longer than ``timeout``; a silent connection is asked for a sign of life, so that a dead one
    is noticed within two ``heartbeat``. ``lost`` is done then, with the reason.
    """

    def __init__(
        self, connection: AbstractConnection, where: str, *, timeout: float, heartbeat: float
    ) -> None:
        self._connection = connection
        self._where = where
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._outgoing: list[bytes] = []
        self._heard = self._loop.time()
        self._tasks: list[asyncio.Task[None]] = []
        self._writing: asyncio.Task[None] | None = None
        self.lost: asyncio.Future[BaseException] = self._loop.create_future()

    def start(self) -> Channel:
        """Begin to read answers."""
        self._tasks = [
            asyncio.create_task(self._read(), name="matador-redis-read"),
            asyncio.create_task(self._watch(), name="matador-redis-watch"),
        ]
        return self

    def call(self, *arguments: Argument, patience: float = 0.0) -> asyncio.Future[Any]:
        """Send a command; the future is the answer, or the error the server gave.

        ``patience``: seconds for which the server itself is asked to wait.
        """
        return self._send(pack(arguments), patience)

    def call_packed(self, packed: bytes) -> asyncio.Future[Any]:
        """``call`` with a command that was packed already."""
        return self._send(packed, 0.0)

    def _send(self, packed: bytes, patience: float) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(_lost(self.lost.result()))
            return future
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(packed)
        self._waiting.append((future, self._loop.time() + patience + self._timeout))
        return future

    async def drain(self) -> None:
        """Wait until every command under way has its answer."""
        while self._waiting:
            await asyncio.wait([self._waiting[-1][0]])

    async def close(self) -> None:
        """Drop the connection; commands under way fail. Idempotent."""
        self.fail(redis_errors.ConnectionError("closed"))
        tasks = [*self._tasks, *([self._writing] if self._writing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._connection.disconnect()

    def fail(self, error: BaseException) -> None:
        """Count as lost from now on, for this reason."""
        if self.lost.done():
            return
        self.lost.set_result(error)
        self._outgoing.clear()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(_lost(error))

    def _flush(self) -> None:
        # One writer at a time: it takes along what is called while it waits for the socket.
        if self._outgoing and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write(), name="matador-redis-write")

    async def _write(self) -> None:
        try:
            while self._outgoing and not self.lost.done():
                outgoing, self._outgoing = self._outgoing, []
                await self._connection.send_packed_command(outgoing, check_health=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection is of no use
            self.fail(error)

    async def _read(self) -> None:
        connection: Any = self._connection
        try:
            while True:
                answer: Any
                try:
                    answer = await connection.read_response(disconnect_on_error=False)
                except _ANSWERS as error:
                    answer = error
                self._heard = self._loop.time()
                future, _ = self._waiting.popleft()
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection is of no use
            self.fail(error)

    async def _watch(self) -> None:
        while not self.lost.done():
            await asyncio.sleep(self._heartbeat / 4)
            now = self._loop.time()
            if self._waiting:
                if now > self._waiting[0][1]:
                    self.fail(redis_errors.TimeoutError(f"no answer within {self._timeout:g} s"))
            elif now > self._heard + self._heartbeat / 2:
                # Noticed within two heartbeats: half of silence, one for the answer, the checks.
                patience = min(0.0, self._heartbeat - self._timeout)
                self.call("PING", patience=patience).add_done_callback(_forget)


def pack(arguments: Iterable[Argument]) -> bytes:
    """A command as it travels."""
    parts = [b""]
    for argument in arguments:
        if type(argument) is bytes:
            data = argument
        elif type(argument) is str:
            data = argument.encode()
        else:
            data = b"%d" % int(argument)
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    parts[0] = b"*%d\r\n" % (len(parts) - 1)
    return b"".join(parts)


def _lost(error: BaseException) -> redis_errors.ConnectionError:
    made = redis_errors.ConnectionError(str(error) or type(error).__name__)
    made.__cause__ = error
    return made


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
