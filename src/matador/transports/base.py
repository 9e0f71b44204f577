"""The transport protocol: what every broker adapter implements, and what it promises.

A transport is pure I/O. It stores messages, hands over raw deliveries and carries out settlements;
it never looks into a body, never decides about retries and knows nothing of events or subscribers.
Everything comes in batches: a single message is a batch of one. Optional abilities (browse, purge,
depth, pause, replay, once, leases) are protocols of their own, declared in ``capabilities``.

All methods are coroutines of one event loop. Unless said otherwise they may be called concurrently.
Errors of client libraries never escape: each is raised as a ``matador.errors`` error with the
original as its cause. ``matador.testing.TransportCompliance`` checks all that is promised here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeGuard, runtime_checkable

from matador.errors import MatadorError
from matador.model.capabilities import Capabilities
from matador.model.job import JobCapabilities, JobCounts, JobRecord, JobSchedule, JobStatus
from matador.model.job_limits import JobLimits
from matador.model.log import LogMessage, LogPartition, LogRange
from matador.model.message import (
    ConnectionState,
    Delivery,
    Finding,
    Message,
    Once,
    QueueDepth,
    Receipt,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.topology import Topology


class TransportObserver(Protocol):
    """Who wants to know what happens inside a transport. Calls must return quickly."""

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        """The connection of ``transport`` is in another state now."""
        ...

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        """``message`` could not be stored by ``failed`` and is given to ``next_``."""
        ...

    def dropped(self, queue: str, number: int) -> None:
        """Messages that this process had received from a queue are gone, and were not handled."""
        ...


class Subscription(Protocol):
    """A stream of deliveries from one queue, for one receiver at a time."""

    @property
    def queue(self) -> str:
        """The full name of the queue."""
        ...

    @property
    def active(self) -> bool:
        """False once closed."""
        ...

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Wait for messages; return at least one and at most ``limit``.

        An empty result means that the subscription was closed. ``limit`` is a credit: the
        transport must not take more than that out of the broker's hands for this receiver (a
        broker that pushes may hold up to the ``prefetch`` of ``subscribe``). Cancelling the call
        loses nothing: what was taken meanwhile is returned by the next call or given back.
        Messages that are due are delivered in order of priority, then of sending.

        Reading never raises because of what an entry contains: whatever arrives becomes a delivery.
        What cannot be read of it is left out, and ``Delivery.problem`` says what it was.

        Raises:
            TransportError: this call failed; the next may succeed. The caller backs off.
        """
        ...

    async def close(self) -> None:
        """Stop receiving. Idempotent; ends a waiting ``receive``.

        What was taken but not yet returned goes back to the queue, uncounted. Deliveries already
        returned stay with the receiver and can still be settled.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """A broker, seen from Matador."""

    @property
    def name(self) -> str:
        """A short name for logs and metrics, unique in a ``MultiTransport``. Never a secret."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; constant once connected."""
        ...

    @property
    def state(self) -> ConnectionState:
        """Where the connection stands."""
        ...

    def observe(self, observer: TransportObserver) -> Callable[[], None]:
        """Tell ``observer`` about connection states and fall-backs from now on.

        Returns a function that ends this; calling it again does nothing. An observer that is
        added twice is told everything once, until both are ended.
        """
        ...

    async def connect(self) -> None:
        """Connect. Idempotent. Afterwards the transport looks after the connection itself.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
        """
        ...

    async def disconnect(self) -> None:
        """Close all subscriptions, finish what is being sent, release everything. Idempotent.

        A transport can be connected again afterwards.
        """
        ...

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Create what is missing: queues, dead letters, whatever retries need. Idempotent.

        Never deletes and never changes a message. Returns what it could not honor. ``exact``
        queues without ``create`` are somebody else's: on brokers with queues of their own they are
        used, not made. A temporary queue that expired is made again, empty.
        """
        ...

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """Store messages. For each, in order: None once it is safely stored, or why it is not.

        Safe means: it survives what ``capabilities.durable`` promises. Messages for one queue are
        stored in the order given. One that fails does not keep others from being stored. The
        outcome of a failed one may be unknown (a connection lost in between): it may be stored
        all the same. Must not wait for ever.

        Raises:
            NotConnectedError: not connected; nothing was stored.
        """
        ...

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        """Start receiving from a queue, by its full name; dead-letter queues can be named too.

        ``prefetch`` is the largest number of unsettled deliveries the receiver will hold.

        Raises:
            QueueNotFoundError: there is no such queue.
            NotConnectedError: not connected.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """Carry out settlements. For each, in order: None once it is safely done, or why not.

        ``Retry`` and ``DeadLetter`` store the successor and remove the original atomically where
        the broker can, else the successor is confirmed first: never is neither there. A settlement
        whose delivery meanwhile belongs to another receiver is refused with ``LeaseLostError`` and
        changes nothing. A dead letter goes to ``{queue}.{kind}`` with its reason in the header
        ``x-matador-dead-letter-reason``. A successor for a queue that does not exist (dead letters
        of a kind that is turned off, too) is refused with ``QueueNotFoundError``, and the delivery
        stays. Works for deliveries of a closed subscription.

        A settlement that this broker can never carry out (a header that is too long, a text that
        cannot be encoded) is refused with ``UnstorableError``: the caller then asks for a simpler
        form. A dead letter without a message and with ``bare`` must always fit. Every other error
        means that the same settlement may succeed later.

        Dead-letter queues of the applied topology that were deleted meanwhile are made again.

        Raises:
            NotConnectedError: not connected; nothing was settled.
        """
        ...


