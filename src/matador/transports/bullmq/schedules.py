"""Recurring jobs as BullMQ's job schedulers, so that its workers in any language keep them going.

The official package composes what BullMQ stores, and computes when the next job is due. The worker
that takes the job of a scheduler adds the next one, here or on Node; for all times at which no
worker was running, one job is added. The script adds it for the scheduler's present job only: one
that is delivered again adds no second one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from bullmq.job_scheduler import JobScheduler

from matador.errors import JobsUnsupportedError, MatadorError, UnstorableError
from matador.model import job as names
from matador.model.job import JobSchedule
from matador.transports.bullmq import native, wire
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.jobs import LATEST, BullJob, keep_asked, number
from matador.transports.bullmq.scripts import Call
from matador.transports.bullmq.topology import JobSet
from matador.transports.bullmq.wire import id_text

log = logging.getLogger("matador.transports.bullmq")

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class _Noted:
    """Takes the place of the package's queue: notes what the package would store, and when."""

    def __init__(self) -> None:
        self.backend = self.scripts = self
        self.at: int | None = None  # ms; None: the schedule has no next time
        self.settings: Mapping[str, Any] = {}
        self.options: Mapping[str, Any] = {}

    async def addJobScheduler(  # noqa: N802 - the package's name
        self,
        _key: str,
        at: int,
        _data: str,
        _template: Mapping[str, Any],
        settings: Mapping[str, Any],
        options: Mapping[str, Any],
        _producer: str | None,
    ) -> None:
        self.at, self.settings, self.options = at, settings, options

    async def updateJobSchedulerNextMillis(  # noqa: N802 - the package's name
        self, _id: str, at: int, _data: str, options: Mapping[str, Any], _job: str
    ) -> None:
        self.at, self.options = at, options


async def put_schedule(session: BullMQSession, jobs: JobSet, schedule: JobSchedule) -> None:
    """Store a schedule, instead of the one with its key.

    Raises:
        JobsUnsupportedError: BullMQ cannot treat missed times like this.
        UnstorableError: its key, or an option, is not allowed.
    """
    if schedule.missed != "one":
        raise JobsUnsupportedError(
            f"schedule {schedule.key!r}: BullMQ adds one job for all times that were missed; "
            f"missed={schedule.missed!r} is not supported",
            queue=jobs.queue,
        )
    if ":" in schedule.key:
        raise UnstorableError(f"schedule {schedule.key!r}: BullMQ allows no colon in a key")
    repeat: dict[str, Any] = {"every": round((schedule.every or 0) * 1000)}
    if schedule.cron is not None:
        repeat = {"pattern": schedule.cron, "tz": schedule.timezone}
    first = round(schedule.next_at * 1000)
    template = native.template(schedule.headers)
    noted = _Noted()

    def first_at(now: int, options: Any) -> int:
        """Has the package take this time for the first one of a cron expression."""
        return first

    package: Any = JobScheduler(cast("Any", noted), first_at)
    await package.upsertJobScheduler(schedule.key, repeat, schedule.name, None, template)
    if noted.at is None:
        raise UnstorableError(f"schedule {schedule.key!r} has no next time")
    call = session.scripts(jobs.queue).add_scheduler(
        *(schedule.key, noted.at, schedule.body),
        *(template, noted.settings, noted.options, session.now()),
    )
    (answer,) = await session.ask_all([call])
    if isinstance(answer, int):
        raise UnstorableError(
            f"schedule {schedule.key!r} of {jobs.queue!r} cannot be stored: an earlier job of that "
            f"key is in its place (BullMQ's error {answer}); remove that job, or take another key"
        )


