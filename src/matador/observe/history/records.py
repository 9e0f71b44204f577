"""The records of the history: counts of outcomes, failed attempts, workers, depths of queues."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import msgspec

BUCKET: Final = 10
"""Seconds that one row of counts covers."""

BOUNDS: Final = tuple(2.0**power for power in range(17))
"""Upper bounds of running times in milliseconds: 1 ms to about a minute. Slower ones are above."""


class OutcomeKey(msgspec.Struct, frozen=True, gc=False):
    """The attributes shared by attempts that are counted together."""

    queue: str
    event_key: str
    subscriber: str
    outcome: str


class OutcomeTotals(msgspec.Struct):
    """How many attempts there were, and how long they took."""

    count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    wait_ms: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def add(self, duration_ms: float, wait_ms: float) -> None:
        """Count one attempt."""
        self.count += 1
        self.total_ms += duration_ms
        self.wait_ms += wait_ms
        self.max_ms = max(self.max_ms, duration_ms)
        self.buckets[bisect_left(BOUNDS, duration_ms)] += 1

    def include(self, other: OutcomeTotals) -> None:
        """Add the counts of another bucket."""
        self.count += other.count
        self.total_ms += other.total_ms
        self.wait_ms += other.wait_ms
        self.max_ms = max(self.max_ms, other.max_ms)
        self.buckets = [one + more for one, more in zip(self.buckets, other.buckets, strict=True)]


class FailedAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that failed. Times are seconds since the epoch."""

    id: str
    correlation_id: str | None
    event_key: str
    subscriber: str
    queue: str
    attempt: int
    outcome: str
    started_at: float
    duration_ms: float
    wait_ms: float
    error_type: str | None
    error: str | None
    traceback: str | None
    worker: str


class RunningMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that a worker handles now."""

    id: str
    event_key: str
    subscriber: str
    queue: str
    since: float


class WorkerState(msgspec.Struct, frozen=True):
    """The last reported state of a worker process. ``queues``: those it consumes."""

    name: str
    host: str
    pid: int
    started_at: float
    seen_at: float
    stopped_at: float | None = None
    running: tuple[RunningMessage, ...] = ()
    running_count: int = 0
    queues: tuple[str, ...] = ()


def percentile(buckets: Sequence[int], share: float) -> float | None:
    """An estimate of a percentile in milliseconds; None without attempts.

    Example:
        >>> percentile([0, 0, 10, *[0] * 15], 0.5)
        3.0
    """
    total = sum(buckets)
    if not total:
        return None
    wanted = share * total
    seen = 0
    for at, number in enumerate(buckets):
        if number and seen + number >= wanted:
            below = 0.0 if at == 0 else BOUNDS[at - 1]
            above = BOUNDS[at] if at < len(BOUNDS) else 2 * BOUNDS[-1]
            return below + (above - below) * (wanted - seen) / number
        seen += number
    return BOUNDS[-1]
