"""The transport protocol: what every broker adapter implements, and what it promises.

A transport is pure I/O. It stores messages, hands over raw deliveries and carries out settlements;
it never looks into a body, never decides about retries and knows nothing of events or subscribers.
Everything comes in batches: a single message is a batch of one. Optional abilities (browse, purge,
depth, pause, replay, once, leases) are protocols of their own, declared in ``capabilities``.

All methods are coroutines of one event loop. Unless said otherwise they may be called concurrently.
Errors of client libraries never escape: the transport raises a ``matador.errors`` error with the
original as its cause. ``matador.testing.TransportCompliance`` checks this contract.
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
    """Receives notifications from a transport. Its methods must return quickly."""

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        """The connection state of ``transport`` changed."""
        ...

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        """The transport ``failed`` could not store ``message``; ``next_`` is tried now."""
        ...

    def dropped(self, queue: str, number: int) -> None:
        """This process received ``number`` messages from a queue and dropped them unhandled."""
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

        An empty result means that the subscription was closed. ``limit`` is a credit: the transport
        must not fetch more than that from the broker for this receiver (a broker that pushes may
        send up to the ``prefetch`` of ``subscribe``). Canceling the call loses nothing: the next
        call returns messages that were fetched meanwhile, or they go back to the queue. Due
        messages are delivered by priority, then in the order of sending.

        Reading never raises because of what an entry contains: every entry becomes a delivery.
        Parts that cannot be read are left out, and ``Delivery.problem`` names them.

        Raises:
            TransportError: this call failed; the next may succeed. The caller backs off.
        """
        ...

    async def close(self) -> None:
        """Stop receiving. Idempotent; ends a waiting ``receive``.

        Messages that were fetched but not yet returned go back to the queue, and no delivery is
        counted. Deliveries already returned stay with the receiver and can still be settled.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """A connection to a broker, or an in-process replacement for one."""

    @property
    def name(self) -> str:
        """A short name for logs and metrics, unique in a ``MultiTransport``. Never a secret."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities; constant once connected."""
        ...

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        ...

    def observe(self, observer: TransportObserver) -> Callable[[], None]:
        """Tell ``observer`` about connection states and fall-backs from now on.

        Returns a function that removes the observer; calling it again does nothing. An observer
        that is added twice is notified once per event, until both registrations are removed.
        """
        ...

    async def connect(self) -> None:
        """Connect. Idempotent. Afterwards the transport restores a lost connection itself.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
        """
        ...

    async def disconnect(self) -> None:
        """Close all subscriptions, finish sends in flight, free all resources. Idempotent.

        A transport can be connected again afterwards.
        """
        ...

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Create missing queues, dead-letter queues and what retries need. Idempotent.

        Never deletes or changes a message. Returns a note for each part that it could not apply.
        Another system owns ``exact`` queues without ``create``: on brokers that manage queues, they
        are used but not created. A temporary queue that expired is created again, empty.
        """
        ...

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """Store messages. For each, in order: None once it is safely stored, or why it is not.

        Safe means that the message survives what ``capabilities.durable`` promises. Messages for
        one queue are stored in the order given. A failed message does not prevent others from being
        stored. The outcome of a failed message may be unknown (the connection was lost before the
        confirmation); it may be stored despite the error. Must not wait forever.

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
        the broker can. Otherwise the successor is confirmed first, so that at least one of them is
        always stored. A settlement whose delivery now belongs to another receiver is refused with
        ``LeaseLostError`` and changes nothing. A dead letter goes to ``{queue}.{kind}`` with its
        reason in the header ``x-matador-dead-letter-reason``. A successor for a queue that does not
        exist (or for a kind of dead letters that is turned off) is refused with
        ``QueueNotFoundError``, and the delivery remains unsettled. Works for deliveries of a closed
        subscription.

        A settlement that this broker can never carry out (a header that is too long, a text that
        cannot be encoded) is refused with ``UnstorableError``: the caller then asks for a simpler
        form. A dead letter without a message and with ``bare`` must always be storable. Every other
        error means that the same settlement may succeed later.

        Dead-letter queues of the applied topology that were deleted meanwhile are created again.

        Raises:
            NotConnectedError: not connected; nothing was settled.
        """
        ...


@runtime_checkable
class Choosing(Protocol):
    """A group of transports that chooses one of them for each message. Not a capability."""

    @property
    def transports(self) -> Sequence[Transport]:
        """The transports to choose from."""
        ...

    async def send_to(self, messages: Sequence[Message]) -> Sequence[str | MatadorError]:
        """Like ``send``. For each message: the name of its transport, or the error."""
        ...


def members_of(transport: Transport) -> Sequence[Transport]:
    """The transports of a group; otherwise the transport itself."""
    return transport.transports if isinstance(transport, Choosing) else (transport,)


@runtime_checkable
class Ending(Protocol):
    """For transports whose messages end with the process. Not a capability.

    A shutdown first handles the messages that are due, then logs how many are left.
    """

    def is_due(self, queue: str) -> bool:
        """Would a receiver of the queue get a message now?"""
        ...

    def left(self, queue: str) -> int:
        """How many messages, delayed ones included, are lost when the process ends."""
        ...


# -- optional abilities, declared in capabilities -------------------------------------------------


@runtime_checkable
class Leasing(Protocol):
    """``capabilities.lease``: deliveries belong to their receiver until the lease expires."""

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """Renew the leases of deliveries from now on. For each: False if its lease was already
        lost."""
        ...


class LeasingTransport(Transport, Leasing, Protocol):
    """A transport with leases."""


@runtime_checkable
class Twinning(Leasing, Protocol):
    """For leasing transports whose deliveries can be renewed over another connection. Not a
    capability.

    While the event loop is blocked, a worker renews leases from a thread, over such a connection.
    A transport without it loses its leases then. So does a ``MemoryTransport`` with leases: they
    expire on the blocked loop as soon as it continues.
    """

    def twin(self) -> LeasingTransport | None:
        """A new, unconnected transport with the same name, address and options.

        Its ``renew`` accepts receipts of this transport. It is created, connected and used in
        another thread, with an event loop of its own. None: there is no such transport.
        """
        ...


@runtime_checkable
class Browsing(Protocol):
    """``capabilities.browse``: messages can be read without being consumed, and taken singly."""

    def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """The messages of a queue in order of sending, in every state except ``done``.

        Starts behind the position ``after``. Messages sent or settled meanwhile may or may not be
        seen; none is seen twice.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """Receive exactly these messages, to settle them. For each, in order: its delivery, or
        None if another receiver holds it, or it is gone."""
        ...


