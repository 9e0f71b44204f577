"""``SqliteJobs``: the part of ``SqliteTransport`` that stores jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.job import JobCapabilities, JobCounts, JobRecord, JobSchedule, JobStatus
from matador.model.message import Message, Receipt
from matador.transports.kit.transport import BaseTransport
from matador.transports.sqlite import browse
from matador.transports.sqlite import jobs as changes
from matador.transports.sqlite.connection import SqliteConnection
from matador.transports.sqlite.database import JOBS
from matador.transports.sqlite.session import SqliteQueue, WriterSession, no_such_queue

Result = TypeVar("Result")

_CAPABILITIES = JobCapabilities(
    delays=True,
    priorities=True,
    backoff=True,
    find=True,
    unique_ids=True,
    list=True,
    counts=True,
    results=True,
    progress=True,
    keep=True,
    retry=True,
    remove=True,
    cancel=True,
    pause=True,
    delete=True,
    unique=True,
    schedules=True,
    flows=True,
    rate_limit=True,
    concurrency_per_key=True,
)


class SqliteJobs(BaseTransport):
    """``JobStoring``, ``JobScheduling`` and ``JobFlows`` on SQLite."""

    @property
    def _connected(self) -> SqliteConnection:
        raise NotImplementedError

    def _wake(self, queues: set[str]) -> None:
        raise NotImplementedError

    async def _change(
        self, queue: str, work: Callable[[WriterSession, SqliteQueue], Result]
    ) -> Result:
        """Change jobs of a queue in one transaction, and wake who waits for some."""
        done = await self._connected.write(lambda session: work(session, session.jobs(queue)))
        self._wake({queue})
        return done

    async def _look(self, queue: str, look: Callable[..., Result], *arguments: object) -> Result:
        """Run ``look(connection, queue, *arguments, now)`` beside the writer."""
        connection = self._connected

        def checked(reading: object, found: SqliteQueue, *rest: object) -> Result:
            if found.jobs != JOBS:
                raise no_such_queue(queue, (), connection.path)
            return look(reading, found, *rest)

        return await connection.read(queue, checked, *arguments)

    @property
    def job_capabilities(self) -> JobCapabilities:
        return _CAPABILITIES

    async def open_jobs(self, queue: str) -> str:
        await self._connected.write(lambda session: session.open_jobs(queue))
        return queue

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        outcomes = await self._connected.writer.submit(changes.add, jobs)
        self._wake({job.queue for job in jobs if job.delay <= 0})
        return outcomes

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        return await self._look(queue, browse.find_jobs, ids)

    async def list_jobs(
        self, queue: str, status: JobStatus, *, limit: int, skip: int = 0
    ) -> Sequence[JobRecord]:
        return await self._look(queue, browse.list_jobs, status, limit, skip)

    async def count_jobs(self, queue: str) -> JobCounts:
        return await self._look(queue, browse.count_jobs)

    async def retry_job(self, queue: str, job_id: str) -> None:
        await self._change(queue, partial(changes.retry, job_id=job_id))

    async def remove_job(self, queue: str, job_id: str) -> None:
        await self._change(queue, partial(changes.remove, job_id=job_id))

    async def cancel_job(self, queue: str, job_id: str, reason: str) -> bool:
        return await self._change(queue, partial(changes.cancel, job_id=job_id, reason=reason))

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        await self._connected.write(
            partial(changes.set_progress, receipt=receipt, progress=progress)
        )

    async def pause_jobs(self, queue: str) -> None:
        await self._change(queue, lambda session, found: session.pause(found, True))

    async def resume_jobs(self, queue: str) -> None:
        await self._change(queue, lambda session, found: session.pause(found, False))

    async def delete_jobs(self, queue: str) -> None:
        await self._change(queue, changes.delete_all)

    # -- recurring jobs ----------------------------------------------------------------------

    @property
    def fires_schedules(self) -> bool:
        return False

    async def put_schedule(self, queue: str, schedule: JobSchedule) -> None:
        await self._change(queue, partial(changes.put_schedule, schedule=schedule))

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        return await self._look(queue, changes.list_schedules)

    async def remove_schedule(self, queue: str, key: str) -> bool:
        return await self._change(queue, partial(changes.remove_schedule, key=key))

    async def fire_schedule(
        self, queue: str, schedule: JobSchedule, next_at: float, jobs: Sequence[Message]
    ) -> bool:
        fire = partial(changes.fire_schedule, schedule=schedule, next_at=next_at, messages=jobs)
        return await self._change(queue, fire)

    # -- chains and groups -------------------------------------------------------------------

    async def add_flow(self, queue: str, jobs: Sequence[Message]) -> MatadorError | None:
        (outcome,) = await self._connected.submit(
            lambda session: changes.add_flow(session, session.jobs(queue), jobs)
        )
        if isinstance(outcome, QueueNotFoundError):
            raise outcome
        self._wake({queue})
        return outcome

    async def child_results(self, queue: str, job_id: str) -> Mapping[str, bytes | None]:
        return await self._look(queue, browse.child_results, job_id)
