"""A task of a Spark worker: runs the application as an ordinary worker for one slice of time.

A Python process of Spark runs one task after another and keeps its modules, so the application is
loaded once. It is shut down after each slice, because this process may not get another slice soon.
Meanwhile the broker delivers its messages to other workers.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from matador.events.app import Matador, SyncMatador
from matador.events.queue_pauses import pausing
from matador.loading import load_application
from matador.observe.counters import OutcomeCount, OutcomeCounter, describe
from matador.runtime.hooks import Hooks
from matador.spark.runtime.shutdown import StopAddress
from matador.transports.base import Measuring

log = logging.getLogger("matador.spark")

_ASK_DEPTH = 0.5

End: TypeAlias = Literal["time", "stop", "empty"] | tuple[str, ...]
"""Why a slice ended. The names of queues: nothing is left but messages there, and they are paused.
"""


@dataclass(frozen=True, slots=True)
class Slice:
    """The work of one task. Pickled, so it is plain data.

    ``reference`` finds the application in the executors; None for ``queues`` and ``concurrency``
    means those of the application. After ``seconds`` nothing is received any more, and callbacks
    have ``drain`` seconds to finish before they are canceled.
    """

    reference: str
    queues: tuple[str, ...] | None
    concurrency: int | None
    seconds: float
    drain: float
    until_empty: bool
    stop: StopAddress | None


class SliceReport(msgspec.Struct, frozen=True):
    """The report of a task: outcomes, whether its queues were empty, and why it failed.

    ``paused``: these queues are not empty, and cannot become so, because they are paused.
    """

    counts: list[OutcomeCount]
    empty: bool = False
    paused: list[str] = []
    problem: str | None = None


def run_slice(work: Slice, number: int = 0) -> bytes:
    """The function of a task, for ``run_tasks``: run a slice, and report as JSON."""
    return msgspec.json.encode(_host_of(work).run(work))


# -- what a Python process keeps between its tasks -----------------------------------------------

_hosts: dict[tuple[object, ...], _Host] = {}


def _host_of(work: Slice) -> _Host:
    key = (work.reference, work.queues, work.concurrency)
    return _hosts.setdefault(key, _Host())


class _SliceConcurrency(Hooks):
    def __init__(self, number: int) -> None:
        self._number = number

    def get_queue_concurrency(self, queue: str) -> int:
        return self._number


class _Host:
    """An application in this process, with its counts. Slices run one after the other."""

    def __init__(self) -> None:
        self._counter = OutcomeCounter()
        self._sync: SyncMatador | None = None

    def run(self, work: Slice) -> SliceReport:
        """Run a slice. Never raises: after an error Spark would kill the process."""
        try:
            end = self._run(work)
        except Exception as error:
            log.exception("a slice of %s failed", work.reference)
            return SliceReport(self._counter.take(), problem=describe(error))
        paused = list(end) if isinstance(end, tuple) else []
        return SliceReport(self._counter.take(), empty=end == "empty", paused=paused)

    def _run(self, work: Slice) -> End:
        if self._sync is None:
            app = load_application(work.reference).app
            more = [] if work.concurrency is None else [_SliceConcurrency(work.concurrency)]
            app.configure(consume_from=work.queues or (), hooks=[self._counter, *more])
            self._sync = app.sync()
        sync = self._sync
        sync.start()
        try:
            return sync.wait(lambda app: _end_of(app, work))
        finally:
            sync.shutdown(work.drain)  # gives back what has not started


async def _end_of(app: Matador, work: Slice) -> End:
    loop = asyncio.get_running_loop()
    until = loop.time() + work.seconds
    stop = asyncio.create_task(_told(work.stop))
    try:
        while (left := until - loop.time()) > 0:
            pause = min(left, _ASK_DEPTH) if work.until_empty else left
            await asyncio.wait({stop}, timeout=pause)
            if stop.done():
                return "stop"
            if work.until_empty and app.state.is_idle:
                paused = await _paused_ones(app)
                if paused is not None:
                    return paused or "empty"
        return "time"
    finally:
        stop.cancel()
        await asyncio.gather(stop, return_exceptions=True)


async def _told(stop: StopAddress | None) -> None:
    """Return when the driver stops; never, if it cannot be reached."""
    if stop is None or not await stop.wait():
        await asyncio.Event().wait()


async def _paused_ones(app: Matador) -> tuple[str, ...] | None:
    """The paused queues that have messages. None: there are messages, or messages in flight
    elsewhere, that may still be handled. So an empty tuple means that all queues are empty."""
    if not isinstance(app.transport, Measuring):
        return None
    pauses = pausing(app.transport)
    found: list[str] = []
    for queue in app.consume_from:
        name = app.topology.full_name(queue)
        depth = await app.transport.depth(name)
        if not (depth.ready or depth.delayed or depth.in_flight):
            continue
        if depth.in_flight or pauses is None or not await pauses.is_paused(name):
            return None
        found.append(queue)
    return tuple(found)