@runtime_checkable
class Choosing(Protocol):
    """For groups of transports, which choose one for each message. Not a capability."""

    @property
    def transports(self) -> Sequence[Transport]:
        """The group."""
        ...

    async def send_to(self, messages: Sequence[Message]) -> Sequence[str | MatadorError]:
        """``send``. For each message: the name of the transport that stored it, or why none did."""
        ...


def members_of(transport: Transport) -> Sequence[Transport]:
    """The transports of a group; otherwise the transport itself."""
    return transport.transports if isinstance(transport, Choosing) else (transport,)


@runtime_checkable
class Ending(Protocol):
    """For transports whose messages end with the process. Not a capability.

    A shutdown handles what is due first, and logs what is left.
    """

    def is_due(self, queue: str) -> bool:
        """Would a receiver of the queue get a message now?"""
        ...

    def left(self, queue: str) -> int:
        """How many messages of the queue wait, delayed ones included, and end with the process."""
        ...


# -- optional abilities, declared in capabilities -------------------------------------------------


@runtime_checkable
class Leasing(Protocol):
    """``capabilities.lease``: deliveries belong to their receiver until it passes unrenewed."""

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """Hold deliveries for another lease from now. For each: False if it was lost already."""
        ...


class LeasingTransport(Transport, Leasing, Protocol):
    """A transport with leases."""


@runtime_checkable
class Twinning(Leasing, Protocol):
    """For leasing transports whose deliveries can be renewed over another connection. Not a
    capability.

    While the event loop is blocked, a worker renews leases from a thread, over such a connection.
    A transport without it loses its leases then. So does ``MemoryTransport`` if it has any: they
    end on the loop that was blocked, as soon as it goes on.
    """

    def twin(self) -> LeasingTransport | None:
        """A new, unconnected transport with the same name, address and options.

        Its ``renew`` accepts receipts of this transport. It is created, connected and used in
        another thread, with an event loop of its own. None: there is no such transport.
        """
        ...


