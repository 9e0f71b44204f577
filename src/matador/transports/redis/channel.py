"""One connection on which commands of many callers travel together, each awaiting its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

from matador.transports.redis.answers import Answers

Argument: TypeAlias = bytes | str | int


class Channel:
    """Writes commands as they are called, without waiting for answers; answers come in order.

    redis-py makes the connection (TLS, authentication, the choice of the database); from then on
    the bytes are ours. Its own way would cost a task and two turns of the loop for every answer,
    and would end the connection when a caller is cancelled.

    A caller that is cancelled leaves its command as it is: it is carried out, and its answer is
    dropped. The connection is lost, and every command under way fails, when an answer takes
    longer than ``timeout``; a silent connection is asked for a sign of life, so that a dead one
    is noticed within two ``heartbeat``. ``lost`` is done then, with the reason.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        transport: asyncio.Transport,
        *,
        timeout: float,
        heartbeat: float,
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._outgoing: list[bytes] = []
        self._wrote = False
        self._heard = self._loop.time()
        self.lost: asyncio.Future[BaseException] = self._loop.create_future()
        self._transport = transport
        Answers(self._transport, self._answered, self.fail)
        self._watching = asyncio.create_task(self._watch(), name="matador-redis-watch")

    def call(self, *arguments: Argument, patience: float = 0.0) -> asyncio.Future[Any]:
        """Send a command; the future is the answer, or the error the server gave.

        ``patience``: seconds for which the server itself is asked to wait.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(_lost(self.lost.result()))
            return future
        packed = pack(arguments)
        alone = not self._waiting
        self._waiting.append((future, self._loop.time() + patience + self._timeout))
        # The first at once; what else is called in this turn of the loop goes in one write. Who
        # calls one by one is spared the turn that it takes to see that there is nothing else.
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
        """Wait until every command under way has its answer."""
        while self._waiting:
            await asyncio.wait([self._waiting[-1][0]])

    async def close(self) -> None:
        """Drop the connection; commands under way fail. Idempotent."""
        self.fail(redis_errors.ConnectionError("closed"))
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
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

    def _flush(self) -> None:
        self._wrote = False
        if self._outgoing:
            self._transport.write(b"".join(self._outgoing))
            self._outgoing.clear()

    def _answered(self, answer: Any) -> None:
        future, _ = self._waiting.popleft()
        self._heard = self._loop.time()
        if future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def _watch(self) -> None:
        while not self.lost.done():
            await asyncio.sleep(self._heartbeat / 4)
            now = self._loop.time()
            if self._waiting:
                if now > self._waiting[0][1]:
                    self.fail(redis_errors.TimeoutError("no answer in time"))
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
