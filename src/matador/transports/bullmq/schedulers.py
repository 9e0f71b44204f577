"""Keeps BullMQ's schedulers going: whoever takes a job of one adds the next job.

BullMQ's own workers do the same. The official package works out when the next one is due. The
script adds it only for the scheduler's present job: one that is delivered again adds no second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from bullmq.job_scheduler import JobScheduler

from matador.errors import MatadorError
from matador.transports.bullmq.jobs import Job
from matador.transports.bullmq.link import Link, Session
from matador.transports.bullmq.scripts import Call

log = logging.getLogger("matador.transports.bullmq")


class _Noted:
    """Stands for a queue: the package finds out what comes next, and it is done here."""

    def __init__(self) -> None:
        self.backend = self.scripts = self
        self.found: tuple[int, dict[str, Any]] | None = None

    async def updateJobSchedulerNextMillis(  # noqa: N802 - the package's name
        self, _id: str, at: int, _data: str, options: dict[str, Any], _job: str
    ) -> None:
        self.found = (at, options)


async def go_on(link: Link, session: Session, queue: str, jobs: Sequence[Job]) -> set[str]:
    """Add the next jobs of schedulers whose jobs were taken.

    Returns:
        the ids of jobs whose scheduler stands still, since the connection was lost. They must not
        be handed out: they come again when their locks run out, and their schedulers go on then.
    """
    calls: list[Call] = []
    ids: list[str] = []
    for job in jobs:
        try:
            call = await _next(session, queue, job)
        except Exception as error:  # noqa: BLE001 - a pattern, a date or a time zone of somebody's
            log.warning("%s: scheduler %r cannot go on: %s", queue, job.scheduler, error)
            continue
        if call is not None:
            calls.append(call)
            ids.append(job.id)
    if not calls:
        return set()
    try:
        answers = await link.run(session, calls)
    except MatadorError as error:
        log.warning("%s: schedulers go on when their jobs come again: %s", queue, error)
        return set(ids)
    for id_, answer in zip(ids, answers, strict=True):
        if isinstance(answer, MatadorError):
            log.warning("%s: the scheduler of job %s cannot go on: %s", queue, id_, answer)
    return set()


async def _next(session: Session, queue: str, job: Job) -> Call | None:
    """The call that adds the job after this one; None: it was the last."""
    scheduler, repeat = job.scheduler, job.options.get("repeat")
    if scheduler is None or not isinstance(repeat, dict):
        return None
    noted = _Noted()
    package: Any = JobScheduler(cast("Any", noted))
    await package.upsertJobScheduler(
        scheduler, repeat, "", None, job.options, override=False, producer_id=job.id
    )
    if noted.found is None:
        return None
    at, options = noted.found
    calls = session.scripts(queue)
    return calls.next_iteration(scheduler, job.id, job.data, at, session.now(), options)
