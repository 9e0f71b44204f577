"""Recurring jobs: schedules as users see them, and the task of a worker that fires them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from matador.errors import MatadorError
from matador.jobs.job import metadata_from, moment, plain
from matador.model import job as names
from matador.model.job import JobSchedule, Missed
from matador.model.message import Message
from matador.policy.recurrence import due_times
from matador.transports.base import JobScheduling
from matador.transports.clock import Clock
from matador.transports.kit.jobs import split_body

log = logging.getLogger("matador.jobs")

_LONGEST_SLEEP = 1.0  # seconds until a schedule that others have stored is noticed
_SHORTEST_SLEEP = 0.005


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job.

    Attributes:
        key: unique in its queue.
        name: the name of the jobs it adds.
        data: their data.
        cron: the cron expression, if there is one.
        every: seconds between two jobs, if there is no cron expression.
        timezone: in which the cron expression is meant.
        missed: what becomes of times at which no worker ran.
        next_at: when the next job is due.
        metadata: of the jobs it adds.
    """

    key: str
    name: str
    data: Any = None
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    missed: Missed = "one"
    next_at: datetime | None = None
    metadata: Mapping[str, Any] = {}


def schedule_from(stored: JobSchedule) -> Schedule:
    """A schedule from what its provider has of it."""
    data, metadata = split_body(stored.body)
    return Schedule(
        key=stored.key,
        name=stored.name,
        data=plain(data),
        cron=stored.cron,
        every=stored.every,
        timezone=stored.timezone,
        missed=stored.missed,
        next_at=moment(stored.next_at),
        metadata=metadata_from(metadata),
    )


class Scheduler:
    """Adds the jobs of a queue's schedules, beside any number of others who do the same.

    Each looks at what is due, and the provider lets one of them fire. The id of a job names its
    schedule and its time.
    """

    def __init__(
        self,
        store: JobScheduling,
        queue: str,
        clock: Clock,
        failed: Callable[[MatadorError], None],
        error_backoff: float,
        added: Callable[[Sequence[Message]], None] | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._failed = failed
        self._error_backoff = error_backoff
        self._added = added
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name=f"matador-schedules-{self._queue}")

    async def stop(self) -> None:
        """End. What is being fired is fired, or is not."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                pause = await self.fire()
            except MatadorError as error:
                self._failed(error)
                log.warning("the schedules of %s were not looked at: %s", self._queue, error)
                pause = self._error_backoff
            await asyncio.sleep(pause)

    async def fire(self) -> float:
        """Fire what is due; seconds until something may be due again."""
        soonest = self._clock.time() + _LONGEST_SLEEP
        for schedule in await self._store.list_schedules(self._queue):
            now = self._clock.time()
            if schedule.next_at > now:
                soonest = min(soonest, schedule.next_at)
                continue
            try:
                times, next_at = due_times(schedule, now)
            except Exception as error:  # noqa: BLE001 - somebody wrote what nobody can read
                log.error("schedule %r of %s is invalid: %s", schedule.key, self._queue, error)
                continue
            jobs = [_message(self._queue, schedule, one, now) for one in times]
            fired = await self._store.fire_schedule(self._queue, schedule, next_at, jobs)
            if fired and self._added is not None:
                self._added(jobs)
            soonest = min(soonest, next_at)
        return max(_SHORTEST_SLEEP, soonest - self._clock.time())


def _message(queue: str, schedule: JobSchedule, time: float, now: float) -> Message:
    job_id = f"repeat.{schedule.key}.{round(time * 1000)}"
    headers = {
        **schedule.headers,
        names.ID: job_id,
        names.NAME: schedule.name,
        names.CREATED_AT: round(now * 1000),
    }
    return Message(job_id, queue, schedule.body, headers)
