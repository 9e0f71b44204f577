"""The BullMQ transport: messages are jobs, dead letters are failed jobs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Unpack

from matador.errors import MatadorError, TransportError
from matador.model.capabilities import Capabilities
from matador.model.job import JobCapabilities, JobCounts, JobRecord, JobSchedule, JobStatus
from matador.model.message import (
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Receipt,
    Release,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.bullmq import browse as browsing
from matador.transports.bullmq import job_store as store
from matador.transports.bullmq import schedules
from matador.transports.bullmq import send as sending
from matador.transports.bullmq.client import BullMQAddress, BullMQClient, BullMQSession
from matador.transports.bullmq.settle import JobSettler, renew
from matador.transports.bullmq.sources import FailedJobs, WaitingJobs
from matador.transports.bullmq.subscription import BullMQSubscription, StalledCheck
from matador.transports.bullmq.topology import JobSet, Queues
from matador.transports.bullmq.wire import bull_name
from matador.transports.kit.errors import cannot_pause_letters
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges, ignored_limits
from matador.transports.kit.options import read_address
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.transport import BaseTransport
from matador.transports.redis_client.doctor import examine
from matador.transports.redis_client.options import RedisServerOptions

_JOBS = JobCapabilities(
    delays=True,
    priorities=True,
    backoff=True,
    find=True,
    unique_ids=True,
    list=True,
    counts=True,
    results=True,
    progress=True,
    provider_options=True,
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
)
_LONGEST_BLOCK = 2.0  # seconds; a marker can be lost with the worker that got it


class BullMQTransport(BaseTransport):
    """Messages as BullMQ jobs, through the official package and its scripts.

    A queue is the BullMQ queue of the same name, and a message a job that workers and dashboards
    in other languages see; ``wire`` says how it is written. The dead letters of a queue are its
    failed jobs: those that other workers have failed count as ``undeliverable``.

    Args:
        url: ``bullmq://user:password@host:6379/0?prefix=bull&lease=30``.
        lease: seconds for which a job belongs to its receiver unless renewed (BullMQ's
            ``lockDuration``).
        timeout: seconds for connecting, and for a reply.
        heartbeat: seconds between checks whether the server is still there.
        prefix: what all keys begin with, as BullMQ's own option.
        name: for logs and metrics.
        db: the number of the database.
        tls, tls_ca, tls_cert, tls_key, tls_verify: encryption, files of certificates and the key,
            and whether the server's certificate is checked.

    Every option can be given in the address (``?lease=60``) or as a keyword, which wins.

    Raises:
        ConfigurationError: the address is malformed, or an option is invalid.

    Example:
        >>> BullMQTransport("bullmq://localhost", lease=60).capabilities.lease
        60.0
    """

    def __init__(self, url: str, **options: Unpack[RedisServerOptions]) -> None:
        address = read_address(BullMQAddress, url, options)
        super().__init__(address.name)
        self._url, self._given = url, options
        self._lease = address.lease
        self._block = min(_LONGEST_BLOCK, address.timeout / 2)
        self._client = BullMQClient(address, restore=self._restore, on_state=self._change_state)
        self._queues = Queues()
        self._subscriptions: set[BullMQSubscription] = set()
        self._checks: dict[str, StalledCheck] = {}
        self._capabilities = Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="native",
            attempt_tracking=True,
            concurrency="worker",
            ordering="queue",
            priorities=True,
            browse=True,
            purge=True,
            depth=True,
            pause=True,
            properties=ALL_PROPERTIES,
            durable=True,
            lease=self._lease,
            jobs=True,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.where!r}, {self.state.status})"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _open(self) -> None:
        await self._client.start()

    async def _close(self) -> None:
        """Disconnect. Other workers get what is still held when its lease ends."""
        for subscription in list(self._subscriptions):
            await subscription.close()
        checks, self._checks = list(self._checks.values()), {}
        for check in checks:
            await check.close()
        await self._client.stop()

    async def _restore(self, session: BullMQSession) -> None:
        await self._queues.restore(session)

    async def _find(self, queue: str) -> tuple[BullMQSession, JobSet]:
        session = await self._client.connection()
        return session, await self._queues.find(session, queue)

    # -- queues ------------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Declare queues, ``exact`` ones, too: a BullMQ queue is just a name."""
        session = await self._client.connection()
        await self._queues.declare(session, topology)
        return [*ignored_arguments(topology), *ignored_exchanges(topology), *_notes(topology)]

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        session = await self._client.connection()
        return await sending.store(session, self._queues, messages)

    async def subscribe(self, queue: str, *, prefetch: int) -> BullMQSubscription:
        """Subscribe. ``prefetch`` is ignored: nothing is held in advance."""
        _, jobs = await self._find(queue)
        if jobs.kind is not None:
            source = FailedJobs(jobs, lease=self._lease)
        else:
            source = WaitingJobs(jobs, lease=self._lease, block=self._block)
            if queue not in self._checks:
                self._checks[queue] = StalledCheck(self._client, queue, self._lease)
        subscription = BullMQSubscription(
            self._client, queue, source, give_back=self._give_back, closed=self._closed
        )
        self._subscriptions.add(subscription)
        return subscription

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        with contextlib.suppress(TransportError):  # then its lease runs out
            await self.settle([Release(delivery.receipt) for delivery in deliveries])

    def _closed(self, subscription: BullMQSubscription) -> None:
        self._subscriptions.discard(subscription)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """Carry out settlements. Each is atomic."""
        session = await self._client.connection()
        return await JobSettler(session, self._queues).settle(settlements)

    # -- optional abilities ------------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        return await renew(await self._client.connection(), receipts, self._lease)

    def twin(self) -> BullMQTransport:
        """Return a transport that can renew leases: a receipt has the token of the lock."""
        return BullMQTransport(self._url, **self._given)

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Browse. Once the job of ``after`` is gone, messages that were sent in the same
        millisecond may be listed again."""
        session, jobs = await self._find(queue)
        async for stored in browsing.browse(session, jobs, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        session, jobs = await self._find(queue)
        return await browsing.take(session, jobs, positions, self._lease)

    async def purge(self, queue: str) -> int:
        return await browsing.purge(*await self._find(queue))

    async def depth(self, queue: str) -> QueueDepth:
        return await browsing.depth(*await self._find(queue))

    async def pause_queue(self, queue: str) -> None:
        """Pause a queue. Workers in other languages stop, too."""
        session, jobs = await self._find(queue)
        if jobs.kind is not None:
            raise cannot_pause_letters(queue)
        await store.pause_jobs(session, jobs)

    async def resume_queue(self, queue: str) -> None:
        session, jobs = await self._find(queue)
        if jobs.kind is None:
            await store.resume_jobs(session, jobs)

    async def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused, by this or another program."""
        session, jobs = await self._find(queue)
        return jobs.kind is None and await store.is_paused(session, jobs)

    # -- jobs --------------------------------------------------------------------------------------

    @property
    def job_capabilities(self) -> JobCapabilities:
        return _JOBS

    async def open_jobs(self, queue: str) -> str:
        """Open a job queue: the BullMQ queue of that name."""
        await self._queues.open_jobs(await self._client.connection(), queue)
        return queue

    async def _jobs(self, queue: str) -> tuple[BullMQSession, JobSet]:
        session = await self._client.connection()
        return session, await self._queues.find_jobs(session, queue)

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        session = await self._client.connection()
        return await sending.add_jobs(session, self._queues, jobs)

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        return await store.find_jobs(*await self._jobs(queue), ids)

    async def list_jobs(
        self, queue: str, status: JobStatus, *, limit: int, skip: int = 0
    ) -> Sequence[JobRecord]:
        return await store.list_jobs(*await self._jobs(queue), status, limit, skip)

    async def count_jobs(self, queue: str) -> JobCounts:
        return await store.count_jobs(*await self._jobs(queue))

    async def retry_job(self, queue: str, job_id: str) -> None:
        await store.retry_job(*await self._jobs(queue), job_id)

    async def remove_job(self, queue: str, job_id: str) -> None:
        """Remove a job, and its children, as BullMQ does."""
        await store.remove_job(*await self._jobs(queue), job_id)

    async def cancel_job(self, queue: str, job_id: str, reason: str) -> bool:
        """Cancel a job. A worker in another language runs it to its end, without effect."""
        return await store.cancel_job(*await self._jobs(queue), job_id, reason)

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        await store.set_progress(await self._client.connection(), receipt, progress)

    async def pause_jobs(self, queue: str) -> None:
        """Pause a job queue. Workers in other languages stop, too."""
        await store.pause_jobs(*await self._jobs(queue))

    async def resume_jobs(self, queue: str) -> None:
        await store.resume_jobs(*await self._jobs(queue))

    async def delete_jobs(self, queue: str) -> None:
        """Delete the jobs of a queue, and its schedules."""
        session, jobs = await self._jobs(queue)
        await store.delete_jobs(session, self._queues, jobs)

    @property
    def fires_schedules(self) -> bool:
        """True: the worker that takes the job of a schedule adds the next one."""
        return True

    async def put_schedule(self, queue: str, schedule: JobSchedule) -> None:
        await schedules.put_schedule(*await self._jobs(queue), schedule)

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        return await schedules.list_schedules(*await self._jobs(queue))

    async def remove_schedule(self, queue: str, key: str) -> bool:
        """Remove a schedule, and the job that waits for its next time."""
        return await schedules.remove_schedule(*await self._jobs(queue), key)

    async def fire_schedule(
        self, queue: str, schedule: JobSchedule, next_at: float, jobs: Sequence[Message]
    ) -> bool:
        """Not needed: False."""
        return False

    async def add_flow(self, queue: str, jobs: Sequence[Message]) -> MatadorError | None:
        session, found = await self._jobs(queue)
        return await sending.add_flow(session, self._queues, found, jobs)

    async def child_results(self, queue: str, job_id: str) -> Mapping[str, bytes | None]:
        return await store.child_results(*await self._jobs(queue), job_id)

    async def examine(self) -> Sequence[Finding]:
        session = await self._client.connection()
        return await examine(session.ask, primary="name the primary in the URL")


def _notes(topology: Topology) -> Iterator[TopologyNote]:
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        if bull_name(name) != name:
            text = f"BullMQ allows no colon in a name: for other workers it is {bull_name(name)!r}"
            yield TopologyNote(name, text)
        if queue.retention is not None:
            yield TopologyNote(name, "BullMQ keeps no finished messages: no retention")
    yield from ignored_limits(topology, "BullMQ")
    for queue, kind, name in topology.dead_letter_names():
        letters = topology.letters_of(queue)[kind]
        if letters.max_length is not None or letters.ttl is not None:
            text = (
                "BullMQ keeps failed jobs of all kinds in one set, without max_length and ttl for "
                "one kind: they stay until they are purged or redriven"
            )
            yield TopologyNote(name, text)