@runtime_checkable
class Browsing(Protocol):
    """``capabilities.browse``: messages can be looked at, and taken, without being consumed."""

    def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """The messages of a queue in order of sending, whatever their state but ``done``.

        Starts behind the position ``after``. Messages sent or settled meanwhile may or may not be
        seen; none is seen twice.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """Receive exactly these messages, to settle them. For each, in order: its delivery, or
        None if it is in other hands, or gone."""
        ...


@runtime_checkable
class BrowsingDeadLetters(Browsing, Protocol):
    """For transports that can look at dead letters only. Not a capability: ``browse`` is False, and
    ``browse`` of a work queue raises ``UnsupportedError``."""

    @property
    def browses_dead_letters(self) -> bool:
        """Whether it can. False for some groups only."""
        ...


@runtime_checkable
class BrowsingByTaking(Protocol):
    """For transports that show messages by taking them for a moment. Not a capability.

    Consumers do not see the messages meanwhile. Whoever looks again and again, such as a dashboard,
    does so only when somebody asks.
    """

    @property
    def browses_by_taking(self) -> bool:
        """Whether it does. False for some groups only."""
        ...


def browses_dead_letters(transport: Transport) -> TypeGuard[Browsing]:
    """Can dead letters be looked at, and taken?"""
    if isinstance(transport, BrowsingDeadLetters) and transport.browses_dead_letters:
        return True
    return transport.capabilities.browse and isinstance(transport, Browsing)


def browses_by_taking(transport: Transport) -> bool:
    """Do consumers miss messages for a moment while an operator looks at them?"""
    return isinstance(transport, BrowsingByTaking) and transport.browses_by_taking


@runtime_checkable
class Purging(Protocol):
    """``capabilities.purge``: a queue can be emptied."""

    async def purge(self, queue: str) -> int:
        """Delete every message of a queue that nobody holds; say how many there were."""
        ...


@runtime_checkable
class Measuring(Protocol):
    """``capabilities.depth``: it is known how many messages wait."""

    async def depth(self, queue: str) -> QueueDepth:
        """How many messages of a queue are ready, delayed and in flight."""
        ...


@runtime_checkable
class MeasuringMany(Measuring, Protocol):
    """For transports that look at many queues with one question. Not a capability."""

    async def depths(self, queues: Sequence[str]) -> Sequence[QueueDepth | None]:
        """The depth of each queue, in order; None: there is no such queue."""
        ...

    async def paused(self, queues: Sequence[str]) -> Sequence[bool | None]:
        """Whether each queue is paused, in order; None: there is no such queue."""
        ...


@runtime_checkable
class Aging(Measuring, Protocol):
    """For transports that know how late a queue is, although they do not show its messages. Not a
    capability: those with ``capabilities.depth`` tell it."""

    async def oldest_due(self, queue: str) -> datetime | None:
        """Since when the oldest message that is due has been waiting; None: none is due.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...


