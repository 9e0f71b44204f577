"""The application that benchmarks send to and consume with: one event, one counting subscriber."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from matador import Envelope, Hooks, Matador, Schema, Topology, WorkQueue, event, subscriber
from matador.model.subscriber import Subscriber
from matador.transports import Transport

CONCURRENCY = 64


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    """A payload of about 200 bytes of JSON."""

    order_id: str
    amount: int
    customer: str
    note: str


class Counter:
    """Counts messages, and says when there were enough."""

    def __init__(self) -> None:
        self.count = 0
        self._enough = 0
        self._done = asyncio.Event()

    def expect(self, count: int) -> None:
        """Forget what was counted; ``wait`` for ``count`` from now on."""
        self.count = 0
        self._enough = count
        self._done = asyncio.Event()

    def add(self) -> None:
        """One more."""
        self.count += 1
        if self.count == self._enough:
            self._done.set()

    async def wait(self) -> None:
        """Wait until there were enough."""
        await self._done.wait()


counter = Counter()


@subscriber(description="Counts.", idempotent="yes")
async def count(envelope: Envelope[OrderPlaced]) -> None:
    """The cheapest handler there can be."""
    counter.add()


def working(computing: float, waiting: float) -> Subscriber[Any]:
    """A subscriber that computes and waits for so many seconds, and then counts."""

    @subscriber(name="count", description="Works, and counts.", idempotent="yes")
    async def work(envelope: Envelope[OrderPlaced]) -> None:
        end = time.thread_time() + computing
        while time.thread_time() < end:
            pass
        if waiting:
            await asyncio.sleep(waiting)
        counter.add()

    return work


def payloads(number: int) -> list[OrderPlaced]:
    """Different payloads of the same size."""
    return [
        OrderPlaced(f"order-{n:08d}", n, f"customer-{n % 1000:04d}@example.com", "x" * 90)
        for n in range(number)
    ]


def make_app(
    transport: str | Transport,
    *,
    consume: bool,
    hooks: list[Hooks] | None = None,
    namespace: str = "bench",
    handler: Subscriber[Any] = count,
) -> Matador:
    """An application with the counting subscriber, or another one."""
    return Matador(
        transport,
        schema=Schema({OrderPlaced: [handler]}),
        topology=Topology(namespace, queues=[WorkQueue("events", concurrency=CONCURRENCY)]),
        consume_from=["events"] if consume else [],
        hooks=hooks,
    )


async def send_concurrently(app: Matador, number: int, callers: int) -> float:
    """Send by many callers at once, each awaiting its own confirmation; sends per second."""
    each = [payloads(number // callers) for _ in range(callers)]

    async def caller(own: list[OrderPlaced]) -> None:
        for payload in own:
            await app.send(payload)

    start = time.perf_counter()
    await asyncio.gather(*(caller(own) for own in each))
    return (number // callers) * callers / (time.perf_counter() - start)


async def fill(transport: str, number: int) -> None:
    """Put messages on the queue."""
    async with make_app(transport, consume=False) as app:
        for start in range(0, number, 5000):
            await app.send_many(payloads(min(5000, number - start)))


async def consume(
    transport: str,
    number: int,
    hooks: list[Hooks] | None = None,
    namespace: str = "bench",
    handler: Subscriber[Any] = count,
) -> float:
    """Handle what is on the queue, through the whole pipeline; messages per second."""
    counter.expect(number)
    app = make_app(transport, consume=True, hooks=hooks, namespace=namespace, handler=handler)
    start = time.perf_counter()
    async with app:
        await counter.wait()
        took = time.perf_counter() - start
    return number / took
