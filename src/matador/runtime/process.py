"""Runs an application as a process of its own, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

from matador.runtime.consumer import SLOT
from matador.runtime.threads import NAME

log = logging.getLogger("matador")

FORCED_EXIT = 1

_LAST_MOMENT = 1.0


class Runnable(Protocol):
    """What can be run."""

    async def start(self) -> None:
        """Start."""
        ...

    async def shutdown(self) -> None:
        """Shut down in good order."""
        ...

    async def force_shutdown(self) -> None:
        """Shut down now."""
        ...


def run(app: Runnable, *, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    """Start, wait for SIGTERM or SIGINT, shut down. A second signal forces the shutdown.

    ``meanwhile`` runs beside the application (a display, say) and is cancelled with it. Where
    callbacks could not be stopped (in threads, or because they ignore being cancelled), the
    process exits all the same, with code 1.
    """
    forced = asyncio.run(_run(app, meanwhile))
    if forced and _threads_are_stuck():
        _exit_without("in threads")


def _exit_without(which: str) -> NoReturn:
    log.warning("callbacks %s are still running; exiting without them", which)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FORCED_EXIT)


async def _run(app: Runnable, meanwhile: Callable[[], Awaitable[None]] | None) -> bool:
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
        await app.start()
        beside = None if meanwhile is None else asyncio.ensure_future(meanwhile())
        await stop.wait()
        shutting_down = asyncio.create_task(app.shutdown())
        forcing = asyncio.create_task(force.wait())
        await asyncio.wait({shutting_down, forcing}, return_when=asyncio.FIRST_COMPLETED)
        if force.is_set():
            await app.force_shutdown()
        await shutting_down
        for task in (forcing, beside):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if _slots_are_stuck():  # the end of the loop would wait for them for ever
            _exit_without("that ignore being cancelled")
        return True
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _slots_are_stuck() -> bool:
    return any(task.get_name().startswith(SLOT) for task in asyncio.all_tasks())


def _threads_are_stuck() -> bool:
    """Do callbacks still run? Threads that only wait for work end within a moment."""
    until = time.monotonic() + _LAST_MOMENT
    callbacks = [t for t in threading.enumerate() if t.name.startswith(NAME)]
    for thread in callbacks:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in callbacks)
