"""Watches the event loop from a thread.

While the loop is blocked, by ``time.sleep`` in an ``async def`` for example, nothing that runs on
it can renew leases: the thread does, over a connection of its own that it opens only then. A loop
that is blocked for more than a few seconds is logged with the name of the function that blocks it.

A handler that blocks the loop forever keeps its leases forever, like one that awaits forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from matador.runtime.consumer import SLOT, Consumer
from matador.runtime.leases import LeaseKeeper
from matador.transports.base import LeasingTransport

log = logging.getLogger("matador.worker")

BLOCKED_FOR = 3.0
"""Seconds after which a blocked loop is logged; logged again after ten times as long."""

_LONGEST_TICK = 1.0
_ANSWER_AT_MOST = 10.0  # seconds
_STOP_AT_MOST = 2.0  # seconds; the thread is a daemon, and may be left behind

_MATADOR = str(Path(__file__).parents[1]) + os.sep
_ASYNCIO = Path(asyncio.__file__).parent
_STANDARD = str(_ASYNCIO.parent) + os.sep
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_RUNS_THE_LOOP = {str(_ASYNCIO / name) for name in ("base_events.py", "events.py", "runners.py")}


class LoopWatch:
    """A daemon thread beside the event loop of a worker; ``start`` and ``stop`` belong to the loop.

    The loop counts beats. A count that does not change shows that the loop is blocked. A frozen
    process is not mistaken for a blocked loop: its thread was frozen, too, and must see two missed
    beats.

    Args:
        leases: the leases to renew; None: the transport has no leases.
        consumers: those of the worker. A blocking handler of another worker is logged by that
            worker.
    """

    def __init__(self, leases: LeaseKeeper | None, consumers: Sequence[Consumer]) -> None:
        self._leases = leases
        self._consumers = consumers
        self._tick = _LONGEST_TICK
        if leases is not None:
            self._tick = min(_LONGEST_TICK, leases.lease / 12)
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._gone = asyncio.Event()
        # The loop's
        self._beats = 0
        self._timer: asyncio.TimerHandle | None = None
        # The thread's
        self._seen = -1
        self._looked_at = time.monotonic()
        self._blocked = 0.0
        self._log_at = BLOCKED_FOR
        self._stand_in_at = 0.0
        self._standing_in: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    def start(self) -> None:
        """Begin to watch the running event loop. Called once."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="matador-loop-watch", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop watching. Takes two seconds at most; later actions of the thread have no effect."""
        if self._thread is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()
        if (standing_in := self._standing_in) is not None:
            loop, task = standing_in
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_AT_MOST):
                await self._gone.wait()
        self._thread = None

    def _beat(self) -> None:
        self._beats += 1
        if self._leases is not None:
            self._leases.beat()
        self._timer = self._loop.call_later(self._tick, self._beat)

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.wait(self._tick) and not self._loop.is_closed():
            try:
                self._look()
                if self._must_stand_in and time.monotonic() >= self._stand_in_at:
                    self._stand_in()
            except Exception:
                log.exception("watching the event loop failed")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._gone.set)

    def _look(self) -> None:
        """Check for how long the loop has been blocked."""
        now = time.monotonic()
        since, self._looked_at = now - self._looked_at, now
        if self._beats != self._seen or not self._loop.is_running():
            self._seen, self._blocked, self._log_at = self._beats, 0.0, BLOCKED_FOR
            return
        self._blocked += min(
            since, BLOCKED_FOR / 2
        )  # longer: the whole process may have been frozen
        if self._blocked >= self._log_at:
            self._log_at = 10 * self._blocked
            self._name_culprit()

    def _name_culprit(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage] - documented
        task = asyncio.current_task(self._loop)
        name = task.get_name() if task is not None else ""
        where = ""
        if name.startswith(f"{SLOT}-"):
            queue = name.removeprefix(f"{SLOT}-")
            if all(consumer.queue != queue for consumer in self._consumers):
                return
            where = f", handling a message of {queue}"
        if frame is None:
            return
        log.warning(
            "the event loop has been blocked for %.0f s by %s%s: nothing else runs meanwhile. "
            "Make it a plain function, which runs in a thread, or await asyncio.to_thread(...)",
            self._blocked,
            culprit_of(frame),
            where,
        )

    @property
    def _must_stand_in(self) -> bool:
        """Whether to renew in place of the loop. Leases of an ended loop must expire."""
        leases = self._leases
        return leases is not None and leases.is_late and self._loop.is_running()

    def _stand_in(self) -> None:
        """Renew leases in place of the loop until it continues. Failures are retried."""
        assert self._leases is not None
        self._stand_in_at = time.monotonic() + self._leases.lease / 6
        twin = self._leases.twin()
        if twin is None:
            return
        try:
            asyncio.run(self._renew(self._leases, twin))
        except asyncio.CancelledError:
            pass  # stopped
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            why = f"{type(error).__name__}: {error}"
            log.warning("could not renew leases while the event loop is blocked: %s", why)
        finally:
            self._standing_in = None

    async def _renew(self, leases: LeaseKeeper, twin: LeasingTransport) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._standing_in = asyncio.get_running_loop(), task
        every, renew_at = leases.lease / 3, 0.0
        try:
            async with asyncio.timeout(_ANSWER_AT_MOST):
                await twin.connect()
            while self._must_stand_in and not self._ended.is_set():
                if time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + every
                    async with asyncio.timeout(_ANSWER_AT_MOST):
                        await leases.renew_with(twin, self._loop)
                await asyncio.sleep(self._tick)
                self._look()
        finally:
            with contextlib.suppress(Exception):  # there is nothing to lose
                async with asyncio.timeout(_STOP_AT_MOST):
                    await twin.disconnect()


def culprit_of(frame: FrameType | None) -> str:
    """Describe the code that runs in the innermost ``frame``: the user's function and its current
    line.

    The function is the outermost one outside Matador, such as a handler or a hook. The line is in
    the innermost one outside the standard library, such as a database client.
    """
    innermost: FrameType | None = None
    outermost: FrameType | None = None
    ours: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file in _RUNS_THE_LOOP:
            break
        if file.startswith(_MATADOR):
            if innermost is not None:
                break
            ours = ours or frame
        elif not _is_standard(file):
            innermost, outermost = innermost or frame, frame
        frame = frame.f_back
    function, line = outermost or ours, innermost or ours
    if function is None or line is None:
        return "something outside of Python"
    return f"{_name(function)} (at {line.f_code.co_filename}:{line.f_lineno})"


def _is_standard(file: str) -> bool:
    if file.startswith("<frozen "):
        return True
    return file.startswith(_STANDARD) and not file.startswith(_PACKAGES)


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"
