"""What goes on in queues, measured from outside for ``matador top``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matador.cli.queues import counted
from matador.events.queue_counts import QueueCounts
from matador.observe.journal.follow import JournalFollower
from matador.observe.journal.records import DeliveryRecord, Record, SentRecord
from matador.observe.sources import Source, journals_of
from matador.runtime.few_at_once import few_at_once

_WORKER_LIVES = 60.0  # seconds after its last record


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue at one moment. None: not known.

    ``oldest`` is the age of the oldest due message in seconds. Rates are per second: what was sent,
    handled and failed is known from a journal, ``change`` is that of the depth.
    """

    queue: str
    exists: bool
    waiting: int | None
    delayed: int | None
    in_flight: int | None
    dead_letters: Mapping[str, int | None]
    oldest: float | None = None
    sent: float | None = None
    handled: float | None = None
    failed: float | None = None
    change: float | None = None
    workers: int | None = None
    paused: bool | None = None


class QueueActivity:
    """Looks at all queues again and again. The first look knows no rates."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        folders = dict.fromkeys(one.folder for one in journals_of(sources))
        self._followers = [JournalFollower(folder) for folder in folders]
        self._workers: dict[str, dict[str, float]] = {}
        self._depths: dict[str, int] = {}
        self._looked_at: float | None = None

    @property
    def title(self) -> str:
        """What is looked at."""
        names = dict.fromkeys(
            f"{one.topology.namespace if one.way == 'events' else one.name} on {one.transport.name}"
            for one in self._sources
        )
        return ", ".join(names)

    @property
    def has_journal(self) -> bool:
        """Are there records of what is sent and handled?"""
        return bool(self._followers)

    async def look(self) -> list[QueueRow]:
        """All queues as they are now.

        Raises:
            MatadorError: the broker cannot be asked.
        """
        counts = await counted(self._sources)
        ages = await few_at_once(_age, counts)
        now = time.monotonic()
        seconds = None if self._looked_at is None else max(now - self._looked_at, 0.001)
        self._looked_at = now
        happened = self._happened(now)
        return [
            self._row(one, age, seconds, happened)
            for (_, one), age in zip(counts, ages, strict=True)
        ]

    def _happened(self, now: float) -> Counter[tuple[str, str]]:
        """How often what happened in which queue since the last look."""
        found: Counter[tuple[str, str]] = Counter()
        records: list[Record] = [one for follower in self._followers for one in follower.read()]
        for record in records:
            if isinstance(record, SentRecord):
                found[record.queue, "sent"] += 1
            elif isinstance(record, DeliveryRecord):
                what = "handled" if record.outcome == "success" else "failed"
                found[record.queue, what] += 1
                self._workers.setdefault(record.queue, {})[record.worker] = now
        for alive in self._workers.values():
            for worker in [one for one, at in alive.items() if now - at > _WORKER_LIVES]:
                del alive[worker]
        return found

    def _row(
        self,
        counts: QueueCounts,
        age: float | None,
        seconds: float | None,
        happened: Counter[tuple[str, str]],
    ) -> QueueRow:
        queue, depth = counts.queue, counts.depth

        def rate(what: str) -> float | None:
            if seconds is None or not self.has_journal:
                return None
            return happened[queue, what] / seconds

        change = None
        if depth is not None:
            before = self._depths.get(queue)
            self._depths[queue] = depth.total
            if before is not None and seconds is not None:
                change = (depth.total - before) / seconds
        unknown = frozenset(("delayed", "in_flight")) if depth is None else depth.unknown
        return QueueRow(
            queue,
            depth is not None,
            None if depth is None else depth.ready,
            None if depth is None or "delayed" in unknown else depth.delayed,
            None if depth is None or "in_flight" in unknown else depth.in_flight,
            counts.dead_letters,
            age,
            rate("sent"),
            rate("handled"),
            rate("failed"),
            change,
            len(self._workers.get(queue, ())) if self.has_journal else None,
            counts.paused,
        )


async def _age(counted: tuple[Source, QueueCounts]) -> float | None:
    source, counts = counted
    return None if counts.depth is None else await source.age(counts.queue)


def as_json(row: QueueRow) -> dict[str, Any]:
    """A queue as ``--json`` prints it."""
    return {
        "queue": row.queue,
        "exists": row.exists,
        "waiting": row.waiting,
        "delayed": row.delayed,
        "in_flight": row.in_flight,
        "oldest_seconds": _rounded(row.oldest),
        "dead_letters": dict(row.dead_letters),
        "sent_per_second": _rounded(row.sent),
        "handled_per_second": _rounded(row.handled),
        "failed_per_second": _rounded(row.failed),
        "change_per_second": _rounded(row.change),
        "workers": row.workers,
        "paused": row.paused,
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)