@runtime_checkable
class QueuePausing(Protocol):
    """``capabilities.pause``: a queue can be paused for all who receive from it, in any process.

    The pause belongs to the queue: it outlives every process, and ends with ``resume_queue`` or
    when the queue is deleted. A paused queue takes messages, and can be browsed, purged and
    replayed. ``Browsing.take`` still takes from it. What somebody holds can be settled; what is
    retried, released or lost with its lease waits like the others. A ``receive`` waits, too, and
    gets messages soon after the pause. For a queue of jobs this is its own pause: see
    ``JobStoring.pause_jobs``.

    Every method raises ``QueueNotFoundError`` for a queue that does not exist, and
    ``NotConnectedError`` without a connection.
    """

    async def pause_queue(self, queue: str) -> None:
        """Hand over nothing that is not yet taken when this returns. Idempotent.

        Raises:
            ConfigurationError: it is a queue of dead letters.
        """
        ...

    async def resume_queue(self, queue: str) -> None:
        """End a pause, and wake who waits, in every process. Idempotent."""
        ...

    async def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused, by whomever."""
        ...


@runtime_checkable
class Replaying(Protocol):
    """``capabilities.replay``: what a queue with a retention finished can be read again."""

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        """Up to ``limit`` messages behind a position, finished ones included, in order of sending.

        The same position gives the same messages again until the retention has passed.

        Raises:
            UnsupportedError: the queue has no retention, so what is finished is gone.
        """
        ...


@runtime_checkable
class Deduplicating(Protocol):
    """``capabilities.once``: whoever is not sure whether a message was stored may send it again."""

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        """``send`` those whose id was not stored under ``once`` yet; the others count as stored.

        The message and the note that it was stored become durable together. One that fails leaves
        no note. Everything of a part that was sealed counts as stored.
        """
        ...

    async def seal(self, once: Once) -> None:
        """Nothing more belongs to this part, or to those before it: their ids may be forgotten.

        Idempotent. The seal itself is kept, so a sender that comes late cannot store anything.
        """
        ...


@runtime_checkable
class Routing(Protocol):
    """``capabilities.routing``: ``apply_topology`` makes exchanges and bindings, too.

    They are the broker's: all processes share them, they stay when the process ends, and what one
    process binds counts for what any other publishes next. An exchange that exists keeps its type.
    ``WorkQueue(expires=seconds)`` is deleted, with its bindings and messages, when there was no
    subscription to it and it was not applied again for so long. A subscription keeps it, also
    through a lost connection that is restored in time.
    """

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        """Store each message in every queue whose binding matches its ``routing_key``.

        All of these queues get it, or none. A queue with several matching bindings gets it once.
        ``Message.queue`` is ignored. For each, in order: in how many queues it is safely stored
        (1 for a broker that does not say, whoever wants it), 0 if no binding matches, or why not:
        ``QueueNotFoundError`` if there is no such exchange, ``DelaysNotSupportedError`` for a
        delay on a broker that cannot delay here. A message without a routing key has an empty one.

        Raises:
            NotConnectedError: not connected; nothing was stored.
            UnsupportedError: this transport has no routing.
        """
        ...

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Remove one binding of a queue, by its full name. Idempotent.

        What it brought before stays in the queue. A reconnect does not bring it back.

        Raises:
            NotConnectedError: not connected.
            UnsupportedError: this transport has no routing.
        """
        ...

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue, by its full name, with its bindings and all of its messages. Idempotent.

        Its dead letters stay. Neither a reconnect nor a ``send`` brings it back, only another
        ``apply_topology``. Settling its deliveries is refused or has no effect, and a subscription
        to it fails with ``QueueNotFoundError`` or receives nothing more: close it first.

        Raises:
            ConfigurationError: it is a queue of jobs.
            NotConnectedError: not connected.
            UnsupportedError: this transport has no routing.
        """
        ...


@runtime_checkable
class Replying(Protocol):
    """For transports that can make a private place for answers. Not a capability.

    Messages are sent and answers received over the same connection (RabbitMQ's direct reply-to
    needs one channel for both). An answer is an ordinary ``send`` to the ``reply_to`` of the
    delivery that it answers: ``Message(id="", queue=reply_to, …)`` with the ``correlation_id`` and
    ``transient``. Answers to somebody who is gone are dropped, and their ``send`` succeeds.

    Attributes:
        shared: what the users of this transport share, by its type: one of them receives the
            answers for all.
    """

    shared: dict[type[Any], Any]

    async def reply_address(self) -> str:
        """Where answers to this process arrive, for ``Properties.reply_to``. Made on first use.

        Raises:
            NotConnectedError: not connected.
            UnsupportedError: this transport does not carry ``reply_to``.
        """
        ...

    async def replies(self) -> Subscription:
        """The answers, for one receiver. They need no settling.

        Those that arrive while nobody has subscribed may be dropped, and so may the oldest of many
        thousands that wait. The subscription survives a lost connection, but answers that were on
        their way are lost: whoever asked must not wait for ever.
        """
        ...


@runtime_checkable
class JobStoring(Protocol):
    """``capabilities.jobs``: jobs are stored with their state, and can be found by their id.

    A job is a message of its queue with the headers of ``matador.model.job``. After ``open_jobs``
    the transport stores what belongs to a job as it settles the message: ``Complete`` with its
    ``result`` completes the job, ``Retry`` makes it wait again under its id, and a ``DeadLetter``
    fails it, all within what the headers ``job.keepCompleted`` and ``job.keepFailed`` say. Jobs
    that other programs have added are jobs like any other.

    Every method raises ``NotConnectedError`` while there is no connection, and
    ``QueueNotFoundError`` for a queue that ``open_jobs`` was not called for.
    """

    @property
    def job_capabilities(self) -> JobCapabilities:
        """What it can do with jobs."""
        ...

    async def open_jobs(self, queue: str) -> str:
        """Make a queue of jobs if it is not there; its full name, which all others take.

        Idempotent; undoes nothing.

        Raises:
            ConfigurationError: the queue is there, and it is not one of jobs; or its name is not
                allowed here.
        """
        ...

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        """``send``, but an id that the queue has already is refused with ``DuplicateJobError``.

        So is a job whose header ``job.unique`` is the key of another one, with a
        ``UniqueJobError`` that names the other: one that is not finished, or that was added less
        than ``job.uniqueFor`` milliseconds ago, if there is such a header.
        """
        ...

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        """For each id, in order: the job, or None."""
        ...

    async def list_jobs(
        self, queue: str, status: JobStatus, *, limit: int, skip: int = 0
    ) -> Sequence[JobRecord]:
        """Jobs in one state: finished ones by the time they finished, the latest first; others
        in the order in which they would run."""
        ...

    async def count_jobs(self, queue: str) -> JobCounts:
        """How many jobs are in which state."""
        ...

    async def retry_job(self, queue: str, job_id: str) -> None:
        """Make a failed job wait again, with no attempt counted.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it has not failed.
        """
        ...

    async def remove_job(self, queue: str, job_id: str) -> None:
        """Forget a job that nobody is running.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it is active.
        """
        ...

    async def cancel_job(self, queue: str, job_id: str, reason: str) -> bool:
        """End a job that is not finished: forget one that waits, fail one that is active.

        An active one becomes a failed job with ``reason`` as its error at once, and its worker
        loses its lease, so that no outcome of it counts. False: it is finished, and left alone.

        Raises:
            JobNotFoundError: there is no such job.
        """
        ...

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        """Store how far an active job has come, as JSON.

        Raises:
            LeaseLostError: the job belongs to another worker by now.
        """
        ...

    async def pause_jobs(self, queue: str) -> None:
        """Have no worker receive anything more from a queue until ``resume_jobs``. Idempotent."""
        ...

    async def resume_jobs(self, queue: str) -> None:
        """End a pause. Idempotent."""
        ...

    async def delete_jobs(self, queue: str) -> None:
        """Forget all jobs of a queue, active ones included, and what is known of them.

        Jobs can be added again afterwards. A worker that was running one gets ``LeaseLostError``.
        """
        ...


@runtime_checkable
class JobScheduling(Protocol):
    """``job_capabilities.schedules``: recurring jobs are stored, and fire once each time."""

    @property
    def fires_schedules(self) -> bool:
        """The provider adds the jobs itself. False: workers do, with ``fire_schedule``."""
        ...

    async def put_schedule(self, queue: str, schedule: JobSchedule) -> None:
        """Store a schedule, instead of the one with its key if there is one."""
        ...

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        """All schedules of a queue, by the time when they are due next."""
        ...

    async def remove_schedule(self, queue: str, key: str) -> bool:
        """Forget a schedule; False if there is none with that key. Jobs that it added stay."""
        ...

    async def fire_schedule(
        self, queue: str, schedule: JobSchedule, next_at: float, jobs: Sequence[Message]
    ) -> bool:
        """Add jobs and set the schedule's ``next_at``, both or neither.

        False, and nothing is done, if the schedule is gone or its ``next_at`` is another one by
        now: somebody else has fired it. A job whose id is taken is left out.
        """
        ...


@runtime_checkable
class JobFlows(Protocol):
    """``job_capabilities.flows``: jobs that wait for others."""

    async def add_flow(self, queue: str, jobs: Sequence[Message]) -> MatadorError | None:
        """Add jobs of which some wait for others: all of them, or none and why.

        A job with the header ``job.children`` waits until so many jobs whose header ``job.parent``
        is its id have completed. When one of these fails for good, it fails, too, and so do those
        that wait for it. A job of a flow can be retried: its parent waits for it again.
        """
        ...

    async def child_results(self, queue: str, job_id: str) -> Mapping[str, bytes | None]:
        """What the jobs that this one has waited for returned, as JSON, by their ids."""
        ...


@runtime_checkable
class JobLimiting(Protocol):
    """``job_capabilities.rate_limit`` and ``concurrency_per_key``: for subscriptions to queues of
    jobs. They receive no more than limits allow, counted over all who receive from the queue.

    A worker that dies counts for its keys until its lease ends.
    """

    def set_limits(self, limits: JobLimits) -> None:
        """Keep to these limits from now on. A ``receive`` that waits looks again."""
        ...

    @property
    def limited(self) -> bool:
        """The last look found no job to return, and a limit may be the reason."""
        ...


@runtime_checkable
class JobNaming(Protocol):
    """For transports whose queues of jobs other programs know by their names. Not a capability."""

    def job_topology(self, queue: str) -> Topology:
        """What a queue of jobs needs, under the name that others use."""
        ...


@runtime_checkable
class Splitting(Protocol):
    """For transports that can browse or replay: a queue can be read in parts, side by side.

    Without it a queue is read in one piece. Positions are whole numbers here.
    """

    async def split(
        self, queue: str, parts: int, *, after: str | None = None, until: str | None = None
    ) -> Sequence[str]:
        """The last positions of at most ``parts`` parts of about the same number of messages.

        ``after`` and ``until`` are the positions behind which, and with which, the whole begins
        and ends. Empty if there is nothing.
        """
        ...


@runtime_checkable
class Partitioned(Protocol):
    """For transports whose queues are logs in partitions: read by offset, whoever consumes them.

    What is finished is still there until the broker deletes it. Nothing is consumed.
    """

    async def offsets(self, queue: str) -> Mapping[int, tuple[int, int]]:
        """Of each partition: the first offset that is there, and the one behind the last.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    def read_offsets(
        self, queue: str, partition: int, start: int, end: int
    ) -> AsyncIterator[StoredMessage]:
        """The messages of a partition from one offset to the one before another, in order.

        Offsets at which there is nothing (any more) are left out.
        """
        ...

    def log(self) -> QueueLog:
        """The same for programs without an event loop, and for other processes.

        It has connections of its own: the transport need not be connected.
        """
        ...


