"""A connected transport with a topology, for compliance tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

from matador.model.capabilities import Capabilities
from matador.model.message import (
    Complete,
    Delivery,
    Headers,
    Message,
    Properties,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.topology import DeadLetterKind, Topology
from matador.transports.base import Browsing, Measuring, Subscription, Transport


class Bench:
    """Sends, receives and settles, and fails with a clear message on any error.

    Queues are called by their short names; None is the first one. Bodies are text.
    """

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        notes: Sequence[TopologyNote],
        *,
        patience: float,
        quiet: float,
    ) -> None:
        self.transport = transport
        self.topology = topology
        self.notes = notes
        self.patience = patience
        self.quiet = quiet

    @property
    def can(self) -> Capabilities:
        """The capabilities of the transport."""
        return self.transport.capabilities

    def name(self, queue: str | None = None) -> str:
        """The full name of a queue."""
        return self.topology.full_name(queue or self.topology.default_queue.name)

    def dead_letters(self, kind: DeadLetterKind = "undeliverable", queue: str | None = None) -> str:
        """The full name of the dead letters of a queue."""
        return f"{self.name(queue)}.{kind}"

    def noted(self, full_name: str) -> bool:
        """Whether the transport returned a note about this queue."""
        return any(note.queue == full_name for note in self.notes)

    def message(
        self,
        body: str | bytes,
        *,
        queue: str | None = None,
        id: str | None = None,
        headers: Headers | None = None,
        delay: float = 0.0,
        priority: int | None = None,
        key: str | None = None,
        properties: Properties | None = None,
    ) -> Message:
        """A message for one of the queues."""
        return Message(
            id=id or str(uuid4()),
            queue=self.name(queue),
            body=body.encode() if isinstance(body, str) else body,
            headers=headers or {},
            delay=delay,
            priority=priority,
            ordering_key=key,
            properties=properties,
        )

    async def send(self, *messages: Message | str) -> None:
        """Send, and check that all messages are stored."""
        made = [self.message(item) if isinstance(item, str) else item for item in messages]
        outcomes = await self.transport.send(made)
        assert list(outcomes) == [None] * len(made), "every message must be stored"

    async def subscribe(self, queue: str | None = None, *, prefetch: int = 64) -> Subscription:
        """A subscription to a queue by its short name."""
        return await self.transport.subscribe(self.name(queue), prefetch=prefetch)

    async def receive(self, subscription: Subscription, count: int) -> list[Delivery]:
        """Exactly ``count`` deliveries, in as many calls as it takes."""
        deliveries: list[Delivery] = []
        try:
            async with asyncio.timeout(self.patience):
                while len(deliveries) < count:
                    wanted = count - len(deliveries)
                    got = await subscription.receive(wanted)
                    assert got, "an empty result means closed, and this subscription was not"
                    assert len(got) <= wanted, "receive() must respect its limit"
                    deliveries.extend(got)
        except TimeoutError:
            found = f"{len(deliveries)} of {count}: {bodies(deliveries)}"
            message = f"{subscription.queue}: waited {self.patience:g} s, received {found}"
            raise AssertionError(message) from None
        return deliveries

    async def receive_one(self, subscription: Subscription) -> Delivery:
        """The next delivery."""
        return (await self.receive(subscription, 1))[0]

    async def settle(self, *settlements: Settlement) -> None:
        """Settle, and check that all settlements succeed."""
        outcomes = await self.transport.settle(settlements)
        assert list(outcomes) == [None] * len(settlements), "every settlement must be done"

    async def complete(self, deliveries: Sequence[Delivery]) -> None:
        """Complete deliveries."""
        await self.settle(*[Complete(delivery.receipt) for delivery in deliveries])

    async def drain(self, queue: str, count: int) -> list[Delivery]:
        """Receive and complete ``count`` messages of a queue by its full name; no more come."""
        subscription = await self.transport.subscribe(queue, prefetch=max(count, 1))
        deliveries = await self.receive(subscription, count)
        await self.complete(deliveries)
        await self.nothing_comes(subscription)
        await subscription.close()
        return deliveries

    async def nothing_comes(self, subscription: Subscription) -> None:
        """Check that nothing is delivered for a short time."""
        try:
            async with asyncio.timeout(self.quiet):
                got = await subscription.receive(1)
        except TimeoutError:
            return
        raise AssertionError(f"{subscription.queue}: unexpected delivery {bodies(got)}")

    async def count(self, queue: str) -> int | None:
        """How many unfinished messages a queue has; None if the transport cannot say."""
        if self.can.depth and isinstance(self.transport, Measuring):
            return (await self.transport.depth(queue)).total
        if self.can.browse and isinstance(self.transport, Browsing):
            return len(await collect(self.transport.browse(queue)))
        return None


def bodies(deliveries: Sequence[Delivery | StoredMessage]) -> list[str]:
    """The bodies as text."""
    return [delivery.body.decode() for delivery in deliveries]


async def collect(stored: AsyncIterator[StoredMessage]) -> list[StoredMessage]:
    """All messages of a browse."""
    return [message async for message in stored]