@runtime_checkable
class BrowsingDeadLetters(Browsing, Protocol):
    """For transports that can browse only dead letters. Not a capability: ``browse`` is False, and
    ``browse`` of a work queue raises ``UnsupportedError``."""

    @property
    def browses_dead_letters(self) -> bool:
        """Whether it can. False for some groups only."""
        ...


@runtime_checkable
class BrowsingByTaking(Protocol):
    """For transports that show messages by taking them for a moment. Not a capability.

    Consumers cannot receive the messages meanwhile. A program that refreshes regularly, such as a
    dashboard, must therefore browse only when a user asks for it.
    """

    @property
    def browses_by_taking(self) -> bool:
        """Whether it does. False for some groups only."""
        ...


def browses_dead_letters(transport: Transport) -> TypeGuard[Browsing]:
    """Whether dead letters can be browsed and taken."""
    if isinstance(transport, BrowsingDeadLetters) and transport.browses_dead_letters:
        return True
    return transport.capabilities.browse and isinstance(transport, Browsing)


def browses_by_taking(transport: Transport) -> bool:
    """Whether browsing hides messages from consumers for a moment."""
    return isinstance(transport, BrowsingByTaking) and transport.browses_by_taking


@runtime_checkable
class Purging(Protocol):
    """``capabilities.purge``: a queue can be emptied."""

    async def purge(self, queue: str) -> int:
        """Delete all messages of a queue that are not in flight; return how many were deleted."""
        ...


