"""Runs failed jobs again, selected by their error signature."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from matador.errors import MatadorError
from matador.jobs import Queue
from matador.jobs.provider import MessageJobs
from matador.spark.replay.jobs import jobs_of, load_queue, open_queue
from matador.spark.replay.redrive import Missing, RedriveResult, counts_of, frame_of, with_group
from matador.spark.replay.replay import Progress, ReplayOptions, replay_jobs
from matador.spark.replay.selection import Choice
from matador.spark.tables.reader import LakeTables

_AT_ONCE = 64
_FIND = 1000
_EVERYTHING = 1_000_000_000


@dataclass(slots=True)
class _Found:
    """The chosen jobs that have failed, and those in another state."""

    failed: set[str]
    others: set[str]


@dataclass(slots=True)
class _Moved:
    """The results."""

    done: int
    held: int
    failed: list[tuple[str, str]]


def redrive_jobs(
    lake: LakeTables,
    target: Queue | str,
    choice: Choice,
    signature: str | None,
    missing: Missing,
    options: ReplayOptions,
    *,
    dry_run: bool,
) -> RedriveResult:
    """``redrive`` for the jobs of a queue: each that has failed waits again, under its own id."""
    queue = load_queue(target) if isinstance(target, str) else target
    rows = jobs_of(lake.deliveries(), queue, choice).where("outcome = 'dead-letter'")
    dead = with_group(choice.restrict(rows, "started_at"), signature)
    ids = sorted(str(row.id) for row in dead.select("id").distinct().toLocalIterator())
    if not ids:
        return RedriveResult(0, 0, dry_run=dry_run)
    with open_queue(queue) as sender:
        found: _Found = sender.wait(_find(sender.queue, ids))
        moved = _Moved(0, 0, [])
        if not dry_run:
            moved = sender.wait(_retry(sender.queue, sorted(found.failed), options.progress))
    gone = _gone(lake, queue, dead, found.failed | found.others)
    count, replayed = gone.count(), None
    if missing == "replay" and count:
        everything = Choice(choice.event, queue.name, replays=True)
        replayed = replay_jobs(
            lake, target, everything, dry_run=dry_run, options=options, among=gone
        )
    return RedriveResult(
        len(ids),
        len(found.failed),
        moved.done,
        moved.held,
        tuple(moved.failed),
        count,
        replayed,
        dry_run,
        counts_of(lake, dead, found.failed),
    )


def _gone(lake: LakeTables, queue: Queue, dead: DataFrame, there: set[str]) -> DataFrame:
    """The ids of failed jobs that the provider does not have, and that did not succeed since."""
    every = Choice()
    last = dead.groupBy("id").agg(sql.max("started_at").alias("failed_at"))
    done = jobs_of(lake.deliveries(), queue, every).where("outcome = 'success'")
    done = done.select(sql.col("id").alias("done_id"), "started_at")
    since = (last.id == done.done_id) & (done.started_at > last.failed_at)
    again = jobs_of(lake.events(), queue, every).where("replay_of is not null")
    ids = last.join(done, since, "left_anti").select("id")
    for others in (frame_of(lake, there), again.select(sql.col("replay_of").alias("id"))):
        ids = ids.join(others, "id", "left_anti")
    return ids


async def _find(queue: Queue, ids: Sequence[str]) -> _Found:
    """Ask the provider for jobs by their ids; if it cannot find them, for all that have failed."""
    provider = await queue.open()
    found = _Found(set(), set())
    if not provider.capabilities.find:
        wanted = set(ids)
        failed = await queue.list("failed", _EVERYTHING)
        return _Found({job.id for job in failed if job.id in wanted}, set())
    rest = iter(ids)
    while some := list(islice(rest, _FIND)):
        for one, job in zip(some, await queue.get_many(some), strict=True):
            if job is not None:
                (found.failed if job.status == "failed" else found.others).add(one)
    return found


async def _retry(queue: Queue, ids: Sequence[str], progress: Progress | None) -> _Moved:
    provider = await queue.open()
    store = provider.store
    moved = _Moved(0, 0, [])
    if isinstance(store, MessageJobs):  # it can only look through all dead letters
        outcomes = await store.retry_jobs(await store.open_jobs(queue.name), set(ids))
        moved.held = len(ids) - len(outcomes)
        _note(moved, outcomes.items())
        if progress is not None:
            progress(moved.done, len(ids))
        return moved
    rest = iter(ids)
    while some := list(islice(rest, _AT_ONCE)):
        errors = await asyncio.gather(*(_retried(queue, one) for one in some))
        _note(moved, list(zip(some, errors, strict=True)))
        if progress is not None:
            progress(moved.done, len(ids))
    return moved


async def _retried(queue: Queue, job_id: str) -> MatadorError | None:
    try:
        await queue.retry(job_id)
    except MatadorError as error:
        return error
    return None


def _note(moved: _Moved, outcomes: Collection[tuple[str, MatadorError | None]]) -> None:
    for job_id, error in outcomes:
        if error is None:
            moved.done += 1
        else:
            moved.failed.append((job_id, str(error)))
