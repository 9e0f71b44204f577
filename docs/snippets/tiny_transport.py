"""A whole transport in one file: queues in memory, with delays, and nothing that is optional."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from matador.errors import (
    LeaseLostError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
)
from matador.model.capabilities import Capabilities
from matador.model.message import (
    REASON_HEADER,
    Complete,
    ConnectionState,
    ConnectionStatus,
    DeadLetter,
    Delivery,
    Headers,
    Message,
    Receipt,
    Release,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology, dead_letter_name
from matador.transports.base import TransportObserver, ignored_arguments


# --8<-- [start:entry]
@dataclass(eq=False)
class Entry:
    """A stored message, and how often it was handed out."""

    message: Message
    deliveries: int = 0


# --8<-- [end:entry]


# --8<-- [start:subscription]
class TinySubscription:
    """Hands over messages of one queue, at most as many as it is asked for."""

    def __init__(self, transport: TinyTransport, queue: str) -> None:
        self._transport = transport
        self.queue = queue
        self.active = True

    async def receive(self, limit: int) -> Sequence[Delivery]:
        await asyncio.sleep(0)  # others get a turn, even if messages are there
        while self.active:
            if deliveries := self._transport.take(self.queue, limit):
                return deliveries  # taken and returned in one go: a cancelled call loses nothing
            await self._transport.bell.wait()
        return ()

    async def close(self) -> None:
        self.active = False
        self._transport.ring()


# --8<-- [end:subscription]


class TinyTransport:
    """Implements ``matador.transports.base.Transport``. Belongs to one event loop."""

    # --8<-- [start:declare]
    name = "tiny"
    capabilities = Capabilities(
        delivery_modes=frozenset({"at-least-once", "at-most-once"}),
        delays=True,
        dead_letters="manual",
        attempt_tracking=True,
        concurrency="worker",
        ordering="queue",
        priorities=False,
        durable=False,
        in_process=True,
    )
    # --8<-- [end:declare]

    def __init__(self) -> None:
        self.bell = asyncio.Event()
        self._queues: dict[str, deque[Entry]] = {}
        self._held: dict[Entry, str] = {}
        self._subscriptions: list[TinySubscription] = []
        self._observers: list[TransportObserver] = []
        self._state = ConnectionState("disconnected")

    # --8<-- [start:connection]
    @property
    def state(self) -> ConnectionState:
        return self._state

    def observe(self, observer: TransportObserver) -> None:
        self._observers.append(observer)

    async def connect(self) -> None:
        self._change("connected")

    async def disconnect(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions.clear()
        for entry, queue in reversed(self._held.items()):  # nobody will settle these
            self._queues[queue].appendleft(entry)
        self._held.clear()
        self._change("disconnected")

    def _change(self, status: ConnectionStatus) -> None:
        if status != self._state.status:
            self._state = ConnectionState(status)
            for observer in self._observers:
                observer.connection_changed(self.name, self._state)

    def _check(self) -> None:
        if self._state.status != "connected":
            raise NotConnectedError(f"{self.name} is not connected")

    # --8<-- [end:connection]

    # --8<-- [start:topology]
    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        self._check()
        notes = ignored_arguments(topology)
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            self._queues.setdefault(name, deque())
            if queue.priorities:
                notes.append(TopologyNote(name, "priorities are ignored"))
            if queue.retention is not None:
                notes.append(TopologyNote(name, "finished messages are not kept"))
        for _, kind, name in topology.dead_letter_names():
            self._queues.setdefault(name, deque())
            limits = topology.dead_letters[kind]
            if limits.max_length is not None or limits.ttl is not None:
                notes.append(TopologyNote(name, "dead letters are kept without a limit"))
        return notes

    # --8<-- [end:topology]

    # --8<-- [start:send]
    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        self._check()
        return [self._store(message) for message in messages]

    def _store(self, message: Message) -> MatadorError | None:
        if message.queue not in self._queues:
            return QueueNotFoundError(f"there is no queue {message.queue!r}")
        if message.delay > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(message.delay, self._arrive, Entry(message))
        else:
            self._arrive(Entry(message))
        return None

    def _arrive(self, entry: Entry) -> None:
        self._queues[entry.message.queue].append(entry)
        self.ring()

    def ring(self) -> None:
        """Wake everybody who waits."""
        self.bell.set()
        self.bell = asyncio.Event()

    # --8<-- [end:send]

    # --8<-- [start:receive]
    async def subscribe(self, queue: str, *, prefetch: int) -> TinySubscription:
        self._check()
        if queue not in self._queues:
            raise QueueNotFoundError(f"there is no queue {queue!r}")
        subscription = TinySubscription(self, queue)
        self._subscriptions.append(subscription)
        return subscription

    def take(self, queue: str, limit: int) -> list[Delivery]:
        ready = self._queues[queue]
        deliveries: list[Delivery] = []
        while ready and len(deliveries) < limit:
            entry = ready.popleft()
            entry.deliveries += 1  # counted before it is handed over: a crash counts
            self._held[entry] = queue
            deliveries.append(self._delivery(queue, entry))
        return deliveries

    def _delivery(self, queue: str, entry: Entry) -> Delivery:
        message = entry.message
        receipt = Receipt(
            queue=queue,
            handle=entry,
            delivery_count=entry.deliveries,
            redelivered=entry.deliveries > 1,
            priority=message.priority,
            ordering_key=message.ordering_key,
        )
        return Delivery(message.body, message.headers, receipt)

    # --8<-- [end:receive]

    # --8<-- [start:settle]
    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        self._check()
        return [self._settle(settlement) for settlement in settlements]

    def _settle(self, settlement: Settlement) -> MatadorError | None:
        entry, queue = settlement.receipt.handle, settlement.receipt.queue
        if not isinstance(entry, Entry) or entry not in self._held:
            return LeaseLostError(f"a delivery of {queue!r} is not held any more")
        error: MatadorError | None = None
        match settlement:
            case Complete():
                pass
            case Release():
                entry.deliveries -= 1
                self._queues[queue].appendleft(entry)
                self.ring()
            case DeadLetter():
                error = self._store(dead_letter(settlement, entry.message))
            case _:
                error = self._store(settlement.message)
        if error is None:  # only now: the successor is stored
            del self._held[entry]
        return error


def dead_letter(settlement: DeadLetter, original: Message) -> Message:
    message = settlement.message or original  # None: keep the raw bytes
    headers: Headers = {} if settlement.bare else message.headers
    return Message(
        id=message.id,
        queue=dead_letter_name(settlement.receipt.queue, settlement.kind),
        body=message.body,
        headers={**headers, REASON_HEADER: settlement.reason},
    )


# --8<-- [end:settle]