@runtime_checkable
class Measuring(Protocol):
    """``capabilities.depth``: the number of waiting messages is known."""

    async def depth(self, queue: str) -> QueueDepth:
        """How many messages of a queue are ready, delayed and in flight."""
        ...


@runtime_checkable
class MeasuringMany(Measuring, Protocol):
    """For transports that measure many queues with one request. Not a capability."""

    async def depths(self, queues: Sequence[str]) -> Sequence[QueueDepth | None]:
        """The depth of each queue, in order; None: there is no such queue."""
        ...

    async def paused(self, queues: Sequence[str]) -> Sequence[bool | None]:
        """Whether each queue is paused, in order; None: there is no such queue."""
        ...


@runtime_checkable
class Aging(Measuring, Protocol):
    """For transports that know the age of the oldest due message although they cannot browse. Not a
    capability."""

    async def oldest_due(self, queue: str) -> datetime | None:
        """The time since which the oldest due message has been waiting; None: none is due.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...


@runtime_checkable
class QueuePausing(Protocol):
    """``capabilities.pause``: a queue can be paused for all consumers, in all processes.

    The pause belongs to the queue: it outlives every process, and ends with ``resume_queue`` or
    when the queue is deleted. A paused queue accepts messages, and can be browsed, purged and
    replayed. ``Browsing.take`` still works. Deliveries in flight can be settled; a message that is
    retried, released or whose lease expires waits like the others. A pending ``receive`` waits, and
    gets messages soon after the pause ends. For a queue of jobs this is its own pause: see
    ``JobStoring.pause_jobs``.

    Every method raises ``QueueNotFoundError`` for a queue that does not exist, and
    ``NotConnectedError`` without a connection.
    """

    async def pause_queue(self, queue: str) -> None:
        """Deliver no further message once this returns. Idempotent.

        Raises:
            ConfigurationError: it is a dead-letter queue.
        """
        ...

    async def resume_queue(self, queue: str) -> None:
        """End a pause and wake waiting consumers in all processes. Idempotent."""
        ...

    async def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused, by any process."""
        ...


@runtime_checkable
class Replaying(Protocol):
    """``capabilities.replay``: finished messages of a queue with a retention can be read again."""

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
    """``capabilities.once``: a sender that does not know whether a message was stored may send it
    again."""

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        """``send`` the messages whose ids are not yet stored under ``once``; the others count as
        stored.

        The message and its id become durable together. A failed message leaves no id. All messages
        of a sealed batch count as stored.
        """
        ...

    async def seal(self, once: Once) -> None:
        """Close this batch and all batches before it, so that their ids can be deleted.

        Idempotent. The seal itself is kept, so that a late sender cannot store anything.
        """
        ...


@runtime_checkable
class Routing(Protocol):
    """``capabilities.routing``: ``apply_topology`` also creates exchanges and bindings.

    The broker owns them: all processes share them, they outlive the process, and a binding applies
    to the next message that any process publishes. An existing exchange keeps its type.
    ``WorkQueue(expires=seconds)`` is deleted, with its bindings and messages, after that many
    seconds without a subscription and without being applied again. A subscription keeps it, even if
    its connection is lost and restored in time.
    """

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        """Store each message in every queue whose binding matches its ``routing_key``.

        Either all of these queues get it, or none. A queue with several matching bindings gets it
        once. ``Message.queue`` is ignored. For each, in order: the number of queues in which it is
        safely stored (1 if the broker does not report it), 0 if no binding matches, or the error:
        ``QueueNotFoundError`` if the exchange does not exist, ``DelaysNotSupportedError`` if the
        broker cannot delay published messages. A message without a routing key has an empty one.

        Raises:
            NotConnectedError: not connected; nothing was stored.
            UnsupportedError: this transport has no routing.
        """
        ...

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Remove one binding of a queue, by its full name. Idempotent.

        Messages that it routed before stay in the queue. A reconnect does not restore the binding.

        Raises:
            NotConnectedError: not connected.
            UnsupportedError: this transport has no routing.
        """
        ...

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue, by its full name, with its bindings and all of its messages. Idempotent.

        Its dead letters stay. Neither a reconnect nor a ``send`` restores it; only another
        ``apply_topology`` does. Settling its deliveries is refused or has no effect, and a
        subscription to it fails with ``QueueNotFoundError`` or receives nothing more: close it
        first.

        Raises:
            ConfigurationError: it is a queue of jobs.
            NotConnectedError: not connected.
            UnsupportedError: this transport has no routing.
        """
        ...


