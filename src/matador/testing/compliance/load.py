"""Many consumers at once, and coming back after everything was stopped."""

from __future__ import annotations

import asyncio
from collections import Counter

from matador.model.message import Complete, Release
from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.bench import Bench, bodies
from matador.transports.base import Subscription

_CONSUMERS = 8


class LoadCompliance(ComplianceBase):
    """Concurrency and durability."""

    load: int = 10_000
    """How many messages the consumers share."""

    async def test_many_consumers_handle_each_message_once(self) -> None:
        bench = await self.open()
        consumers = [
            # Of their own where that is possible, as in processes of their own.
            await self.open(topology=bench.topology) if bench.can.durable else bench
            for _ in range(_CONSUMERS)
        ]
        subscriptions = [await consumer.subscribe(prefetch=64) for consumer in consumers]
        handled: Counter[str] = Counter()
        done = asyncio.Event()

        async def consume(consumer: Bench, subscription: Subscription) -> None:
            while deliveries := await subscription.receive(64):
                # At first a part of the work goes back, to be handled by another.
                count = len(deliveries) - 1 if len(handled) < self.load // 2 else len(deliveries)
                kept, released = deliveries[:count], deliveries[count:]
                await consumer.settle(
                    *[Complete(delivery.receipt) for delivery in kept],
                    *[Release(delivery.receipt) for delivery in released],
                )
                handled.update(bodies(kept))
                if len(handled) == self.load:
                    done.set()

        async def send() -> None:
            for start in range(0, self.load, 500):
                await bench.send(*[str(number) for number in range(start, start + 500)])

        async def close_when_done() -> None:
            await done.wait()
            for subscription in subscriptions:
                await subscription.close()

        async with asyncio.timeout(self.patience + 50), asyncio.TaskGroup() as tasks:
            tasks.create_task(close_when_done())
            for consumer, subscription in zip(consumers, subscriptions, strict=True):
                tasks.create_task(consume(consumer, subscription))
            tasks.create_task(send())
        assert len(handled) == self.load
        assert [body for body, times in handled.items() if times > 1] == []
        assert await bench.count(bench.name()) in (0, None)

    async def test_what_was_sent_is_there_after_everything_stopped(self) -> None:
        bench = await self.open()
        await bench.send(*[str(number) for number in range(100)])
        if bench.can.durable:
            bench = await self.reopen(bench, restart=True)
        received = bodies(await bench.drain(bench.name(), 100))
        assert sorted(received, key=int) == [str(number) for number in range(100)]
