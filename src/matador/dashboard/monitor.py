"""Polls the broker every few seconds, stores a snapshot, and wakes the live pages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matador.dashboard.letter_index import LetterIndex
from matador.dashboard.sources import Sources, WatchedQueue, WatchedSource
from matador.errors import MatadorError
from matador.events.queue_counts import QueueCounts
from matador.observe.history.store import Depth, HistoryStore
from matador.observe.oldest import oldest_due, tells_age
from matador.runtime.few_at_once import few_at_once
from matador.transports.base import members_of

log = logging.getLogger("matador.dashboard")

EVERY = 2.0
"""The minimum number of seconds between two polls."""

_SHARE = 10  # the inverse of the share of time for polling, and for reading the index
_LIMIT = 10.0  # seconds to wait for an answer
_KEEP_EVERY = 10.0  # seconds between two rows of the history
_PRUNE_EVERY = 3600.0
_READ_ALL_EVERY = 300.0


@dataclass(frozen=True, slots=True)
class QueueView:
    """A work queue at the last poll."""

    watched: WatchedQueue
    counts: QueueCounts
    oldest_at: float | None = None

    @property
    def name(self) -> str:
        """Its name in the dashboard."""
        return self.watched.name

    @property
    def dead(self) -> int:
        """All of its dead letters."""
        return sum(number or 0 for number in self.counts.dead_letters.values())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of the last poll.

    ``problems`` has the sources that could not be polled, with the reason and the time; ``cannot``
    the limitations of their transports.
    """

    at: float = 0.0
    queues: tuple[QueueView, ...] = ()
    problems: Mapping[WatchedSource, tuple[str, float]] = field(
        default_factory=dict[WatchedSource, tuple[str, float]]
    )
    cannot: tuple[str, ...] = field(default=())

    @property
    def dead(self) -> int:
        """All dead letters."""
        return sum(queue.dead for queue in self.queues)

    @property
    def troubles(self) -> dict[str, float]:
        """The distinct problems, with the times when they began."""
        return dict(reversed(list(self.problems.values())))