@runtime_checkable
class Replying(Protocol):
    """For transports that can create a private reply address. Not a capability.

    Messages are sent and replies received over the same connection (RabbitMQ's direct reply-to
    needs one channel for both). A reply is an ordinary ``send`` to the ``reply_to`` of the request:
    ``Message(id="", queue=reply_to, …)`` with the ``correlation_id`` and ``transient``. Replies to
    a process that has ended are dropped, and their ``send`` succeeds.

    Attributes:
        shared: objects that the users of this transport share, by type: one of them receives the
            replies for all.
    """

    shared: dict[type[Any], Any]

    async def reply_address(self) -> str:
        """The reply address of this process, for ``Properties.reply_to``. Created on first use.

        Raises:
            NotConnectedError: not connected.
            UnsupportedError: this transport does not carry ``reply_to``.
        """
        ...

    async def replies(self) -> Subscription:
        """The replies, for one receiver. They need not be settled.

        Replies that arrive without a subscription may be dropped, and so may the oldest if many
        thousands wait. The subscription survives a lost connection, but replies in flight are lost:
        callers must not wait forever.
        """
        ...


@runtime_checkable
class JobStoring(Protocol):
    """``capabilities.jobs``: jobs are stored with their state, and can be found by their id.

    A job is a message of its queue with the headers of ``matador.model.job``. After ``open_jobs``
    the transport stores what belongs to a job as it settles the message: ``Complete`` with its
    ``result`` completes the job, ``Retry`` makes it wait again under its id, and a ``DeadLetter``
    fails it. The headers ``job.keepCompleted`` and ``job.keepFailed`` say how long finished jobs
    are kept. Jobs added by other programs are handled in the same way.

    Every method raises ``NotConnectedError`` while there is no connection, and
    ``QueueNotFoundError`` unless ``open_jobs`` was called for the queue.
    """

    @property
    def job_capabilities(self) -> JobCapabilities:
        """The job features that the transport supports."""
        ...

    async def open_jobs(self, queue: str) -> str:
        """Create a job queue if it does not exist; return its full name, which the other methods
        take.

        Idempotent. Does not end a pause.

        Raises:
            ConfigurationError: the queue exists but is not a job queue, or its name is not allowed.
        """
        ...

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        """Like ``send``, but an id that the queue already has is refused with
        ``DuplicateJobError``.

        A job whose header ``job.unique`` is the key of another job is refused with a
        ``UniqueJobError`` that names that job. A job holds its key until it is finished or, with
        the header ``job.uniqueFor``, for that many milliseconds after it was added.
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
        """The number of jobs in each state."""
        ...

    async def retry_job(self, queue: str, job_id: str) -> None:
        """Make a failed job wait again, with no attempt counted.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it has not failed.
        """
        ...

    async def remove_job(self, queue: str, job_id: str) -> None:
        """Delete a job that is not active.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it is active.
        """
        ...

    async def cancel_job(self, queue: str, job_id: str, reason: str) -> bool:
        """Cancel an unfinished job: delete a waiting job, fail an active one.

        An active job fails at once with ``reason`` as its error. Its worker loses the lease, so
        that the outcome of the handler is ignored. False: it is already finished, and stays
        unchanged.

        Raises:
            JobNotFoundError: there is no such job.
        """
        ...

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        """Store the progress of an active job, as JSON.

        Raises:
            LeaseLostError: the job belongs to another worker now.
        """
        ...

    async def pause_jobs(self, queue: str) -> None:
        """Stop delivering jobs of a queue to any worker until ``resume_jobs``. Idempotent."""
        ...

    async def resume_jobs(self, queue: str) -> None:
        """End a pause. Idempotent."""
        ...

    async def delete_jobs(self, queue: str) -> None:
        """Delete all jobs of a queue, active ones included, with their records.

        Jobs can be added again afterwards. A worker that was running one gets ``LeaseLostError``.
        """
        ...


@runtime_checkable
class JobScheduling(Protocol):
    """``job_capabilities.schedules``: recurring jobs are stored, and each occurrence fires once."""

    @property
    def fires_schedules(self) -> bool:
        """Whether the provider adds the jobs itself. False: workers do, with ``fire_schedule``."""
        ...

    async def put_schedule(self, queue: str, schedule: JobSchedule) -> None:
        """Store a schedule. It replaces a schedule with the same key."""
        ...

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        """All schedules of a queue, ordered by when they are due next."""
        ...

    async def remove_schedule(self, queue: str, key: str) -> bool:
        """Delete a schedule; False if there is none with that key. Jobs that it added stay."""
        ...

    async def fire_schedule(
        self, queue: str, schedule: JobSchedule, next_at: float, jobs: Sequence[Message]
    ) -> bool:
        """Add jobs and set the schedule's ``next_at``, both or neither.

        Does nothing and returns False if the schedule was deleted or its ``next_at`` has changed,
        because another worker fired it. A job whose id is taken is left out.
        """
        ...


@runtime_checkable
class JobFlows(Protocol):
    """``job_capabilities.flows``: jobs that wait for other jobs."""

    async def add_flow(self, queue: str, jobs: Sequence[Message]) -> MatadorError | None:
        """Add jobs of which some wait for others. Adds all of them and returns None, or none.

        A job with the header ``job.children`` waits until that many jobs whose header
        ``job.parent`` is its id have completed. When one of these fails permanently, the waiting
        job fails, too, and so do the jobs that wait for it. A job of a flow can be retried: its
        parent waits for it again.
        """
        ...

    async def child_results(self, queue: str, job_id: str) -> Mapping[str, bytes | None]:
        """The results of the jobs that this job waited for, as JSON, by id."""
        ...


@runtime_checkable
class JobLimiting(Protocol):
    """``job_capabilities.rate_limit`` and ``concurrency_per_key``: for subscriptions to queues of
    jobs. They receive no more jobs than the limits allow, counted over all consumers of the queue.

    The jobs of a worker that died count until their leases expire.
    """

    def set_limits(self, limits: JobLimits) -> None:
        """Apply these limits from now on. A waiting ``receive`` checks the queue again."""
        ...

    @property
    def limited(self) -> bool:
        """Whether the last poll returned no job, possibly because of a limit."""
        ...


@runtime_checkable
class JobNaming(Protocol):
    """For transports whose job queues other programs address by name. Not a capability."""

    def job_topology(self, queue: str) -> Topology:
        """The topology of a job queue, under the name that other programs use."""
        ...


@runtime_checkable
class Splitting(Protocol):
    """For transports that can browse or replay: a queue can be read in parts, in parallel.

    Without it a queue is read in one piece. Positions are whole numbers here.
    """

    async def split(
        self, queue: str, parts: int, *, after: str | None = None, until: str | None = None
    ) -> Sequence[str]:
        """Divide a queue into at most ``parts`` parts of similar size; return the last position of
        each.

        The range begins behind the position ``after`` and ends with the position ``until``. Empty
        if the range has no messages.
        """
        ...


@runtime_checkable
class Partitioned(Protocol):
    """For transports whose queues are logs in partitions: read by offset, independently of
    consumers.

    Finished messages stay readable until the broker deletes them. Nothing is consumed.
    """

    async def offsets(self, queue: str) -> Mapping[int, tuple[int, int]]:
        """For each partition: the first offset that is stored, and the offset after the last one.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    def read_offsets(
        self, queue: str, partition: int, start: int, end: int
    ) -> AsyncIterator[StoredMessage]:
        """The messages of a partition from ``start`` up to but not including ``end``, in order.

        Offsets without a message are left out.
        """
        ...

    def log(self) -> QueueLog:
        """A blocking reader of the same queues, for programs without an event loop and for other
        processes.

        The reader has its own connections: the transport need not be connected.
        """
        ...