class QueueLog(Protocol):
    """Reads queues that are logs, from any process: it is pickled, with what it needs to connect.

    All methods block. Nothing is consumed. An object belongs to one thread; its ``repr`` has no
    secret.
    """

    @property
    def kind(self) -> str:
        """What it is, in a word: ``kafka``."""
        ...

    def partitions(self, queues: Sequence[str]) -> Sequence[LogPartition]:
        """All partitions of some queues. What is in an open transaction is behind their ends.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    def offsets_at(self, partitions: Sequence[LogPartition], moment: datetime) -> Sequence[int]:
        """Of each partition the offset of the first message stored at a time or later."""
        ...

    def read(self, ranges: Sequence[LogRange]) -> Iterator[tuple[LogRange, LogMessage]]:
        """The messages of ranges, each of another partition; in order within each of them.

        Offsets at which there is no message are left out. When it ends, all of the ranges were
        read.

        Raises:
            MessagesDeletedError: a range begins before what is there.
            TransportError: not all could be read, or not in time.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


@runtime_checkable
class Pipelining(Protocol):
    """For transports whose broker confirms one message after the other. No capability.

    Several small sends on their way at once are quicker there than one for all, whose callers
    would wait for the last of them. ``send`` must keep the order in which it is called.
    """

    @property
    def sends_at_once(self) -> int:
        """How many calls of ``send`` there may be at a time."""
        ...

    @property
    def send_size(self) -> int:
        """How many messages one of them has at most."""
        ...


