"""Runs one callback: in a context of its own, in a thread if it is sync, within a time limit.

Whatever a callback raises becomes a ``Ran``: a failure like any other. Only a worker that is told
to stop interrupts a callback.
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
    """What came of a callback: a result, an error, or neither if it was interrupted.

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
"""Stands for the end of a worker, which is no failure of the callback."""


class InOwnContext(Generic[T]):
    """``await InOwnContext(coroutine)``: like ``await coroutine``, with its own context variables.

    A slot runs one message after the other in the same task. What a callback sets in a context
    variable (a tenant, a log binding) must not be there for the next message.
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
                    # It may be ours (closed), or what an awaited future has as its exception.
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
        """Await a call and say what came of it. Raises only what ends the process.

        A cancellation that the call raised itself, or brought upon its own task, is a failure:
        ``cancelled`` begins its text.
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
        """What a call that raised ``error`` came to.

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
        """Drop a callback's request to cancel this task: what follows may have to wait."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() and not self._interruption.happened:
            with contextlib.suppress(asyncio.CancelledError):
                await self._interruption.forgive()

    async def limited(
        self, call: Awaitable[T], limit: float, who: str, steps: Steps | None = None
    ) -> T:
        """Await a call for at most ``limit`` seconds, then cancel it.

        The time in which ``steps`` wait for their store does not count.

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

        A thread cannot be stopped. One that takes longer than ``limit`` seconds is logged and
        waited for: giving up on it would run the message twice at once.
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
    """A call that raises what another has raised."""
    try:
        raise error
    finally:
        del error  # or its traceback would keep it in a cycle


def _wrapped(text: str, cause: BaseException) -> RuntimeError:
    error = RuntimeError(text)
    error.__cause__ = cause
    return error