async def list_schedules(session: BullMQSession, jobs: JobSet) -> list[JobSchedule]:
    """All schedules, by the time when they are due next."""
    scripts = session.scripts(jobs.queue)
    (pairs,) = await session.ask_all([("ZRANGE", scripts.key("repeat"), 0, -1, "WITHSCORES")])
    keys, times = [bytes(key) for key in pairs[::2]], [float(time) for time in pairs[1::2]]
    prefix = scripts.key("repeat").encode() + b":"
    found = await session.ask_all([("HGETALL", prefix + key) for key in keys])
    return [
        _schedule(id_text(key), time / 1000, fields)
        for key, time, fields in zip(keys, times, found, strict=True)
        if fields is not None
    ]


async def remove_schedule(session: BullMQSession, jobs: JobSet, key: str) -> bool:
    """Remove a schedule, and its next job unless that is due; False if there is none."""
    (answer,) = await session.ask_all([session.scripts(jobs.queue).remove_scheduler(key)])
    return answer == 0


def _schedule(key: str, next_at: float, fields: Mapping[bytes, bytes]) -> JobSchedule:
    """Read a schedule of any program. What cannot be read of it is left out."""
    options: Mapping[str, Any] = {}
    with contextlib.suppress(*wire.UNREADABLE):
        options = _decode(fields.get(b"opts", b"{}"))
    name = _text(fields.get(b"name")) or key.partition(":")[0]
    headers: dict[str, str | int] = {names.NAME: name, names.MAX_ATTEMPTS: 1}
    if type(attempts := options.get("attempts")) is int:
        headers[names.MAX_ATTEMPTS] = attempts
    if (backoff := native.backoff_text(options.get("backoff"))) is not None:
        headers[names.BACKOFF] = backoff
    for header, option in (
        (names.KEEP_COMPLETED, "removeOnComplete"),
        (names.KEEP_FAILED, "removeOnFail"),
    ):
        headers[header] = native.kept(keep_asked(options.get(option))).text
    every = number(fields.get(b"every"), LATEST)
    return JobSchedule(
        key=key,
        name=name,
        cron=_text(fields.get(b"pattern")) or None,
        every=every / 1000 if every else None,
        timezone=_text(fields.get(b"tz")) or "UTC",
        body=fields.get(b"data", b"{}"),
        headers=headers,
        next_at=next_at,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


# -- the next job of a scheduler -------------------------------------------------------------------


async def continue_schedulers(
    session: BullMQSession, queue: str, jobs: Sequence[BullJob]
) -> set[str]:
    """Add the next jobs of schedulers whose jobs were taken.

    Returns:
        the ids of jobs whose scheduler was not continued because the connection was lost. They must
        not be delivered: they come again when their locks expire, and their schedulers continue
        then.
    """
    calls: list[Call] = []
    ids: list[str] = []
    for job in jobs:
        try:
            call = await _next(session, queue, job)
        except Exception as error:  # noqa: BLE001 - an invalid pattern, date or time zone
            log.warning(
                "%s: cannot add the next job of scheduler %r: %s", queue, job.scheduler, error
            )
            continue
        if call is not None:
            calls.append(call)
            ids.append(job.id)
    if not calls:
        return set()
    try:
        answers = await session.run(calls)
    except MatadorError as error:
        log.warning("%s: schedulers continue when their jobs come again: %s", queue, error)
        return set(ids)
    for id_, answer in zip(ids, answers, strict=True):
        if isinstance(answer, MatadorError):
            log.warning("%s: cannot continue the scheduler of job %s: %s", queue, id_, answer)
    return set()


async def _next(session: BullMQSession, queue: str, job: BullJob) -> Call | None:
    """The call that adds the next job; None: this was the last one."""
    scheduler, repeat = job.scheduler, job.options.get("repeat")
    if scheduler is None or not isinstance(repeat, dict):
        return None
    noted = _Noted()
    package: Any = JobScheduler(cast("Any", noted))
    await package.upsertJobScheduler(
        scheduler, repeat, "", None, job.options, override=False, producer_id=job.id
    )
    if noted.at is None:
        return None
    calls = session.scripts(queue)
    return calls.next_iteration(scheduler, job.id, job.data, noted.at, session.now(), noted.options)