class QueueLog(Protocol):
    """Reads queues that are logs, from any process: it can be pickled, with its connection options.

    All methods block. Nothing is consumed. An instance belongs to one thread; its ``repr`` contains
    no secrets.
    """

    @property
    def kind(self) -> str:
        """The kind of log in one word: ``kafka``."""
        ...

    def partitions(self, queues: Sequence[str]) -> Sequence[LogPartition]:
        """All partitions of some queues. Messages of open transactions are beyond their ends.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        ...

    def offsets_at(self, partitions: Sequence[LogPartition], moment: datetime) -> Sequence[int]:
        """For each partition, the offset of the first message stored at ``moment`` or later."""
        ...

    def read(self, ranges: Sequence[LogRange]) -> Iterator[tuple[LogRange, LogMessage]]:
        """The messages of ranges of different partitions, in order within each range.

        Offsets at which there is no message are left out. When the iterator ends, all ranges have
        been read completely.

        Raises:
            MessagesDeletedError: a range begins before the first stored offset.
            TransportError: a range could not be read completely, or not in time.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


@runtime_checkable
class Pipelining(Protocol):
    """For transports whose broker confirms each message separately. Not a capability.

    Several small sends in flight are faster there than one large send, whose callers would all wait
    for the last confirmation. ``send`` must keep the order in which it is called.
    """

    @property
    def sends_at_once(self) -> int:
        """The maximum number of concurrent calls of ``send``."""
        ...

    @property
    def send_size(self) -> int:
        """The maximum number of messages of one call."""
        ...


