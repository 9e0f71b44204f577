"""Subscriptions: waiting, limits, canceling, closing."""

from __future__ import annotations

import asyncio

from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.bench import bodies


class ReceiveCompliance(ComplianceBase):
    """Waiting, limits, canceling, closing."""

    async def test_a_subscription_knows_its_queue(self) -> None:
        bench = await self.open()
        subscription = await bench.subscribe()
        assert subscription.queue == bench.name()
        assert subscription.active
        await subscription.close()
        assert not subscription.active

    async def test_what_was_sent_before_is_delivered(self) -> None:
        bench = await self.open()
        await bench.send("a", "b", "c")
        assert sorted(bodies(await bench.drain(bench.name(), 3))) == ["a", "b", "c"]

    async def test_receive_waits_for_what_is_sent_later(self) -> None:
        bench = await self.open()
        subscription = await bench.subscribe()
        waiting = asyncio.create_task(bench.receive_one(subscription))
        early, _ = await asyncio.wait([waiting], timeout=bench.quiet)
        assert not early
        await bench.send("later")
        assert bodies([await waiting]) == ["later"]

    async def test_receive_respects_its_limit(self) -> None:
        bench = await self.open()
        await bench.send(*[str(number) for number in range(10)])
        subscription = await bench.subscribe(prefetch=10)
        for limit in (3, 1, 6):
            # Bench.receive checks the limit at every call.
            assert len(await bench.receive(subscription, limit)) == limit

    async def test_a_first_delivery_says_so(self) -> None:
        bench = await self.open()
        await bench.send(bench.message("a", id="m-1"))
        (delivery,) = await bench.drain(bench.name(), 1)
        if bench.can.properties:
            assert delivery.id == "m-1"
        assert delivery.receipt.queue == bench.name()
        assert delivery.receipt.delivery_count == 1
        assert delivery.receipt.redelivered is False

    async def test_several_subscriptions_share_a_queue(self) -> None:
        bench = await self.open()
        subscriptions = [await bench.subscribe(prefetch=1) for _ in range(3)]
        await bench.send("a", "b", "c")
        # Each holds one and settles none: all three must get one.
        deliveries = await asyncio.gather(*[bench.receive_one(one) for one in subscriptions])
        assert sorted(bodies(deliveries)) == ["a", "b", "c"]

    async def test_close_ends_a_waiting_receive(self) -> None:
        bench = await self.open()
        subscription = await bench.subscribe()
        waiting = asyncio.create_task(subscription.receive(1))
        early, _ = await asyncio.wait([waiting], timeout=bench.quiet)
        assert not early
        await subscription.close()
        async with asyncio.timeout(bench.patience):
            assert list(await waiting) == []
        await subscription.close()

    async def test_nothing_is_delivered_after_close(self) -> None:
        bench = await self.open()
        closed, other = await bench.subscribe(), await bench.subscribe()
        await closed.close()
        await bench.send("a")
        assert list(await closed.receive(1)) == []
        assert bodies([await bench.receive_one(other)]) == ["a"]

    async def test_close_gives_back_what_was_not_returned(self) -> None:
        bench = await self.open()
        await bench.send(*[str(number) for number in range(5)])
        closing = await bench.subscribe(prefetch=5)
        returned = await bench.receive_one(closing)
        await closing.close()
        rest = await bench.receive(await bench.subscribe(), 4)
        assert sorted(bodies([returned, *rest])) == ["0", "1", "2", "3", "4"]
        assert all(delivery.receipt.delivery_count == 1 for delivery in rest), "uncounted"

    async def test_a_delivery_can_be_settled_after_close(self) -> None:
        bench = await self.open()
        await bench.send("a")
        subscription = await bench.subscribe()
        delivery = await bench.receive_one(subscription)
        await subscription.close()
        await bench.complete([delivery])
        await self.nothing_is_left(bench)

    async def test_a_cancelled_receive_loses_nothing(self) -> None:
        bench = await self.open()
        subscription = await bench.subscribe()
        received: list[str] = []
        for round_ in range(20):
            waiting = asyncio.create_task(subscription.receive(1))
            for _ in range(round_ % 5):
                await asyncio.sleep(0)
            await bench.send(str(round_))
            for _ in range(round_ % 7):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                got = await waiting
            except asyncio.CancelledError:
                got = [await bench.receive_one(subscription)]
            received.extend(bodies(got))
            await bench.complete(got)
        assert sorted(received, key=int) == [str(round_) for round_ in range(20)]
        await self.nothing_is_left(bench)