class Monitor:
    """Watches all sources, whose transports are connected. One task polls, another reads dead
    letters."""

    def __init__(self, sources: Sources, store: HistoryStore, index: LetterIndex) -> None:
        self._sources = sources
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
        """Whether any source can count messages."""
        return any(one.counts_messages for one in self._sources.all)

    def start(self) -> None:
        """Start polling."""
        looking, reading = self._keep_looking(), self._keep_reading()
        self._tasks = [asyncio.create_task(looking), asyncio.create_task(reading)]

    async def stop(self) -> None:
        """Stop polling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def look_soon(self) -> None:
        """Poll at once, because the dashboard changed something."""
        self._look_now.set()

    async def look_again(self, timeout: float) -> None:
        """Wait for a poll that sees a change by the dashboard, for at most ``timeout`` seconds."""
        before, deadline = self._begun, time.monotonic() + timeout
        self.look_soon()
        while self._ended <= before and (left := deadline - time.monotonic()) > 0:
            await self.changed(left)

    async def changed(self, timeout: float) -> None:
        """Wait for the next poll, for at most ``timeout`` seconds."""
        waiting = self._changed
        try:
            async with asyncio.timeout(timeout):
                await waiting.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """Wake all waiters for the next poll."""
        self._changed.set()
        self._changed = asyncio.Event()

    # -- polling ----------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            began = time.monotonic()
            self._look_now.clear()
            self._begun += 1
            try:
                await self._look()
            except Exception:
                log.exception("the dashboard could not poll the broker")
            self._ended = self._begun
            self.wake()
            took = time.monotonic() - began
            try:
                async with asyncio.timeout(max(EVERY, _SHARE * took)):
                    await self._look_now.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        now, before = time.time(), self.snapshot
        looks = await few_at_once(self._look_at, self._sources.all)
        known = {view.watched: view for view in before.queues}
        problems: dict[WatchedSource, tuple[str, float]] = {}
        for source, found in zip(self._sources.all, looks, strict=True):
            if isinstance(found, str):
                since = before.problems.get(source, ("", now))[1]
                problems[source] = (found, since)
            else:
                known |= {view.watched: view for view in found}
        queues = tuple(known[one] for one in self._sources.queues if one in known)
        self.snapshot = Snapshot(now, queues, problems, tuple(self._cannot(problems)))
        if len(problems) < len(self._sources.all):
            await self._keep(now)

    async def _look_at(self, source: WatchedSource) -> Sequence[QueueView] | str:
        """The current queues of a source, or the reason why they are unknown."""
        name = "the broker"
        try:
            transport = source.transport
            name = transport.name
            state = transport.state
            if state.status != "connected":
                if source.missing is not None:
                    return source.missing
                return f"the connection to {name} is {state}"
            if not source.counts_messages:
                return ()
            async with asyncio.timeout(_LIMIT):
                return await self._queues(source)
        except TimeoutError:
            return f"{name} did not answer within {_LIMIT:g} seconds"
        except MatadorError as error:
            return str(error)
        except Exception as error:  # the other sources are shown nevertheless
            log.exception("the dashboard could not poll %s", source.name)
            return f"{source.name}: unexpected {type(error).__name__}: {error}"

    async def _queues(self, source: WatchedSource) -> Sequence[QueueView]:
        async def oldest(counts: QueueCounts) -> float | None:
            depth = counts.depth
            if depth is None or not depth.ready + depth.in_flight:
                return None
            since = await oldest_due(source.transport, counts.queue)
            return None if since is None else since.timestamp()

        found = {counts.queue: counts for counts in await source.counts()}
        watched = [one for one in self._sources.queues if one.source is source]
        ages = await few_at_once(oldest, [found[one.full_name] for one in watched])
        return [
            QueueView(one, found[one.full_name], age)
            for one, age in zip(watched, ages, strict=True)
        ]

    def _cannot(self, problems: Mapping[WatchedSource, object]) -> list[str]:
        said: list[str] = []
        for source in self._sources.all:
            if source in problems:
                continue
            name = source.transport.name
            said += [
                f"{one.name} is {one.state.status}: its messages are not counted."
                for one in members_of(source.transport)
                if one.state.status != "connected"
            ]
            if not source.counts_messages:
                said.append(f"{name} cannot count messages, so depths are not shown.")
            if not tells_age(source.transport):
                why = (
                    "shows messages only by taking them"
                    if source.browses
                    else "cannot show messages"
                )
                said.append(f"{name} {why}, so the age of the oldest message is not shown.")
            if not source.pauses:
                said.append(f"{source.why_not_pause}.")
        return list(dict.fromkeys(said))

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
        whole_at = float("-inf")
        while True:
            await self.changed(60.0)  # the capabilities of a transport may be known only then
            began = time.monotonic()
            # Counts do not reveal that one letter was replaced by another.
            whole = began - whole_at > _READ_ALL_EVERY
            whole_at = began if whole else whole_at
            await self.read_letters(whole=whole, taking=False)
            took = time.monotonic() - began
            await asyncio.sleep(min(_SHARE * took, 300.0))

    @property
    def is_everything_read(self) -> bool:
        """Whether the dead letters of all queues were read once."""
        queues = [*self.readable(taking=True), *self.readable(taking=False)]
        return bool(self.snapshot.at) and all(one.name in self._index.read for one in queues)

    def readable(self, *, taking: bool) -> list[WatchedQueue]:
        """The queues whose dead letters can be read now, by taking or by browsing them."""
        problems = self.snapshot.problems
        return [
            one
            for one in self._sources.queues
            if self.snapshot.at
            and one.source not in problems
            and one.source.browses_letters
            and one.source.takes_to_browse == taking
        ]

    async def read_letters(self, *, whole: bool, taking: bool) -> None:
        """Update the index: for sources that must take letters, or for the others."""
        queues = self.readable(taking=taking)
        expected = {
            (view.name, kind): number
            for view in self.snapshot.queues
            for kind, number in view.counts.dead_letters.items()
        }
        try:
            if queues:
                await self._index.refresh(queues, {**expected}, whole=whole)
            self.index_problem = None
        except MatadorError as error:
            self.index_problem = str(error)
        except Exception as error:
            log.exception("the dead letters could not be read")
            self.index_problem = f"unexpected {type(error).__name__}: {error}"
