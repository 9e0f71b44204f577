"""Looks at the broker every few seconds, remembers what it saw, and wakes those who watch."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from matador.dashboard.letter_index import LetterIndex
from matador.errors import MatadorError
from matador.events.app import Matador
from matador.events.queue_counts import QueueCounts, count
from matador.events.queue_pauses import pausing, why_not
from matador.observe.history.store import Depth, HistoryStore
from matador.observe.oldest import oldest_due, tells_age
from matador.runtime.few_at_once import few_at_once
from matador.transports.base import Browsing, BrowsingByTaking, BrowsingDeadLetters

log = logging.getLogger("matador.dashboard")

EVERY = 2.0
"""Seconds between two looks, at least."""

_SHARE = 10  # looking, and reading the index, take at most one part in so many of the time each
_LIMIT = 10.0  # seconds to wait for an answer
_KEEP_EVERY = 10.0  # seconds between two rows of the history
_PRUNE_EVERY = 3600.0
_READ_ALL_EVERY = 300.0


@dataclass(frozen=True, slots=True)
class QueueView:
    """A work queue as it was at the last look."""

    name: str
    counts: QueueCounts
    oldest_at: float | None = None

    @property
    def dead(self) -> int:
        """All of its dead letters."""
        return sum(number or 0 for number in self.counts.dead_letters.values())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the last look has shown. ``cannot`` says what this transport does not show."""

    at: float = 0.0
    queues: tuple[QueueView, ...] = ()
    connection: str = "connecting"
    problem: str | None = None
    problem_since: float | None = None
    cannot: tuple[str, ...] = field(default=())

    @property
    def dead(self) -> int:
        """All dead letters."""
        return sum(queue.dead for queue in self.queues)