@runtime_checkable
class Pausing(Protocol):
    """For subscriptions to brokers that push: the broker can be told to stop pushing. Not a
    capability.

    When a process dies, its pushed messages count as delivered, whether ``receive`` returned them
    or not.
    """

    async def pause(self) -> None:
        """Stop the broker from pushing until the next ``receive``.

        Messages that were fetched but not yet returned go back to the queue, and no delivery is
        counted.
        """
        ...


@runtime_checkable
class Prefetching(Protocol):
    """For subscriptions to brokers that push: the prefetch can be changed. Not a capability."""

    async def set_prefetch(self, prefetch: int) -> None:
        """Limit the pushed, unsettled deliveries to ``prefetch`` from now on.

        Messages that were fetched but not yet returned may go back to the queue, and no delivery is
        counted.
        """
        ...


@runtime_checkable
class ReadingAhead(Protocol):
    """For subscriptions that count deliveries at the cost of a round trip. Not a capability."""

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
        """The findings of ``matador doctor`` about the broker. Changes nothing.

        Raises:
            NotConnectedError: not connected.
        """
        ...


@runtime_checkable
class LocalStorage(Protocol):
    """For transports that store messages on this machine, where ``connect`` creates the storage.

    Both methods work without a connection and create nothing. Not a capability.
    """

    @property
    def missing_storage(self) -> str | None:
        """The storage that ``connect`` would create; None if it exists."""
        ...

    def examine_storage(self) -> Sequence[Finding]:
        """The findings of ``matador doctor`` about the storage, before connecting. May block."""
        ...


@runtime_checkable
class Checking(Protocol):
    """For transports whose queues may exist with other settings than the topology's. Not a
    capability."""

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """How the existing queues differ from the topology. Creates and changes nothing.

        Missing queues are not reported.

        Raises:
            NotConnectedError: not connected.
        """
        ...
