"""Finds current problems, for the top of the overview and for alerts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from matador.dashboard.desk import Desk
from matador.dashboard.stats import Stats
from matador.errors import HistoryError
from matador.observe.history.records import WorkerState

OLD = 300.0
"""Seconds after which a message that waits is a problem."""

_FAILING = 0.1
_ALIVE = 15.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. ``link`` leads to the page with details; ``subject`` is what the problem is about,
    if the text changes while it lasts."""

    text: str
    since: float | None
    link: str
    style: str = "bad"
    subject: str = ""

    @property
    def key(self) -> str:
        """The identity of the problem."""
        return self.subject or self.text


async def find_problems(desk: Desk, stats: Stats | None) -> list[Problem]:
    """All current problems, the worst first."""
    snapshot, found = desk.monitor.snapshot, list[Problem]()
    found += [Problem(text, since, "/queues") for text, since in snapshot.troubles.items()]
    for queue in snapshot.queues:
        if queue.counts.depth is None:
            found.append(Problem(f"the queue {queue.name} does not exist", None, "/queues"))
        if queue.dead:
            since = await _dead_since(desk, queue.name)
            what = "dead letter" if queue.watched.source.jobs is None else "failed job"
            letters = f"{queue.dead:,} {what}{'s' if queue.dead > 1 else ''} of {queue.name}"
            link = f"/dead-letters?{urlencode({'queue': queue.name})}"
            found.append(Problem(letters, since, link, subject=f"{what}s of {queue.name}"))
        if queue.counts.paused:
            text = f"{queue.name} is paused: no worker receives its messages"
            found.append(Problem(text, None, "/queues", "retry"))
        elif queue.oldest_at is not None and time.time() - queue.oldest_at > OLD:
            text = f"the oldest message of {queue.name} has waited for long"
            found.append(Problem(text, queue.oldest_at, "/queues", "retry"))
    for (event, subscriber), edge in (stats.lately if stats else {}).items():
        if stats is not None and edge.failure_rate >= _FAILING:
            longer = stats.edges.get((event, subscriber), edge)
            what = " for ".join(one for one in (event, subscriber) if one) or "undecodable messages"
            text = f"{edge.failure_rate:.0%} of the attempts fail: {what}"
            since, subject = longer.failed_since, f"attempts fail: {what}"
            found.append(Problem(text, since, "/handlers", subject=subject))
    found += await _without_workers(desk)
    if desk.monitor.history_problem is not None:
        found.append(Problem(desk.monitor.history_problem, None, "/workers", "retry"))
    return found


async def living_workers(desk: Desk) -> list[WorkerState] | None:
    """The workers that report to the history now; None if none ever did."""
    now = time.time()
    workers = await _known_workers(desk)
    return [one for one in workers if is_alive(one, now)] if workers else None


def is_alive(worker: WorkerState, now: float) -> bool:
    """Whether a worker has reported recently."""
    return worker.stopped_at is None and now - worker.seen_at <= _ALIVE


async def _known_workers(desk: Desk) -> Sequence[WorkerState]:
    """The workers that have reported to the history in the last day."""
    try:
        return await asyncio.to_thread(desk.store.workers, time.time() - 86_400)
    except HistoryError:
        return ()


async def _without_workers(desk: Desk) -> list[Problem]:
    """Queues that no worker consumes now, if messages wait there or the last worker was lost."""
    found: list[Problem] = []
    workers, now = await _known_workers(desk), time.time()
    for queue in desk.monitor.snapshot.queues if workers else ():
        depth = queue.counts.depth
        consumers = [one for one in workers if queue.counts.queue in one.queues]
        if depth is None or any(is_alive(one, now) for one in consumers):
            continue
        last = max(consumers, key=lambda one: one.seen_at, default=None)
        if last is not None and last.stopped_at is None:
            text = f"no worker consumes {queue.name} any more: the last one was lost"
            found.append(Problem(text, last.seen_at, "/workers"))
        elif depth.ready:
            text = f"messages of {queue.name} wait, and no worker that consumes it was heard of"
            found.append(Problem(text, None, "/workers"))
    return found


async def _dead_since(desk: Desk, queue: str) -> float | None:
    try:
        return await asyncio.to_thread(desk.store.dead_since, queue)
    except HistoryError:
        return None
