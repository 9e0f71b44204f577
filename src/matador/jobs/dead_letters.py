"""The failed jobs of a queue as dead letters, like those of every other way in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from matador.errors import InvalidJobError, JobNotFoundError, JobStateError, MatadorError
from matador.jobs.job import encode_json, metadata_from
from matador.jobs.provider import JobProvider, MessageJobs, jobs_topology
from matador.jobs.wire import correlation_id_of
from matador.model import job as names
from matador.model.message import DELIVERIES_HEADER, Delivery
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.runtime.dead_letters import (
    CHANGED,
    Contents,
    DeadLetterOffice,
    Edit,
    Fresh,
    Letter,
    Moved,
    Place,
    Progress,
    Selection,
)
from matador.runtime.facts import moment, plain_data
from matador.transports.clock import Clock
from matador.transports.kit.jobs import as_new, job_body, record_of, split_body

CheckData = Callable[[str, Any], None]
"""Checks the data of a job of a name; raises ``InvalidJobError``."""


class JobReader:
    """Reads and renews the stored jobs of a queue. See ``StoredReader``."""

    def __init__(self, check: CheckData | None = None) -> None:
        self._check = check

    def read(self, delivery: Delivery, queue: str) -> Contents:
        job_id = str(delivery.headers.get(names.ID) or delivery.id)
        job = record_of(job_id, queue, delivery.headers, delivery.body, "failed")
        return Contents(
            id=job_id,
            name=job.name,
            receiver=job.name,
            attempts=job.attempts,
            last_error=job.error,
            correlation_id=correlation_id_of(delivery.headers),
            metadata=metadata_from(job.metadata),
            created_at=moment(job.created_at),
            original_queue=queue,
            plain=lambda: plain_data(job.data),
            problem=delivery.problem,
        )

    def renewed(self, delivery: Delivery, queue: str, edit: Edit | None = None) -> Fresh:
        headers, body = as_new(delivery.headers), delivery.body
        headers.pop(DELIVERIES_HEADER, None)
        if edit is not None:
            data, metadata = split_body(body)
            if edit.expected is not None and plain_data(data) != edit.expected:
                raise InvalidJobError(CHANGED)
            if self._check is not None:
                self._check(str(headers.get(names.NAME, "")), edit.data)
            body = job_body(encode_json(edit.data, "the new data"), metadata)
        return Fresh(body, headers, delivery.properties)

    def checkpoint_id(self, delivery: Delivery, id: str, queue: str) -> str:
        return checkpoint_id(queue, id, delivery)


def checkpoint_id(queue: str, job_id: str, delivery: Delivery) -> str:
    """The id of a job's stored steps. Contains the queue and the creation time, because queues
    share a store and job ids may be reused."""
    return f"{queue}:{job_id}:{delivery.headers.get(names.CREATED_AT, '')}"


class FailedJobs(DeadLetterOffice):
    """The dead letters of a queue of jobs: its failed jobs. A ``Queue`` connects on first use.

    Example:
        >>> async for letter in queue.dead_letters.browse():
        ...     print(letter.id, letter.name, letter.error)
        >>> moved = await queue.dead_letters.redrive(Selection(error_type="TimeoutError"))
    """

    def __init__(
        self,
        provider: JobProvider,
        queue: str,
        reader: JobReader,
        clock: Clock,
        ready: Callable[[], Awaitable[object]],
        forget: Callable[[str], Awaitable[None]] | None,
    ) -> None:
        topology = jobs_topology(provider, queue)
        super().__init__(provider.transport, topology, reader, clock, lambda: None, forget)
        self._store = provider.store
        self._ready = ready

    async def browse_queue(
        self,
        queue: WorkQueue,
        kind: DeadLetterKind,
        *,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Letter]:
        await self._ready()
        async for letter in super().browse_queue(queue, kind, after=after, limit=limit):
            yield letter

    async def count(self, selection: Selection | None = None) -> int:
        await self._ready()
        return await super().count(selection)

    async def redrive(
        self,
        chosen: Selection | Sequence[Place],
        *,
        patience: float = 0.0,
        progress: Progress | None = None,
    ) -> Moved:
        await self._ready()
        if isinstance(self._store, MessageJobs):
            return await super().redrive(chosen, patience=patience, progress=progress)
        # Like ``Queue.retry``: the provider knows which jobs wait for each job.
        places = await self.choose(chosen) if isinstance(chosen, Selection) else chosen
        moved = Moved()
        for place in places:
            try:
                await self._store.retry_job(place.home, place.id)
            except (JobNotFoundError, JobStateError):
                moved.gone += 1
            except MatadorError as error:
                moved.failed.append((place.id, str(error)))
            else:
                moved.done += 1
            if progress is not None:
                progress(1)
        return moved

    async def redrive_edited(
        self, place: Place, data: Any, *, expected: Any = None, patience: float = 0.0
    ) -> Moved:
        await self._ready()
        return await super().redrive_edited(place, data, expected=expected, patience=patience)

    async def purge(
        self,
        chosen: Selection | Sequence[Place],
        *,
        patience: float = 0.0,
        progress: Progress | None = None,
    ) -> Moved:
        await self._ready()
        return await super().purge(chosen, patience=patience, progress=progress)