@runtime_checkable
class Pausing(Protocol):
    """For subscriptions to brokers that push: they can be told to hold nothing. No capability.

    What a process holds is counted as delivered when it dies, whether it was returned or not.
    """

    async def pause(self) -> None:
        """Have nothing pushed until the next ``receive``.

        What was taken but not yet returned goes back to the queue, uncounted.
        """
        ...


@runtime_checkable
class Prefetching(Protocol):
    """For subscriptions to brokers that push: how much they push can be changed. No capability."""

    async def set_prefetch(self, prefetch: int) -> None:
        """Have at most ``prefetch`` unsettled deliveries pushed from now on.

        What was taken but not yet returned may go back to the queue, uncounted.
        """
        ...


@runtime_checkable
class ReadingAhead(Protocol):
    """For subscriptions that count deliveries at the cost of a round trip. No capability."""

    def read_ahead(self, messages: int) -> None:
        """Allow up to ``messages`` to be counted as delivered before ``receive`` asks for them.

        The runtime calls it only if handlers may run again after a crash. Then a crash may count
        for messages that were not handled yet, and the first delivery of a message may be counted
        a moment after ``receive`` returns it. ``messages`` is 0 unless messages are handled
        quickly. ``Pausing.pause`` sets it to 0.
        """
        ...


@runtime_checkable
class Examining(Protocol):
    """For transports whose broker has settings that can lose messages. Not a capability."""

    async def examine(self) -> Sequence[Finding]:
        """What ``matador doctor`` should say about the broker. Changes nothing.

        Raises:
            NotConnectedError: not connected.
        """
        ...


@runtime_checkable
class LocalStorage(Protocol):
    """For transports that store messages on this machine, where ``connect`` would make the place.

    Both work without a connection and make nothing. Not a capability.
    """

    @property
    def missing_storage(self) -> str | None:
        """What ``connect`` would make because it is not there yet; None: it is there."""
        ...

    def examine_storage(self) -> Sequence[Finding]:
        """What ``matador doctor`` should say about it before connecting. May block."""
        ...


@runtime_checkable
class Checking(Protocol):
    """For transports whose queues may be there in another shape than described. No capability."""

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """In what the queues that are there differ from the topology. Makes and changes nothing.

        Queues that are missing are not noted.

        Raises:
            NotConnectedError: not connected.
        """
        ...
