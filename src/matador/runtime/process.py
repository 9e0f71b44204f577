"""Runs services in the foreground until a signal ends the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal, NoReturn, Protocol

from matador.runtime.consumer import SLOT
from matador.runtime.threads import NAME

log = logging.getLogger("matador")

FORCED_EXIT = 1

_LAST_MOMENT = 1.0


class Runnable(Protocol):
    """A service that can be run."""

    async def start(self) -> None: ...

    async def shutdown(self, timeout: float | None = None) -> None:
        """Shut down gracefully; with ``timeout=0``, at once."""
        ...


def run(
    *services: Runnable,
    around: AbstractAsyncContextManager[object] | None = None,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Start, wait for SIGTERM or SIGINT, shut down. A second signal forces the shutdown.

    Several services start and shut down concurrently. If one of them cannot start, the others are
    shut down, and its error is raised. A signal ends a start that is still in progress.

    ``around`` is entered before the start and left after the shutdown. ``meanwhile`` (a display,
    for example) runs concurrently with the services once they have started, and is canceled with
    them; its error ends them. If callbacks cannot be stopped (in threads, or because they ignore
    cancellation), the process exits nevertheless, with code 1.
    """
    asyncio.run(_run(services, around or nullcontext(), meanwhile))
    if _threads_are_stuck():
        _exit_without("in threads")


def _exit_without(which: str) -> NoReturn:
    log.warning("callbacks %s are still running; exiting without them", which)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FORCED_EXIT)


async def _run(
    services: Sequence[Runnable],
    around: AbstractAsyncContextManager[object],
    meanwhile: Callable[[], Awaitable[None]] | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    force = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("%s again: shutting down at once", number.name)
            force.set()
        else:
            log.info("%s: shutting down, once running callbacks have finished", number.name)
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    try:
        async with around:
            starting = [asyncio.create_task(one.start()) for one in services]
            stopping = asyncio.create_task(stop.wait())
            try:
                error = await _started(starting, stopping)
                beside = None
                if error is None and meanwhile is not None and not stop.is_set():
                    beside = asyncio.ensure_future(meanwhile())
                    await asyncio.wait({beside, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    error = beside.exception() if beside.done() else None
                if error is None:
                    await stopping
                try:
                    await _end(services, starting, force)
                except Exception:
                    if error is None:
                        raise
                    log.exception("could not shut down after a start that failed")
                for task in (beside, *starting):
                    if task is not None:
                        task.cancel()
                        await asyncio.gather(task, return_exceptions=True)
            finally:
                stopping.cancel()
        if error is not None:
            raise error
        if _slots_are_stuck():  # closing the loop would wait for them forever
            _exit_without("that ignore being cancelled")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _started(
    starting: Sequence[asyncio.Task[None]], stopping: asyncio.Task[Literal[True]]
) -> BaseException | None:
    """Wait until all have started, one has failed, or a signal has come; returns the error."""
    waiting: set[asyncio.Task[Any]] = set(starting)
    while waiting:
        done, waiting = await asyncio.wait(
            {*waiting, stopping}, return_when=asyncio.FIRST_COMPLETED
        )
        for one in starting:
            if one in done and (error := one.exception()) is not None:
                return error
        if stopping in done:
            break
        waiting.discard(stopping)
    return None


async def _end(
    services: Sequence[Runnable], starting: Sequence[asyncio.Task[None]], force: asyncio.Event
) -> None:
    """Shut all down concurrently: started services gracefully, the others at once."""
    ending = asyncio.gather(
        *(
            one.shutdown() if start.done() else one.shutdown(timeout=0)
            for one, start in zip(services, starting, strict=True)
        ),
        return_exceptions=True,
    )
    forcing = asyncio.create_task(force.wait())
    await asyncio.wait({ending, forcing}, return_when=asyncio.FIRST_COMPLETED)
    if force.is_set():
        await asyncio.gather(*(one.shutdown(timeout=0) for one in services))
    forcing.cancel()
    for outcome in await ending:
        if isinstance(outcome, BaseException):
            raise outcome


def _slots_are_stuck() -> bool:
    return any(task.get_name().startswith(SLOT) for task in asyncio.all_tasks())


def _threads_are_stuck() -> bool:
    """Whether callbacks still run. Idle threads end within a moment."""
    until = time.monotonic() + _LAST_MOMENT
    callbacks = [t for t in threading.enumerate() if t.name.startswith(NAME)]
    for thread in callbacks:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in callbacks)
