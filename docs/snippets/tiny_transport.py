"""A complete transport in one file: queues in memory, with delays and no optional capabilities."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from matador.errors import MatadorError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Complete,
    ConnectionState,
    DeadLetter,
    Delivery,
    Message,
    Receipt,
    Release,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.errors import lease_lost, queue_not_found
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.transport import BaseSubscription, BaseTransport
from matador.transports.kit.wakeup import Wakeup


@dataclass(eq=False)
class Entry:
    """A stored message, and how often it was delivered."""

    message: Message
    deliveries: int = 0


# --8<-- [start:subscription]
class TinySubscription(BaseSubscription):
    """Delivers the messages of one queue, never more than it is asked for."""

    def __init__(self, transport: TinyTransport, queue: str) -> None:
        super().__init__(queue)
        self._transport = transport
        self.wakeup = Wakeup()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        await asyncio.sleep(0)  # let other tasks run, even if there are messages
        while self._active:
            if deliveries := self._transport.take(self.queue, limit):
                return deliveries  # no await after taking: a cancelled call loses nothing
            await self.wakeup.wait()
        return ()

    async def close(self) -> None:
        self._active = False
        self.wakeup.wake()


# --8<-- [end:subscription]


class TinyTransport(BaseTransport):
    """Implements ``matador.transports.base.Transport``. Belongs to one event loop."""

    # --8<-- [start:declare]
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
        properties=ALL_PROPERTIES,
    )
    # --8<-- [end:declare]

    # --8<-- [start:connection]
    def __init__(self) -> None:
        super().__init__("tiny")
        self._queues: dict[str, deque[Entry]] = {}
        self._held: dict[Entry, str] = {}
        self._subscriptions: list[TinySubscription] = []

    async def _open(self) -> None:
        self._change_state(ConnectionState("connected"))

    async def _close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions.clear()
        for entry, queue in reversed(self._held.items()):  # nobody will settle these
            self._queues[queue].appendleft(entry)
        self._held.clear()
        self._change_state(ConnectionState("disconnected", closed=True))

    # --8<-- [end:connection]

    # --8<-- [start:topology]
    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        self._require_connected()
        notes = [*ignored_arguments(topology), *ignored_exchanges(topology)]
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            self._queues.setdefault(name, deque())
            if queue.priorities:
                notes.append(TopologyNote(name, "priorities are ignored"))
            if queue.retention is not None:
                notes.append(TopologyNote(name, "completed messages are not kept"))
        for _, kind, name in topology.dead_letter_names():
            self._queues.setdefault(name, deque())
            limits = topology.dead_letters[kind]
            if limits.max_length is not None or limits.ttl is not None:
                notes.append(TopologyNote(name, "dead letters are kept without a limit"))
        return notes

    # --8<-- [end:topology]

    # --8<-- [start:send]
    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        self._require_connected()
        return [self._store(message) for message in messages]

    def _store(self, message: Message) -> MatadorError | None:
        if message.queue not in self._queues:
            return queue_not_found(message.queue, self.name, self._queues)
        if message.delay > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(message.delay, self._add, Entry(message))
        else:
            self._add(Entry(message))
        return None

    def _add(self, entry: Entry) -> None:
        self._queues[entry.message.queue].append(entry)
        self._wake(entry.message.queue)

    def _wake(self, queue: str) -> None:
        for subscription in self._subscriptions:
            if subscription.queue == queue:
                subscription.wakeup.wake()

    # --8<-- [end:send]

    # --8<-- [start:receive]
    async def subscribe(self, queue: str, *, prefetch: int) -> TinySubscription:
        self._require_connected()
        if queue not in self._queues:
            raise queue_not_found(queue, self.name, self._queues)
        subscription = TinySubscription(self, queue)
        self._subscriptions.append(subscription)
        return subscription

    def take(self, queue: str, limit: int) -> list[Delivery]:
        ready = self._queues[queue]
        deliveries: list[Delivery] = []
        while ready and len(deliveries) < limit:
            entry = ready.popleft()
            entry.deliveries += 1  # counted before it is delivered: a crash counts
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
        return Delivery(
            message.body, message.headers, receipt, properties=message.properties, id=message.id
        )

    # --8<-- [end:receive]

    # --8<-- [start:settle]
    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        self._require_connected()
        return [self._settle(settlement) for settlement in settlements]

    def _settle(self, settlement: Settlement) -> MatadorError | None:
        entry, queue = settlement.receipt.handle, settlement.receipt.queue
        if not isinstance(entry, Entry) or entry not in self._held:
            return lease_lost(queue)
        error: MatadorError | None = None
        match settlement:
            case Complete():
                pass
            case Release():
                entry.deliveries -= 1
                self._queues[queue].appendleft(entry)
                self._wake(queue)
            case DeadLetter():
                error = self._store(dead_letter_of(settlement, entry.message))
            case _:
                error = self._store(settlement.message)
        if error is None:  # the new message is stored, so the original can go
            del self._held[entry]
        return error

    # --8<-- [end:settle]
