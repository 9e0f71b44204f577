"""Limits for jobs in memory: how often they start, and how many of one key run at once.

A queue gets its limiter when a limit is first set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from matador.model import job as names
from matador.model.job_limits import RateLimit
from matador.transports.memory.entry import Entry

Sorted: TypeAlias = list[tuple[float, int, int, Entry]]
"""A heap: the sort key, then the place and the turn of the entry when it was added."""


class JobLimiter:
    """Counts active jobs, and parks the jobs that may not run yet because of their key.

    ``held``: the entries that are already active.
    """

    def __init__(self, held: Iterable[Entry]) -> None:
        self._per_key: int | None = None
        self._running = Counter(key for entry in held if (key := _key(entry)) is not None)
        self._parked: dict[str, Sorted] = {}
        self._began = -inf
        self._taken = 0
        self.closed_until = inf
        """When the present window ends, if it is full."""

    @property
    def holds_back(self) -> bool:
        """Whether a limit prevents a job from running. A full window counts, too."""
        return bool(self._parked) or self.closed_until != inf

    # -- rate -------------------------------------------------------------------------------------

    def room(self, rate: RateLimit | None, limit: int, now: float) -> int:
        """The number of jobs that may start now, at most ``limit``."""
        if rate is None:
            return limit
        if not self._began <= now < self._began + rate.per:
            return min(limit, rate.max)
        left = max(0, rate.max - self._taken)
        if not left:
            self.closed_until = self._began + rate.per
        return min(limit, left)

    def count(self, rate: RateLimit | None, number: int, now: float) -> None:
        """Count jobs that start now."""
        if rate is None or not number:
            return
        if not self._began <= now < self._began + rate.per:
            self._began, self._taken = now, 0
        self._taken += number

    def pass_time(self, now: float) -> None:
        """Start a new window if the full one has ended."""
        if self.closed_until <= now:
            self.closed_until = inf

    # -- keys -------------------------------------------------------------------------------------

    def change(self, per_key: int | None) -> list[Entry]:
        """Set how many jobs of a key run at once. Returns parked jobs that may run now."""
        if per_key == self._per_key:
            return []
        self._per_key = per_key
        heaps, self._parked = self._parked, {}
        return [item[3] for heap in heaps.values() for item in heap if _is_parked(item)]

    def may_run(self, entry: Entry) -> bool:
        """Whether this job may start now."""
        if self._per_key is None:
            return True
        key = _key(entry)
        return key is None or self._running[key] < self._per_key

    def park(self, place: tuple[float, int, int, Entry]) -> None:
        """Keep a job until others of its key have ended."""
        key = _key(place[3])
        assert key is not None
        heappush(self._parked.setdefault(key, []), place)

    def started(self, entry: Entry) -> None:
        """A job was handed to a worker."""
        key = _key(entry)
        if key is not None:
            self._running[key] += 1

    def ended(self, entry: Entry) -> Entry | None:
        """Record that a job ended. Returns the next job of its key, if any."""
        key = _key(entry)
        if key is not None:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]
        return self.next_of(entry)

    def next_of(self, entry: Entry) -> Entry | None:
        """The first parked job with the same key."""
        key = _key(entry)
        heap = None if key is None else self._parked.get(key)
        if key is None or heap is None:
            return None
        found: Entry | None = None
        while heap and found is None:
            item = heappop(heap)
            if _is_parked(item) and item[3] is not entry:
                found = item[3]
        if not heap:
            del self._parked[key]
        return found


def _key(entry: Entry) -> str | None:
    key = entry.message.headers.get(names.CONCURRENCY_KEY)
    return None if key is None else str(key)


def _is_parked(item: tuple[float, int, int, Entry]) -> bool:
    return item[3].state == "blocked" and item[3].turn == item[2]
