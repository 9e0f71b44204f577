"""Runs one callback: in its own context, in a thread if it is sync, within a time limit.

Every exception of a callback becomes a ``Ran``. Only the shutdown of the worker interrupts a
callback.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

import msgspec

from matador.errors import TimeoutError
from matador.model.text import error_text
from matador.runtime.countdown import Countdown
from matador.runtime.interruption import Interruption
from matador.runtime.steps import Steps
from matador.runtime.threads import Threads
from matador.transports.clock import Alarms, Clock, SystemClock

log = logging.getLogger("matador.worker")

T = TypeVar("T")

AWAITED = "the callback awaited something that was"


class Ran(msgspec.Struct):
    """The outcome of a callback: a result, an error, or neither if it was interrupted.

    An error's traceback holds the frames it passed through. Frames that hold this value delete it
    before they end; otherwise every failure would live on in a reference cycle.
    """

    result: Any = None
    error: Exception | None = None
    interrupted: bool = False

    @property
    def outcome(self) -> tuple[Any, Exception | None]:
        """The result, and the error: ``INTERRUPTED`` if it was interrupted."""
        return self.result, INTERRUPTED if self.interrupted else self.error


INTERRUPTED = RuntimeError("interrupted")
"""Marks an interruption by the shutdown of the worker, which is not a failure of the callback."""


class InOwnContext(Generic[T]):
    """``await InOwnContext(coroutine)``: like ``await coroutine``, with its own context variables.

    A slot handles its messages in the same task, one after the other. The context variables that a
    callback sets (a tenant, a log binding) must not affect the next message.
    """

    __slots__ = ("_coroutine", "_run", "_step")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], context: Context | None = None, step: Any = None
    ) -> None:
        """With ``context``, the coroutine was started in it, and waits for ``step``."""
        self._coroutine = coroutine
        self._run = None if context is None else context.run
        self._step = step

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, run, step = self._coroutine, self._run, self._step
        try:
            if run is None:
                run = copy_context().run
                step = run(coroutine.send, None)
            while True:
                try:
                    received = yield step
                except BaseException as error:  # noqa: BLE001 - GeneratorExit, too: see below
                    # Either this object was closed, or an awaited future has this exception.
                    step = run(coroutine.throw, error)
                else:
                    step = run(coroutine.send, received)
        except StopIteration as done:
            return done.value


class Calls:
    """Runs callbacks for a handler. Used by many slots at once.

    ``clock``: measures the time that a callback takes, if it has alarms.
    """

    def __init__(
        self, threads: Threads, interruption: Interruption, clock: Clock | None = None
    ) -> None:
        self._threads = threads
        self._interruption = interruption
        self._alarms = clock if isinstance(clock, Alarms) else SystemClock()

    async def run(self, call: Awaitable[Any], cancelled: str = AWAITED) -> Ran:
        """Await a call and return its outcome. Raises only exceptions that end the process.

        A cancellation that the call raised or requested itself is a failure; its text begins with
        ``cancelled``.
        """
        try:
            return Ran(await call)
        except BaseException as error:  # noqa: BLE001 - what ends the process is raised again
            ran = self.failed(error, cancelled)
        if ran.error is not None:
            await self.clear_cancellation()
        try:
            return ran
        finally:
            del ran

    def failed(self, error: BaseException, cancelled: str = AWAITED) -> Ran:
        """The outcome of a call that raised ``error``.

        Raises:
            KeyboardInterrupt, SystemExit: they end the process.
        """
        if isinstance(error, Exception):
            return Ran(error=error)
        if isinstance(error, asyncio.CancelledError):
            if self._interruption.happened:
                return Ran(interrupted=True)
            return Ran(error=_wrapped(f"{cancelled} cancelled", error))
        if isinstance(error, SystemExit):
            log.critical(
                "a callback raised SystemExit (%s), which ends this process; its message will be "
                "delivered again",
                error,
            )
            raise error
        if isinstance(error, KeyboardInterrupt):
            raise error
        return Ran(error=_wrapped(f"{type(error).__name__}: {error_text(error)}", error))

    async def clear_cancellation(self) -> None:
        """Drop a callback's request to cancel this task, because later steps may await."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() and not self._interruption.happened:
            with contextlib.suppress(asyncio.CancelledError):
                await self._interruption.forgive()

    async def limited(
        self, call: Awaitable[T], limit: float, who: str, steps: Steps | None = None
    ) -> T:
        """Await a call for at most ``limit`` seconds, then cancel it.

        The time that ``steps`` wait for their store does not count.

        Raises:
            TimeoutError: the limit passed; it is ``interrupted``.
        """
        now, scope = asyncio.get_running_loop().time, asyncio.timeout(None)
        countdown = Countdown(limit, self._alarms, lambda: scope.reschedule(now()))
        if steps is not None:
            steps.countdown = countdown
        try:
            async with scope:
                countdown.resume()
                return await call
        except builtins.TimeoutError as error:
            if not scope.expired():
                raise
            late = TimeoutError(f"{who} took longer than its timeout of {limit:g} s")
            late.interrupted = True
            raise late from error
        finally:
            countdown.pause()

    async def in_thread(
        self, function: Callable[..., Any], *arguments: Any, limit: float | None, who: str
    ) -> Any:
        """Call a sync function in a thread, with a copy of the context variables.

        A thread cannot be stopped. After ``limit`` seconds, a warning is logged and the wait
        continues: otherwise a retry would run the message twice at the same time.
        """
        context = copy_context()
        future = self._threads.start(lambda: context.run(function, *arguments))
        if limit is not None:
            done, _ = await asyncio.wait([future], timeout=limit)
            if not done:
                log.warning("%s runs for longer than its timeout of %g s", who, limit)
        result = (await future).get()
        return await result if inspect.isawaitable(result) else result


async def raising(error: BaseException) -> None:
    """A call that raises the error of another call."""
    try:
        raise error
    finally:
        del error  # or its traceback would keep it in a cycle


def _wrapped(text: str, cause: BaseException) -> RuntimeError:
    error = RuntimeError(text)
    error.__cause__ = cause
    return error
