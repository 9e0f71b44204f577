"""Recurring jobs: the public view of schedules, and the task of a worker that fires them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec

from matador.jobs.job import metadata_from
from matador.model import job as names
from matador.model.job import JobSchedule, Missed
from matador.model.message import Message
from matador.model.options import Seconds, one_of, optional_seconds
from matador.policy.recurrence import check_recurrence, cron_expression, due_times, first_time
from matador.runtime.facts import moment, plain_data
from matador.transports.base import JobScheduling
from matador.transports.clock import Clock, sleep
from matador.transports.kit.jobs import split_body

log = logging.getLogger("matador.jobs")

_LONGEST_SLEEP = 1.0  # seconds until a schedule stored by another process is noticed
_SHORTEST_SLEEP = 0.005


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job.

    Attributes:
        key: unique in its queue.
        name: the name of the jobs it adds.
        data: their data.
        cron: the cron expression, if there is one.
        every: seconds between two jobs, if there is no cron expression.
        timezone: the time zone of the cron expression.
        missed: what to do about occurrences while no worker ran.
        next_at: when the next job is due; None while it is paused.
        paused: it adds no jobs. See ``Queue.pause_schedule``.
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
    paused: bool = False
    metadata: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A recurrence as given by the user."""

    cron: str | None = None
    every: Seconds | None = None
    timezone: str = "UTC"
    missed: Missed = "one"

    def checked(self, where: str, now: float) -> CheckedRecurrence:
        """The recurrence, checked.

        Raises:
            ConfigurationError: the recurrence is invalid.
        """
        cron = None if self.cron is None else cron_expression(self.cron, where)
        every = optional_seconds(self.every, f"{where}: every")
        check_recurrence(cron, every, self.timezone, where, now)
        one_of(self.missed, f"{where}: missed", get_args(Missed))
        return CheckedRecurrence(cron, every, self.timezone, self.missed)


class CheckedRecurrence(NamedTuple):
    """A valid recurrence."""

    cron: str | None
    every: float | None
    timezone: str
    missed: Missed


DECLARED = "@"
"""The prefix of the keys of declared schedules; the name of the job follows."""


async def keep_schedule(
    store: JobScheduling,
    queue: str,
    key: str,
    job: Message,
    recurrence: CheckedRecurrence,
    now: float,
) -> JobSchedule:
    """Store a schedule. It replaces a schedule with the same key.

    The next time stays if the recurrence is unchanged.
    """
    stored = JobSchedule(
        key=key,
        name=str(job.headers[names.NAME]),
        cron=recurrence.cron,
        every=recurrence.every,
        timezone=recurrence.timezone,
        missed=recurrence.missed,
        body=job.body,
        headers={one: value for one, value in job.headers.items() if one not in _OF_ONE},
    )
    known = await store.list_schedules(queue)
    next_at = next((one.next_at for one in known if _same_times(one, stored)), None)
    if next_at is None:
        next_at = first_time(stored, now)
    stored = msgspec.structs.replace(stored, next_at=next_at)
    await store.put_schedule(queue, stored)
    return stored


_OF_ONE = (names.ID, names.CREATED_AT)
"""Headers that differ for each job of a schedule."""


def _same_times(one: JobSchedule, other: JobSchedule) -> bool:
    times = attrgetter("key", "cron", "every", "timezone")
    return times(one) == times(other)


def schedule_from(stored: JobSchedule) -> Schedule:
    """A schedule from its provider's record."""
    data, metadata = split_body(stored.body)
    return Schedule(
        key=stored.key,
        name=stored.name,
        data=plain_data(data),
        cron=stored.cron,
        every=stored.every,
        timezone=stored.timezone,
        missed=stored.missed,
        next_at=None if stored.is_paused else moment(stored.next_at),
        paused=stored.is_paused,
        metadata=metadata_from(metadata),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Adds the jobs of a queue's schedules. Any number of workers may run one.

    Each polls for due schedules, and the provider lets one of them fire. The id of a job names its
    schedule and its time.

    Attributes:
        store: has the schedules.
        queue: the full name of the queue.
        clock: the source of time.
        error_backoff: seconds to wait after an error.
        failed: called for each error.
        added: called for added jobs.
    """

    store: JobScheduling
    queue: str
    clock: Clock
    error_backoff: float
    failed: Callable[[Exception], None]
    added: Callable[[Sequence[Message]], Awaitable[None]]

    async def run(self) -> None:
        """Fire schedules until canceled. Each fire is atomic."""
        while True:
            try:
                pause = await self.fire()
            except Exception as error:  # noqa: BLE001 - the next poll may succeed
                self._note(error, "the schedules could not be read")
                pause = self.error_backoff
            await sleep(self.clock, pause)

    def _note(self, error: Exception, what: str) -> None:
        self.failed(error)
        log.warning("queue %s: %s: %s", self.queue, what, error)

    async def fire(self) -> float:
        """Fire due schedules; return the seconds until the next one may be due."""
        soonest = self.clock.time() + _LONGEST_SLEEP
        for schedule in await self.store.list_schedules(self.queue):
            now = self.clock.time()
            next_at = schedule.next_at
            if next_at <= now:
                try:
                    next_at = await self._fire(schedule, now)
                except Exception as error:  # noqa: BLE001 - the other schedules are due, too
                    self._note(error, f"schedule {schedule.key!r} was not fired")
                    next_at = now + self.error_backoff
            soonest = min(soonest, next_at)
        return max(_SHORTEST_SLEEP, soonest - self.clock.time())

    async def _fire(self, schedule: JobSchedule, now: float) -> float:
        """Add the due jobs; return when the next one is due."""
        times, next_at = due_times(schedule, now)
        ids = [f"repeat.{schedule.key}.{round(time * 1000)}" for time in times]
        jobs = [schedule_message(self.queue, schedule, one, now) for one in ids]
        if await self.store.fire_schedule(self.queue, schedule, next_at, jobs):
            await self.added(jobs)
        return next_at


def schedule_message(queue: str, schedule: JobSchedule, job_id: str, now: float) -> Message:
    """A job of a schedule."""
    headers = {
        **schedule.headers,
        names.ID: job_id,
        names.NAME: schedule.name,
        names.CREATED_AT: round(now * 1000),
    }
    return Message(job_id, queue, schedule.body, headers)
