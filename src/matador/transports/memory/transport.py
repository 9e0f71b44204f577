"""The in-process transport: the whole protocol, in the memory of one process.

Messages live in the transport object: they stay when it is disconnected and are gone with the
process. How a queue decides who is next is left to ``queue.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Literal, TypeAlias, get_args

from matador.errors import (
    ConfigurationError,
    DelaysNotSupportedError,
    LeaseLostError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.model.capabilities import Capabilities, DeliveryMode
from matador.model.message import (
    REASON_HEADER,
    Complete,
    ConnectionState,
    DeadLetter,
    Delivery,
    Message,
    QueueDepth,
    Receipt,
    Release,
    Retry,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.options import Seconds, optional_seconds, suggestion
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind, Topology, dead_letter_name
from matador.transports.base import Subscription, TransportObserver
from matador.transports.clock import Alarm, Alarms, Clock, SystemClock
from matador.transports.memory.entry import Entry, Hold
from matador.transports.memory.queue import MemoryQueue
from matador.transports.memory.subscription import MemorySubscription, delivery_of

Ability: TypeAlias = Literal[
    "delays", "priorities", "ordering", "browse", "purge", "depth", "replay", "at-most-once"
]
"""What ``MemoryTransport(without=...)`` can do without."""

_PAGE = 500


class MemoryTransport:
    """A broker inside this process, for tests, single processes and as a fall-back.

    Args:
        name: the name in logs and metrics.
        clock: where time comes from; one that implements ``Alarms`` also decides when delays end.
        lease: seconds for which a delivery belongs to its receiver; None: until ``disconnect``.
        without: abilities taken away, to see how an application does on a lesser broker.

    Example:
        >>> transport = MemoryTransport()
        >>> app = Matador(schema, topology, transport)
        >>> transport.messages("shop.events")
        []
    """

    def __init__(
        self,
        *,
        name: str = "memory",
        clock: Clock | None = None,
        lease: Seconds | None = None,
        without: Collection[Ability] = (),
    ) -> None:
        for ability in without:
            if ability not in get_args(Ability):
                raise ConfigurationError(
                    f"MemoryTransport: without={ability!r} is not an ability"
                    f"{suggestion(ability, get_args(Ability))}"
                )
        self._name = name
        self._clock: Clock = clock or SystemClock()
        self._alarms: Alarms = self._clock if isinstance(self._clock, Alarms) else SystemClock()
        self._lease = optional_seconds(lease, "MemoryTransport: lease")
        self._capabilities = _capabilities(self._lease, without)
        self._state = ConnectionState("disconnected")
        self._observers: list[TransportObserver] = []
        self._queues: dict[str, MemoryQueue] = {}
        self._not_kept: set[str] = set()  # names of dead letters that the topology turned off
        self._subscriptions: set[MemorySubscription] = set()
        self._alarm: Alarm | None = None
        self._alarm_at = inf

    # -- connection -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See ``Transport``."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
        return self._capabilities

    @property
    def state(self) -> ConnectionState:
        """See ``Transport``."""
        return self._state

    def observe(self, observer: TransportObserver) -> None:
        """See ``Transport``."""
        self._observers.append(observer)

    async def connect(self) -> None:
        """See ``Transport``. Never fails."""
        if self._state.status != "connected":
            self._change_state(ConnectionState("connected"))
            self._pass_time()

    async def disconnect(self) -> None:
        """Close all subscriptions; what was delivered and not settled goes back, counted.

        Messages stay; delays that end meanwhile are delivered after the next ``connect``.
        """
        if self._state.status == "disconnected":
            return
        for subscription in list(self._subscriptions):
            await subscription.close()
        now = self._clock.monotonic()
        for queue in self._queues.values():
            queue.give_back_all(now)
        self._cancel_alarm()
        self._change_state(ConnectionState("disconnected"))

    def _change_state(self, state: ConnectionState) -> None:
        self._state = state
        for observer in self._observers:
            observer.connection_changed(self._name, state)

    def _check_connected(self) -> None:
        if self._state.status != "connected":
            raise NotConnectedError(f"the transport {self._name!r} is not connected")

    def _check_ability(self, ability: Ability, able: bool) -> None:
        if not able:
            raise UnsupportedError(f"the transport {self._name!r} was made without {ability!r}")

    def _queue(self, name: str) -> MemoryQueue:
        self._check_connected()
        queue = self._queues.get(name)
        if queue is None:
            raise self._no_queue(name)
        return queue

    def _no_queue(self, name: str) -> QueueNotFoundError:
        return QueueNotFoundError(
            f"the transport {self._name!r} has no queue {name!r}{suggestion(name, self._queues)}"
        )

    # -- topology ---------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Nobody else makes queues in here, so ``exact`` ones are made too."""
        self._check_connected()
        can = self._capabilities
        notes: list[TopologyNote] = []
        for declared in topology.queues:
            full = topology.full_name(declared.name)
            queue = self._made(full)
            queue.priorities = declared.priorities and can.priorities
            queue.retention = declared.retention if can.replay else None
            if declared.priorities and not can.priorities:
                notes.append(TopologyNote(full, "priorities are ignored"))
            if declared.retention is not None and not can.replay:
                notes.append(TopologyNote(full, "finished messages are not retained"))
            for kind in DEAD_LETTER_KINDS:
                name = dead_letter_name(full, kind)
                if topology.dead_letters[kind].enabled:
                    self._not_kept.discard(name)
                    letters = self._made(name)
                    letters.max_length = topology.dead_letters[kind].max_length
                    letters.ttl = topology.dead_letters[kind].ttl
                else:
                    self._not_kept.add(name)
        return notes

    def _made(self, name: str) -> MemoryQueue:
        queue = self._queues.get(name)
        if queue is None:
            ordered = self._capabilities.ordering == "partition"
            queue = self._queues[name] = MemoryQueue(name, ordered=ordered)
        return queue

    # -- sending and receiving --------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``. All are stored before anybody else runs."""
        self._check_connected()
        now = self._clock.monotonic()
        touched: set[MemoryQueue] = set()
        outcomes: list[MatadorError | None] = []
        for message in messages:
            error = self._refusal(message)
            if error is None:
                queue = self._queues[message.queue]
                queue.put(message, now)
                touched.add(queue)
            outcomes.append(error)
        self._tend(touched)
        return outcomes

    def _refusal(self, message: Message) -> MatadorError | None:
        if message.queue not in self._queues:
            return self._no_queue(message.queue)
        if message.delay > 0 and not self._capabilities.delays:
            return DelaysNotSupportedError(
                f"the transport {self._name!r} was made without 'delays'"
            )
        return None

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        """See ``Transport``. ``prefetch`` is not needed: nothing is taken unasked."""
        subscription = MemorySubscription(self._queue(queue), self._take_next, self._forget)
        self._subscriptions.add(subscription)
        return subscription

    def _take_next(self, queue: MemoryQueue, limit: int) -> list[Hold]:
        now = self._clock.monotonic()
        queue.pass_time(now)
        holds = queue.take_next(limit, self._lease_until(now))
        if self._lease is not None:
            self._set_alarm(queue.next_time())
        return holds

    def _lease_until(self, now: float) -> float:
        return inf if self._lease is None else now + self._lease

    def _forget(self, subscription: MemorySubscription) -> None:
        self._subscriptions.discard(subscription)

    # -- settling ---------------------------------------------------------------------------------

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each settlement is atomic."""
        self._check_connected()
        now = self._clock.monotonic()
        touched: set[MemoryQueue] = set()
        outcomes: list[MatadorError | None] = []
        for settlement in settlements:
            receipt = settlement.receipt
            queue = self._queues.get(receipt.queue)
            hold = receipt.handle
            if queue is None or not isinstance(hold, Hold) or not hold.valid:
                outcomes.append(_lost(receipt))
                continue
            touched.add(queue)
            if type(settlement) is Complete:
                queue.complete(hold.entry, now)
                outcomes.append(None)
            else:
                outcomes.append(self._settle(settlement, queue, hold.entry, now, touched))
        self._tend(touched)
        return outcomes

    def _settle(
        self,
        settlement: Settlement,
        queue: MemoryQueue,
        entry: Entry,
        now: float,
        touched: set[MemoryQueue],
    ) -> MatadorError | None:
        match settlement:
            case Complete():
                queue.complete(entry, now)
            case Release():
                queue.give_back(entry, now, counted=False)
            case Retry(message=message):
                error = self._refusal(message)
                if error is not None:
                    return error
                if message.queue == queue.name and queue.put_again(entry, message, now):
                    return None
                self._move(queue, entry, message, now, touched)
            case DeadLetter(kind=kind, reason=reason):
                target = dead_letter_name(queue.name, kind)
                if target in self._not_kept:
                    queue.remove(entry)
                elif target in self._queues:
                    letter = _dead_letter(settlement.message or entry.message, target, reason)
                    self._move(queue, entry, letter, now, touched)
                else:
                    return self._no_queue(target)
        return None

    def _move(
        self,
        queue: MemoryQueue,
        entry: Entry,
        message: Message,
        now: float,
        touched: set[MemoryQueue],
    ) -> None:
        target = self._queues[message.queue]
        target.put(message, now)
        queue.remove(entry)
        touched.add(target)

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``.

        Raises:
            UnsupportedError: there is no lease; a delivery is held until ``disconnect``.
        """
        self._check_connected()
        if self._lease is None:
            raise UnsupportedError(f"the transport {self._name!r} was made without a lease")
        self._pass_time()
        until = self._clock.monotonic() + self._lease
        renewed: list[bool] = []
        for receipt in receipts:
            hold = receipt.handle
            if isinstance(hold, Hold) and hold.valid:
                self._queues[receipt.queue].renew(hold.entry, until)
                renewed.append(True)
            else:
                renewed.append(False)
        return renewed

    # -- time -------------------------------------------------------------------------------------

    def _tend(self, queues: Collection[MemoryQueue]) -> None:
        for queue in queues:
            queue.wake()
            self._set_alarm(queue.next_time())

    def _pass_time(self) -> None:
        self._cancel_alarm()
        now = self._clock.monotonic()
        for queue in self._queues.values():
            queue.pass_time(now)
        self._tend(self._queues.values())

    def _set_alarm(self, when: float) -> None:
        if when < self._alarm_at:
            self._cancel_alarm()
            self._alarm_at = when
            delay = max(0.0, when - self._clock.monotonic())
            self._alarm = self._alarms.call_later(delay, self._pass_time)

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, inf

    # -- optional abilities -----------------------------------------------------------------------

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``."""
        self._check_ability("browse", self._capabilities.browse)
        place, left = _place(after), inf if limit is None else limit
        while left > 0:
            page = self._page(queue, place, int(min(left, _PAGE)), finished=False)
            if not page:
                return
            for entry in page:
                yield self._stored(queue, entry)
            place, left = page[-1].seq, left - len(page)

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery]:
        """See ``Browsing``. Takes delayed messages, and those behind others of their key, too."""
        self._check_ability("browse", self._capabilities.browse)
        found = self._queue(queue)
        now = self._clock.monotonic()
        found.pass_time(now)
        entries = [found.entries.get(_place(position)) for position in positions]
        holds = [found.take(entry, self._lease_until(now)) for entry in entries if entry]
        self._set_alarm(found.next_time())
        return [delivery_of(queue, hold) for hold in holds if hold is not None]

    async def purge(self, queue: str) -> int:
        """See ``Purging``."""
        self._check_ability("purge", self._capabilities.purge)
        return self._queue(queue).purge()

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``."""
        self._check_ability("depth", self._capabilities.depth)
        found = self._queue(queue)
        found.pass_time(self._clock.monotonic())
        return found.depth

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        """See ``Replaying``."""
        self._check_ability("replay", self._capabilities.replay)
        page = self._page(queue, _place(after), limit, finished=True)
        return [self._stored(queue, entry) for entry in page]

    def _page(self, name: str, after: int, limit: int, *, finished: bool) -> list[Entry]:
        queue = self._queue(name)
        queue.pass_time(self._clock.monotonic())
        return queue.page(after, limit, finished=finished)

    def _stored(self, queue: str, entry: Entry) -> StoredMessage:
        return _stored(queue, entry, self._clock.time() - self._clock.monotonic())

    # -- for tests --------------------------------------------------------------------------------

    def messages(self, queue: str) -> list[StoredMessage]:
        """What is in a queue and not finished, in order of sending; connected or not.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        found = self._queues.get(queue)
        if found is None:
            raise self._no_queue(queue)
        found.pass_time(self._clock.monotonic())
        entries = found.page(0, len(found.entries), finished=False)
        return [self._stored(queue, entry) for entry in entries]

    def dead_letters(
        self, queue: str, kind: DeadLetterKind = "undeliverable"
    ) -> list[StoredMessage]:
        """The dead letters of a queue, oldest first."""
        return self.messages(dead_letter_name(queue, kind))

    def completed(self, queue: str) -> int:
        """How many messages of a queue were completed since it was made, or cleared."""
        found = self._queues.get(queue)
        if found is None:
            raise self._no_queue(queue)
        return found.completed

    def clear(self) -> None:
        """Forget all messages; queues and subscriptions stay. What was delivered is lost too."""
        for queue in self._queues.values():
            queue.clear()
        self._cancel_alarm()


def _capabilities(lease: float | None, without: Collection[Ability]) -> Capabilities:
    modes: set[DeliveryMode] = {"at-least-once"}
    if "at-most-once" not in without:
        modes.add("at-most-once")
    return Capabilities(
        delivery_modes=frozenset(modes),
        delays="delays" not in without,
        dead_letters="native",
        attempt_tracking=True,
        concurrency="prefetch",
        ordering="none" if "ordering" in without else "partition",
        priorities="priorities" not in without,
        browse="browse" not in without,
        purge="purge" not in without,
        depth="depth" not in without,
        replay="replay" not in without,
        durable=False,
        in_process=True,
        lease=lease,
    )


def _place(position: str | None) -> int:
    if position is None:
        return 0
    if not position.isdecimal():
        raise ConfigurationError(f"{position!r} is not a position of a message in memory")
    return int(position)


def _lost(receipt: Receipt) -> LeaseLostError:
    return LeaseLostError(
        f"a delivery from {receipt.queue!r} was settled already, or was taken back"
    )


def _dead_letter(message: Message, queue: str, reason: str) -> Message:
    return Message(
        id=message.id,
        queue=queue,
        body=message.body,
        headers={**message.headers, REASON_HEADER: reason},
        priority=message.priority,
        ordering_key=message.ordering_key,
    )


def _stored(queue: str, entry: Entry, epoch: float) -> StoredMessage:
    """``epoch``: what to add to a time of the monotonic clock to have seconds since 1970."""
    message = entry.message
    state = entry.state
    return StoredMessage(
        # Padded, so that positions sort as text too.
        position=f"{entry.seq:016d}",
        id=message.id,
        queue=queue,
        body=message.body,
        headers=message.headers,
        state=(
            "in-flight" if state == "held" else state if state in ("delayed", "done") else "ready"
        ),
        stored_at=datetime.fromtimestamp(entry.stored + epoch, UTC),
        due_at=datetime.fromtimestamp(entry.due + epoch, UTC) if entry.due else None,
        delivery_count=entry.deliveries,
        priority=message.priority,
        ordering_key=message.ordering_key,
    )
