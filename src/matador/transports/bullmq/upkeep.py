"""Keeps queues going: stalled jobs are delivered again, and schedulers get their next job.

BullMQ's own workers do the same. The official package computes when the next job of a scheduler is
due. The script adds it for the scheduler's present job only: one that is delivered again adds no
second one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

from bullmq.job_scheduler import JobScheduler

from matador.errors import MatadorError, NotConnectedError
from matador.transports.bullmq.client import BullMQClient, BullMQSession
from matador.transports.bullmq.jobs import BullJob
from matador.transports.bullmq.scripts import Call
from matador.transports.kit.wakeup import Wakeup

log = logging.getLogger("matador.transports.bullmq")


class StalledCheck:
    """Checks twice per lease, from the first subscription until the transport disconnects.

    All workers of a queue share the work: the first one that checks is the only one until the next
    time.
    """

    def __init__(self, client: BullMQClient, queue: str, lease: float) -> None:
        self._client = client
        self._queue = queue
        self._period = lease / 2
        self._active = True
        self._wakeup = Wakeup()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._active:
            try:
                session = await self._client.connection()
                # A little shorter than our period, so that our own next check is not refused.
                interval = round(self._period * 900)
                call = session.scripts(self._queue).release_stalled(session.now(), interval)
                (answer,) = await session.run([call])
                if isinstance(answer, MatadorError):
                    raise answer
                if answer:
                    log.warning(
                        "%s: %d jobs of workers that died are delivered again",
                        self._queue,
                        len(answer),
                    )
            except NotConnectedError:
                pass  # the supervisor reconnects
            except MatadorError as error:
                log.warning("%s: cannot check for stalled jobs: %s", self._queue, error)
            await self._wakeup.wait(self._period)

    async def close(self) -> None:
        """Stop when the present check is over: the client loses cancellations."""
        self._active = False
        self._wakeup.wake()
        await self._task


class _NextJob:
    """Takes the place of a queue: notes when the package would add the next job."""

    def __init__(self) -> None:
        self.backend = self.scripts = self
        self.found: tuple[int, dict[str, Any]] | None = None

    async def updateJobSchedulerNextMillis(  # noqa: N802 - the package's name
        self, _id: str, at: int, _data: str, options: dict[str, Any], _job: str
    ) -> None:
        self.found = (at, options)


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
            log.warning("%s: cannot continue scheduler %r: %s", queue, job.scheduler, error)
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
    noted = _NextJob()
    package: Any = JobScheduler(cast("Any", noted))
    await package.upsertJobScheduler(
        scheduler, repeat, "", None, job.options, override=False, producer_id=job.id
    )
    if noted.found is None:
        return None
    at, options = noted.found
    calls = session.scripts(queue)
    return calls.next_iteration(scheduler, job.id, job.data, at, session.now(), options)
