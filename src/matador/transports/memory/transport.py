"""``MemoryTransport``: the transport protocol on top of a ``MemoryStore``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from matador.errors import ConfigurationError, MatadorError
from matador.model.capabilities import Capabilities
from matador.model.job import JobCapabilities, JobCounts, JobRecord, JobSchedule, JobStatus
from matador.model.message import (
    ConnectionState,
    Delivery,
    Message,
    Once,
    QueueDepth,
    Receipt,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.options import Seconds
from matador.model.topology import DeadLetterKind, Topology, dead_letter_name
from matador.transports.base import Subscription
from matador.transports.clock import Clock, SystemClock
from matador.transports.kit.errors import lease_lost, no_retention, refuse_letters
from matador.transports.kit.notes import ignored_arguments
from matador.transports.kit.options import read_options
from matador.transports.kit.replies import MOST_REPLIES, REPLY_PREFIX
from matador.transports.kit.transport import BaseTransport
from matador.transports.memory.entry import MemoryHold, delivery_of, place_of, stored_of
from matador.transports.memory.options import Ability, MemoryOptions
from matador.transports.memory.store import MemoryStore
from matador.transports.memory.subscription import MemorySubscription

_PAGE = 500


class MemoryTransport(BaseTransport):
    """A broker inside this process, for tests, single processes and as a fall-back.

    Messages live in this object: they stay while it is disconnected, and end with the process.

    Args:
        name: for logs and metrics.
        clock: the source of time; one that implements ``Alarms`` also decides when delays end.
        lease: seconds for which a delivery belongs to its receiver; None: until ``disconnect``.
        without: abilities to turn off, to test an application on a simpler broker.

    Example:
        >>> transport = MemoryTransport(without=["delays"])
        >>> transport.capabilities.delays
        False
    """

    def __init__(
        self,
        *,
        name: str = "memory",
        clock: Clock | None = None,
        lease: Seconds | None = None,
        without: Collection[Ability] = (),
    ) -> None:
        given = MemoryOptions(name=name, lease=lease, without=without)  # pyright: ignore[reportArgumentType] - a timedelta is checked
        super().__init__(given.name)
        self._clock: Clock = clock or SystemClock()
        self._capabilities = given.capabilities()
        self._store = MemoryStore(self._capabilities, self._clock)
        self._reply_address: str | None = None
        self._subscriptions: set[MemorySubscription] = set()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> MemoryTransport:
        """A transport from ``memory://``; options: ``?name=…&lease=5&without=delays,browse``.

        Raises:
            ConfigurationError: the address is malformed, or has an unknown option.
        """
        location, _, query = url.partition("?")
        if location.lower().rstrip("/") != "memory:":
            raise ConfigurationError("memory: the address has a host or a path; write memory://")
        return cls(**read_options(MemoryOptions, query, options))

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # -- connection -------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._change_state(ConnectionState("connected"))
        self._store.pass_time()

    async def _close(self) -> None:
        """Put back what was delivered and not settled; the deliveries count.

        Messages that fall due while disconnected are delivered after the next ``connect``.
        """
        for subscription in list(self._subscriptions):
            await subscription.close()
        self._store.give_back_all()
        self._store.cancel_alarm()
        if self._reply_address is not None:
            self._store.queue(self._reply_address).clear()
        self._change_state(ConnectionState("disconnected", closed=True))

    @property
    def _connected(self) -> MemoryStore:
        self._require_connected()
        return self._store

    # -- the protocol -----------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """``exact`` queues are created, too: no other process could create them."""
        return [*ignored_arguments(topology), *self._connected.apply(topology)]

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """All messages are stored before another task runs."""
        return self._connected.put(messages)

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        """See ``Transport``. ``prefetch`` is ignored: nothing is taken in advance."""
        return self._subscribe(queue)

    def _subscribe(self, queue: str, *, settled: bool = False) -> MemorySubscription:
        store = self._connected
        subscription = MemorySubscription(
            store.queue(queue), store, self._subscriptions.discard, settled=settled
        )
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """Each settlement is atomic."""
        return self._connected.settle(settlements)

    # -- optional abilities -----------------------------------------------------------------------

    def _able(self, ability: str, able: bool) -> MemoryStore:
        self._require(able, ability)
        return self._store

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``.

        Raises:
            UnsupportedError: there is no lease; a delivery is held until ``disconnect``.
        """
        return self._able("a lease", self._capabilities.lease is not None).renew(receipts)

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        store = self._able("browse", self._capabilities.browse)
        place, left = place_of(after), inf if limit is None else limit
        while left > 0:
            found = store.queue(queue)
            page = found.page(place, int(min(left, _PAGE)), finished=False)
            if not page:
                return
            for stored in [stored_of(queue, entry, self._epoch) for entry in page]:
                yield stored
            place, left = page[-1].seq, left - len(page)

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """Also takes delayed messages, and those behind earlier messages of their key."""
        store = self._able("browse", self._capabilities.browse)
        places = [place_of(position) for position in positions]
        holds = store.take(store.queue(queue), places)
        return [None if hold is None else delivery_of(queue, hold) for hold in holds]

    async def purge(self, queue: str) -> int:
        return self._able("purge", self._capabilities.purge).queue(queue).purge()

    async def depth(self, queue: str) -> QueueDepth:
        return self._able("depth", self._capabilities.depth).queue(queue).depth

    def is_due(self, queue: str) -> bool:
        return self._store.has(queue) and self._store.queue(queue).is_due

    def left(self, queue: str) -> int:
        if not self._store.has(queue):
            return 0
        depth = self._store.queue(queue).depth
        return depth.ready + depth.delayed

    async def pause_queue(self, queue: str) -> None:
        store = self._able("pause", self._capabilities.pause)
        store.queue(queue)
        refuse_letters(queue)
        store.pause(queue, True)

    async def resume_queue(self, queue: str) -> None:
        self._able("pause", self._capabilities.pause).pause(queue, False)

    async def is_paused(self, queue: str) -> bool:
        return self._able("pause", self._capabilities.pause).queue(queue).paused

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        found = self._able("replay", self._capabilities.replay).queue(queue)
        place = place_of(after)
        if found.retention is None:
            raise no_retention(queue)
        page = found.page(place, limit, finished=True)
        return [stored_of(queue, entry, self._epoch) for entry in page]

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        return self._able("once", self._capabilities.once).put_once(messages, once)

    async def seal(self, once: Once) -> None:
        self._able("once", self._capabilities.once).seal(once)

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        return self._able("routing", self._capabilities.routing).publish(exchange, messages)

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        self._able("routing", self._capabilities.routing).unbind(exchange, queue, pattern)

    async def delete_queue(self, queue: str) -> None:
        self._able("routing", self._capabilities.routing).delete(queue)

    async def reply_address(self) -> str:
        self._able("replies", "reply_to" in self._capabilities.properties)
        if self._reply_address is None:
            self._reply_address = f"{REPLY_PREFIX}{self._clock.new_id()}"
            self._store.made(self._reply_address).max_length = MOST_REPLIES
        return self._reply_address

    async def replies(self) -> Subscription:
        return self._subscribe(await self.reply_address(), settled=True)

    # -- jobs -------------------------------------------------------------------------------------

    @property
    def job_capabilities(self) -> JobCapabilities:
        return JobCapabilities(
            delays=self._capabilities.delays,
            priorities=self._capabilities.priorities,
            backoff=self._capabilities.delays,
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

    async def open_jobs(self, queue: str) -> str:
        self._able("jobs", self._capabilities.jobs).open_jobs(queue)
        return queue

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        return self._connected.add_jobs(jobs)

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        jobs = self._connected.jobs(queue)
        return [jobs.find(job_id) for job_id in ids]

    async def list_jobs(
        self, queue: str, status: JobStatus, *, limit: int, skip: int = 0
    ) -> Sequence[JobRecord]:
        return self._connected.jobs(queue).list(status, limit, skip)

    async def count_jobs(self, queue: str) -> JobCounts:
        return self._connected.jobs(queue).counts()

    async def retry_job(self, queue: str, job_id: str) -> None:
        self._connected.retry_job(queue, job_id)

    async def remove_job(self, queue: str, job_id: str) -> None:
        self._connected.remove_job(queue, job_id)

    async def cancel_job(self, queue: str, job_id: str, reason: str) -> bool:
        return self._connected.cancel_job(queue, job_id, reason)

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        jobs, hold = self._connected.jobs(receipt.queue), receipt.handle
        if not isinstance(hold, MemoryHold) or not hold.valid:
            raise lease_lost(receipt.queue)
        jobs.set_progress(hold.entry.message.id, progress)

    async def pause_jobs(self, queue: str) -> None:
        self._connected.jobs(queue)
        self._store.pause(queue, True)

    async def resume_jobs(self, queue: str) -> None:
        self._connected.jobs(queue)
        self._store.pause(queue, False)

    async def delete_jobs(self, queue: str) -> None:
        self._connected.jobs(queue).clear()

    @property
    def fires_schedules(self) -> bool:
        return False

    async def put_schedule(self, queue: str, schedule: JobSchedule) -> None:
        self._connected.jobs(queue).schedules[schedule.key] = schedule

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        schedules = self._connected.jobs(queue).schedules.values()
        return sorted(schedules, key=lambda schedule: schedule.next_at)

    async def remove_schedule(self, queue: str, key: str) -> bool:
        return self._connected.jobs(queue).schedules.pop(key, None) is not None

    async def fire_schedule(
        self, queue: str, schedule: JobSchedule, next_at: float, jobs: Sequence[Message]
    ) -> bool:
        schedules = self._connected.jobs(queue).schedules
        stored = schedules.get(schedule.key)
        if stored is None or stored.next_at != schedule.next_at:
            return False
        schedules[schedule.key] = msgspec.structs.replace(stored, next_at=next_at)
        self._store.add_jobs(jobs)
        return True

    async def add_flow(self, queue: str, jobs: Sequence[Message]) -> MatadorError | None:
        return self._connected.add_flow(queue, jobs)

    async def child_results(self, queue: str, job_id: str) -> Mapping[str, bytes | None]:
        return self._connected.jobs(queue).flows.results(job_id)

    @property
    def _epoch(self) -> float:
        return self._clock.time() - self._clock.monotonic()

    # -- for tests: these work whether it is connected or not -------------------------------------

    def messages(self, queue: str) -> list[StoredMessage]:
        """The unfinished messages of a queue, in the order in which they were sent.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        found = self._store.queue(queue)
        entries = found.page(0, len(found.entries), finished=False)
        return [stored_of(queue, entry, self._epoch) for entry in entries]

    def dead_letters(
        self, queue: str, kind: DeadLetterKind = "undeliverable"
    ) -> list[StoredMessage]:
        """The dead letters of a queue, oldest first."""
        return self.messages(dead_letter_name(queue, kind))

    def next_due(self, queue: str) -> float | None:
        """When the next delay or limit ends, by the clock's ``monotonic``; None: never."""
        found = self._store.queue(queue)
        depth = found.depth
        due = found.next_time() if depth.ready or depth.delayed else inf
        return None if due == inf else due

    def completed(self, queue: str) -> int:
        """How many messages of a queue were completed since it was created or cleared."""
        return self._store.queue(queue).completed

    def clear(self) -> None:
        """Delete all messages, delivered ones included; queues and subscriptions stay."""
        self._store.clear()