class Monitor:
    """Watches one application, whose transport is connected. One task looks, another reads."""

    def __init__(self, app: Matador, store: HistoryStore, index: LetterIndex) -> None:
        self._app = app
        self._store = store
        self._index = index
        self._changed = asyncio.Event()
        self._look_now = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = self._ended = 0  # looks
        self._kept_at = self._pruned_at = float("-inf")
        self.snapshot = Snapshot()
        self.index_problem: str | None = None
        self.history_problem: str | None = None

    @property
    def counts_messages(self) -> bool:
        """Can the transport count messages?"""
        return self._app.transport.capabilities.depth

    @property
    def browses(self) -> bool:
        """Can the transport show the messages of work queues?"""
        transport = self._app.transport
        return transport.capabilities.browse and isinstance(transport, Browsing)

    @property
    def browses_letters(self) -> bool:
        """Can the transport show dead letters?"""
        return self.browses or isinstance(self._app.transport, BrowsingDeadLetters)

    @property
    def pauses(self) -> bool:
        """Can the transport pause queues?"""
        return pausing(self._app.transport) is not None

    @property
    def takes_to_browse(self) -> bool:
        """Must the transport take messages in order to show them?"""
        return isinstance(self._app.transport, BrowsingByTaking)

    def start(self) -> None:
        """Begin to look."""
        looking, reading = self._keep_looking(), self._keep_reading()
        self._tasks = [asyncio.create_task(looking), asyncio.create_task(reading)]

    async def stop(self) -> None:
        """Stop looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def look_soon(self) -> None:
        """Something was changed here: look at once."""
        self._look_now.set()

    async def look_again(self, timeout: float) -> None:
        """Something was changed here: wait for a look that sees it, for at most ``timeout``
        seconds."""
        before, deadline = self._begun, time.monotonic() + timeout
        self.look_soon()
        while self._ended <= before and (left := deadline - time.monotonic()) > 0:
            await self.changed(left)

    async def changed(self, timeout: float) -> None:
        """Wait for the next look, for at most ``timeout`` seconds."""
        waiting = self._changed
        try:
            async with asyncio.timeout(timeout):
                await waiting.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """End the wait of all who wait for the next look."""
        self._changed.set()
        self._changed = asyncio.Event()

    # -- looking ----------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            began = time.monotonic()
            self._look_now.clear()
            self._begun += 1
            try:
                await self._look()
            except Exception:
                log.exception("the dashboard could not look at the broker")
            self._ended = self._begun
            self.wake()
            took = time.monotonic() - began
            try:
                async with asyncio.timeout(max(EVERY, _SHARE * took)):
                    await self._look_now.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        transport, before = self._app.transport, self.snapshot
        now = time.time()
        problem = None
        queues = before.queues
        state = transport.state
        if state.status != "connected":
            why = "" if state.error is None else f": {state.error}"
            problem = f"the connection to {transport.name} is {state.status}{why}"
        elif self.counts_messages:
            try:
                async with asyncio.timeout(_LIMIT):
                    queues = await self._queues()
            except TimeoutError:
                problem = f"{transport.name} did not answer within {_LIMIT:g} seconds"
            except MatadorError as error:
                problem = str(error)
        since = (before.problem_since or now) if problem is not None else None
        self.snapshot = Snapshot(now, queues, state.status, problem, since, tuple(self._cannot()))
        if problem is None:
            await self._keep(now)

    async def _queues(self) -> tuple[QueueView, ...]:
        async def oldest(counts: QueueCounts) -> float | None:
            depth = counts.depth
            if depth is None or not depth.ready + depth.in_flight:
                return None
            since = await oldest_due(self._app.transport, counts.queue)
            return None if since is None else since.timestamp()

        found = await count(self._app)
        ages = await few_at_once(oldest, found)
        queues = self._app.topology.queues
        return tuple(
            QueueView(queue.name, counts, age)
            for queue, counts, age in zip(queues, found, ages, strict=True)
        )

    def _cannot(self) -> list[str]:
        name = self._app.transport.name
        said: list[str] = []
        if not self.counts_messages:
            said.append(f"{name} cannot count messages, so depths are not shown.")
        if not tells_age(self._app.transport):
            why = "shows messages only by taking them" if self.browses else "cannot show messages"
            said.append(f"{name} {why}, so the age of the oldest message is not shown.")
        if not self.pauses:
            said.append(f"{why_not(self._app.transport)}. Job queues can be paused.")
        return said

    async def _keep(self, now: float) -> None:
        """Add to the history."""
        if now - self._kept_at < _KEEP_EVERY:
            return
        self._kept_at = now
        depths: list[Depth] = []
        for one in self.snapshot.queues:
            depth = one.counts.depth
            if depth is not None:
                numbers = (depth.ready, depth.delayed, depth.in_flight)
                depths.append((one.name, *numbers, one.dead))
        try:
            await asyncio.to_thread(self._store.add_depths, now, depths)
            if now - self._pruned_at > _PRUNE_EVERY:
                self._pruned_at = now
                await asyncio.to_thread(self._store.prune, now)
            self.history_problem = None
        except MatadorError as error:
            if self.history_problem is None:
                log.warning("%s", error)
            self.history_problem = str(error)

    # -- the index of dead letters ----------------------------------------------------------------

    async def _keep_reading(self) -> None:
        while not self.snapshot.at or self.snapshot.problem is not None:
            await self.changed(60.0)  # what the transport can do may be known only then
        if not self.browses_letters or self.takes_to_browse:
            return  # then it is read when somebody looks
        whole_at = float("-inf")
        while True:
            began = time.monotonic()
            if self.snapshot.at and self.snapshot.problem is None:
                # Counts do not tell that one letter went and another came.
                whole = not self.counts_messages or began - whole_at > _READ_ALL_EVERY
                whole_at = began if whole else whole_at
                await self.read_letters(whole=whole)
            took = time.monotonic() - began
            await self.changed(60.0)
            await asyncio.sleep(min(_SHARE * took, 300.0))

    async def read_letters(self, *, whole: bool) -> None:
        """Bring the index up to date."""
        expected = {
            (queue.name, kind): number
            for queue in self.snapshot.queues
            for kind, number in queue.counts.dead_letters.items()
        }
        try:
            await self._index.refresh({**expected}, whole=whole)
            self.index_problem = None
        except MatadorError as error:
            self.index_problem = str(error)
        except Exception as error:
            log.exception("the dead letters could not be read")
            self.index_problem = f"unexpected {type(error).__name__}: {error}"
