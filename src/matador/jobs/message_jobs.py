"""Jobs on a transport that stores messages and nothing else: what it can do, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import NoReturn

from matador.errors import JobNotFoundError, JobsUnsupportedError, MatadorError
from matador.model.job import JobCapabilities, JobCounts, JobRecord, JobStatus
from matador.model.message import (
    Message,
    QueueDepth,
    Receipt,
    Retry,
    StoredMessage,
)
from matador.model.topology import (
    DeadLetters,
    Topology,
    WorkQueue,
    dead_letter_name,
)
from matador.transports.base import (
    Browsing,
    BrowsingDeadLetters,
    JobNaming,
    Measuring,
    Purging,
    Transport,
)
from matador.transports.kit.jobs import as_new, record_of

NAMESPACE = "jobs"
"""Queues of jobs are in it on transports that have namespaces: ``jobs.emails``."""


class MessageJobs:
    """Implements ``JobStoring`` as far as messages go: jobs are sent, run, retried and kept among
    the dead letters when they have failed. What else there is to know of a job, nobody stores."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def job_capabilities(self) -> JobCapabilities:
        """See ``JobStoring``."""
        can = self._transport.capabilities
        return JobCapabilities(
            delays=can.delays,
            backoff=can.delays,
            dead_letters=can.dead_letters != "none",
            counts=can.depth,
            retry=can.browse or isinstance(self._transport, BrowsingDeadLetters),
            delete=can.purge,
            max_job_size=can.max_message_size,
            max_delay=can.max_delay,
        )

    async def open_jobs(self, queue: str) -> str:
        """See ``JobStoring``."""
        transport = self._transport
        own = isinstance(transport, JobNaming)
        topology = transport.job_topology(queue) if own else job_topology(queue)
        await self._transport.apply_topology(topology)
        return topology.full_name(queue)

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``JobStoring``. Nobody knows whether an id is taken."""
        return await self._transport.send(jobs)

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        """Not possible here."""
        self._cannot(queue, "find a job by its id")

    async def list_jobs(
        self, queue: str, status: JobStatus, *, limit: int, skip: int = 0
    ) -> Sequence[JobRecord]:
        """See ``JobStoring``. Failed ones only."""
        if status != "failed":
            self._cannot(queue, f"list jobs that are {status}")
        letters = self._letters(queue, "list failed jobs")
        found = [_record(queue, letter) async for letter in letters]
        return found[::-1][skip : skip + limit]

    async def count_jobs(self, queue: str) -> JobCounts:
        """See ``JobStoring``. Completed jobs are gone."""
        if not isinstance(self._transport, Measuring):
            self._cannot(queue, "count jobs")
        depth = await self._transport.depth(queue)
        failed = await self._transport.depth(dead_letter_name(queue, "undeliverable"))
        return JobCounts(
            waiting=depth.ready,
            delayed=depth.delayed,
            active=depth.in_flight,
            failed=failed.total,
            unknown=frozenset({"completed", *_unknown(depth)}),
        )

    async def retry_job(self, queue: str, job_id: str) -> None:
        """See ``JobStoring``. Looks through the dead letters."""
        outcomes = await self.retry_jobs(queue, {job_id})
        if job_id not in outcomes:
            raise JobNotFoundError(
                f"queue {queue!r} has no failed job {job_id!r}", queue=queue, job_id=job_id
            )
        error = outcomes[job_id]
        if error is not None:
            raise error

    async def retry_jobs(self, queue: str, ids: Collection[str]) -> dict[str, MatadorError | None]:
        """``retry_job`` for many, in one pass over the dead letters. For each that was found: None,
        or why it could not be sent again."""
        letters = self._letters(queue, "retry a failed job")
        # All are looked at before one is taken: some brokers hold what is being looked at.
        found = {letter.id: letter async for letter in letters if letter.id in ids}
        outcomes: dict[str, MatadorError | None] = {}
        for letter in found.values():
            assert isinstance(self._transport, Browsing)
            (delivery,) = await self._transport.take(letter.queue, [letter.position])
            if delivery is None:
                continue
            again = Message(
                letter.id,
                queue,
                delivery.body,
                as_new(delivery.headers),
                priority=letter.priority,
                ordering_key=letter.ordering_key,
                properties=delivery.properties,
            )
            (error,) = await self._transport.settle([Retry(delivery.receipt, again)])
            outcomes[letter.id] = error
        return outcomes

    async def remove_job(self, queue: str, job_id: str) -> None:
        """Not possible here."""
        self._cannot(queue, "remove a job by its id")

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        """Nobody keeps it. The worker's listeners are told all the same."""

    async def pause_jobs(self, queue: str) -> None:
        """Not possible here."""
        self._cannot(queue, "pause a queue for all workers; worker.pause() pauses one")

    async def resume_jobs(self, queue: str) -> None:
        """Not possible here."""
        self._cannot(queue, "pause a queue for all workers; worker.resume() resumes one")

    async def delete_jobs(self, queue: str) -> None:
        """See ``JobStoring``. What workers hold is not deleted."""
        if not isinstance(self._transport, Purging):
            self._cannot(queue, "delete a queue")
        await self._transport.purge(queue)
        await self._transport.purge(dead_letter_name(queue, "undeliverable"))

    def _letters(self, queue: str, what: str) -> AsyncIterator[StoredMessage]:
        transport = self._transport
        if not isinstance(transport, Browsing) or not self.job_capabilities.retry:
            self._cannot(queue, what)
        return transport.browse(dead_letter_name(queue, "undeliverable"))

    def _cannot(self, queue: str, what: str) -> NoReturn:
        raise JobsUnsupportedError(
            f"the provider {self._transport.name!r} cannot {what}", queue=queue
        )


def job_topology(queue: str) -> Topology:
    """The topology that a queue of jobs needs."""
    return Topology(
        NAMESPACE,
        queues=[WorkQueue(queue)],
        dead_letters=DeadLetters(unhandled=False),
    )


def _unknown(depth: QueueDepth) -> set[JobStatus]:
    names: dict[str, JobStatus] = {"delayed": "delayed", "in_flight": "active"}
    return {names[name] for name in depth.unknown}


def _record(queue: str, letter: StoredMessage) -> JobRecord:
    stored = letter.stored_at
    return record_of(
        letter.id,
        queue,
        letter.headers,
        letter.body,
        "failed",
        priority=letter.priority,
        stored_at=0.0 if stored is None else stored.timestamp(),
    )
