"""A job that was added, and its result to come; and what that needs of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from matador.errors import (
    JobFailedError,
    JobNotFoundError,
    JobsUnsupportedError,
    JobTimeoutError,
)
from matador.jobs.job import Job
from matador.model.job import JobCapabilities, JobStatus
from matador.model.options import Seconds, optional_seconds

R = TypeVar("R")

_FIRST_LOOK, _LONGEST_PAUSE = 0.005, 0.25


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A job of a flow: its id, for whom it is done, for how many it waits, and where their
    results go."""

    id: str
    name: str
    data: Any
    options: Mapping[str, Any]
    parent: str | None
    children: int
    into: str | None


class JobQueue(Protocol):
    """What declared jobs, steps and handles need of their queue."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        ...

    @property
    def capabilities(self) -> JobCapabilities:
        """What the provider can do."""
        ...

    @property
    def default_options(self) -> Mapping[str, Any]:
        """Options for all jobs."""
        ...

    async def add(
        self, name: str, data: Any = None, *, job_id: str | None = None, **options: Any
    ) -> Job[Any]:
        """Add a job."""
        ...

    async def add_flow(self, steps: Sequence[FlowStep]) -> list[Job[Any]]:
        """Add the jobs of a flow, all or none."""
        ...

    async def get(self, job_id: str) -> Job[Any] | None:
        """The job with that id, or None."""
        ...


class JobHandle(Generic[R]):
    """A job that was added, and its result to come."""

    def __init__(self, queue: JobQueue, job: Job[Any], read_result: Callable[[Any], R]) -> None:
        self._queue = queue
        self.job = job
        self._read_result = read_result

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job.id

    async def status(self) -> JobStatus:
        """Where the job stands now.

        Raises:
            JobNotFoundError: it is gone.
        """
        return (await self._look()).status

    async def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the job, and return what its function returned.

        Raises:
            JobFailedError: it failed for good.
            JobTimeoutError: it is not finished after ``timeout`` seconds.
            JobNotFoundError: it is gone: removed, or completed and not kept.
            JobsUnsupportedError: the provider keeps no results.
        """
        if not self._queue.capabilities.results:
            raise JobsUnsupportedError(
                f"queue {self._queue.name!r}: the provider keeps no results", queue=self._queue.name
            )
        limit = optional_seconds(timeout, "result: timeout")
        pause = _FIRST_LOOK
        try:
            async with asyncio.timeout(limit):
                while True:
                    job = await self._look()
                    if job.status == "completed":
                        return self._read_result(job.result)
                    if job.status == "failed":
                        raise JobFailedError(
                            f"job {job.id!r} failed: {job.error}",
                            queue=self._queue.name,
                            job_id=job.id,
                        )
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LONGEST_PAUSE)
        except JobTimeoutError:
            raise
        except TimeoutError as error:
            raise JobTimeoutError(
                f"job {self.id!r} was not finished after {limit:g} s",
                queue=self._queue.name,
                job_id=self.id,
            ) from error

    async def _look(self) -> Job[Any]:
        job = await self._queue.get(self.id)
        if job is None:
            raise JobNotFoundError(
                f"queue {self._queue.name!r} has no job {self.id!r} any more: it was removed, or "
                f"it completed and was not kept; pass remove_on_complete=False to keep it",
                queue=self._queue.name,
                job_id=self.id,
            )
        return job
