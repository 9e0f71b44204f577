"""Keeps one broker connection alive: connects, waits until it is lost, backs off, restores it.

A transport passes three functions, which implement the protocol of the broker, and is notified of
every state. Time and randomness are passed in.
"""

from __future__ import annotations

import asyncio
import builtins
import random as randomness
from collections.abc import Awaitable, Callable
from typing import Generic, TypeAlias, TypeVar

from matador.errors import ConnectionFailedError, NotConnectedError, TimeoutError
from matador.model.backoff import ReconnectBackoff
from matador.model.message import ConnectionState

Connection = TypeVar("Connection")

Sleep: TypeAlias = Callable[[float], Awaitable[None]]


class ConnectionSupervisor(Generic[Connection]):
    """Keeps one connection alive until it is stopped.

    The states passed to ``on_state``, each once and in order::

        start():  connecting → connected | failed (and ConnectionFailedError)
        lost:     reconnecting(attempt 1, 2 …) → connected | failed after max_attempts
        stop():   disconnected

    A single task makes all attempts, so they never overlap. There is a delay before every attempt
    to reconnect, including the first, so that workers that lost the broker together do not
    reconnect together. Attempts are counted from 1 after every connection. ``start`` may be called
    again after ``stop`` and after a failure.

    Args:
        connect: connects, or raises.
        wait_lost: returns or raises the reason when the connection is lost. Canceled by ``stop``.
        restore: restores topology and subscriptions on a new connection before it counts as
            connected. If it raises, the attempt has failed; it must close the connection.
        backoff: the delays between attempts, and their maximum number.
        on_state: called with every new state; must return quickly.
        sleep, random: time and randomness.

    Example:
        >>> supervisor = ConnectionSupervisor(connect, wait_lost, restore)
        >>> await supervisor.start()
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        wait_lost: Callable[[Connection], Awaitable[BaseException | None]],
        restore: Callable[[Connection], Awaitable[None]],
        *,
        backoff: ReconnectBackoff | None = None,
        on_state: Callable[[ConnectionState], None] = lambda _: None,
        sleep: Sleep = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._connect = connect
        self._wait_lost = wait_lost
        self._restore = restore
        self._backoff = backoff or ReconnectBackoff()
        self._on_state = on_state
        self._sleep = sleep
        self._random = random
        self._state = ConnectionState("disconnected")
        self._changed = asyncio.Event()
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self._state

    @property
    def connection(self) -> Connection:
        """The current connection.

        Raises:
            NotConnectedError: there is none; the cause is the reason.
        """
        if self._connection is None:
            raise self._state.refusal(f"the connection is {self._state.status}")
        return self._connection

    async def start(self) -> None:
        """Connect, and keep the connection alive from then on. Idempotent.

        Makes a single attempt, so that the caller learns about a failure at once.

        Raises:
            ConnectionFailedError: the attempt failed; no further attempt is made in the background.
        """
        if self._task is None or self._task.done():
            self._started = asyncio.get_running_loop().create_future()
            self._started.add_done_callback(_heard)
            self._task = asyncio.create_task(self._run(self._started))
        assert self._started is not None
        try:
            await asyncio.shield(self._started)
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def wait_connected(self, timeout: float | None = None) -> Connection:
        """Wait for the connection.

        Raises:
            NotConnectedError: there will be no connection: stopped, or out of attempts.
            TimeoutError: the timeout expired.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._connection is None:
                    if self._state.status in ("disconnected", "failed"):
                        return self.connection
                    await self._changed.wait()
        except builtins.TimeoutError as error:
            raise TimeoutError(f"not connected after {timeout:g} s") from error
        return self._connection

    async def stop(self) -> None:
        """Stop. Idempotent. The caller closes the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._change(ConnectionState("disconnected", closed=self._started is not None))

    async def _run(self, started: asyncio.Future[None]) -> None:
        task = asyncio.current_task()
        attempt = 0  # to reconnect
        self._change(ConnectionState("connecting"))
        while True:
            try:
                connection = await self._connect()
                await self._restore(connection)
                attempt, self._connection = 0, connection
                self._change(ConnectionState("connected"))
                if not started.done():
                    started.set_result(None)
                reason = await self._wait_lost(connection)
            except (Exception, asyncio.CancelledError) as error:
                # A client library may cancel its own futures. If that ended this task, the
                # transport would be "connected" forever although its connection is lost.
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    if not started.done():
                        started.set_exception(NotConnectedError("stopped while connecting"))
                    raise
                reason = error
                if not started.done() or self._backoff.gives_up(attempt):
                    self._change(ConnectionState("failed", attempt or 1, reason))
                    if not started.done():
                        started.set_exception(_connection_failed(reason))
                    return
            attempt += 1
            self._change(ConnectionState("reconnecting", attempt, reason))
            await self._sleep(self._backoff.delay(attempt, self._random()))

    def _change(self, state: ConnectionState) -> None:
        if state.status != "connected":
            self._connection = None
        if state == self._state:
            return
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_state(state)


def _heard(started: asyncio.Future[None]) -> None:
    """Retrieve the exception, which asyncio would otherwise log if the caller of ``start`` was
    canceled."""
    if not started.cancelled():
        started.exception()


def _connection_failed(error: BaseException) -> ConnectionFailedError:
    if isinstance(error, ConnectionFailedError):
        return error
    failed = ConnectionFailedError(f"could not connect: {error or type(error).__name__}")
    failed.__cause__ = error
    return failed
