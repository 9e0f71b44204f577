"""Settling deliveries: complete, release, retry; and deliveries that are never settled."""

from __future__ import annotations

import asyncio
import time

from matador.errors import DelaysNotSupportedError, LeaseLostError, QueueNotFoundError
from matador.model.message import Complete, Message, Release, Retry
from matador.testing.compliance.base import ComplianceBase, ability
from matador.testing.compliance.bench import Bench, bodies
from matador.transports.base import Leasing, Twinning

_DELAY = 0.15
_EARLY = 0.01  # how much sooner a delay may end: clocks are rounded


class SettleCompliance(ComplianceBase):
    """Complete, release, retry; leases; and deliveries that are never settled."""

    async def test_complete_removes(self) -> None:
        bench = await self.open()
        await bench.send("a", "b")
        subscription = await bench.subscribe()
        for delivery in await bench.receive(subscription, 2):
            await bench.complete([delivery])
        await self.nothing_is_left(bench)

    async def test_settlements_have_outcomes_in_order(self) -> None:
        bench = await self.open()
        await bench.send("a", "b", "c")
        first, second, third = await bench.receive(await bench.subscribe(), 3)
        nowhere = Message("x", f"{bench.name()}-unknown", b"x")
        outcomes = await bench.transport.settle(
            [Complete(first.receipt), Retry(second.receipt, nowhere), Complete(third.receipt)]
        )
        found = [type(outcome) for outcome in outcomes]
        assert found == [type(None), QueueNotFoundError, type(None)]
        # The one that failed is still ours.
        await bench.complete([second])

    async def test_settling_twice_changes_nothing(self) -> None:
        bench = await self.open()
        await bench.send("a")
        subscription = await bench.subscribe()
        delivery = await bench.receive_one(subscription)
        await subscription.close()  # so that the next message is not pushed here
        await bench.complete([delivery])
        (outcome,) = await bench.transport.settle([Complete(delivery.receipt)])
        if self.refuses_second_settlement:
            assert isinstance(outcome, LeaseLostError)
            retry = Retry(delivery.receipt, bench.message("successor"))
            (outcome,) = await bench.transport.settle([retry])
            assert isinstance(outcome, LeaseLostError)
        else:
            assert outcome is None
        await bench.send("next")
        assert bodies(await bench.drain(bench.name(), 1)) == ["next"]

    async def test_release_gives_back_uncounted(self) -> None:
        bench = await self.open()
        await bench.send("a")
        subscription = await bench.subscribe()
        for _ in range(3):
            delivery = await bench.receive_one(subscription)
            assert bodies([delivery]) == ["a"]
            if bench.can.attempt_tracking:
                assert delivery.receipt.delivery_count == 1
                assert not delivery.receipt.redelivered
            await bench.settle(Release(delivery.receipt))
        await bench.complete([await bench.receive_one(subscription)])

    async def test_retry_stores_the_successor_and_removes_the_original(self) -> None:
        bench = await self.open()
        await bench.send(bench.message("first", id="m-1", headers={"try": 1}))
        subscription = await bench.subscribe()
        delivery = await bench.receive_one(subscription)
        successor = bench.message("second", id="m-1", headers={"try": 2})
        await bench.settle(Retry(delivery.receipt, successor))
        retried = await bench.receive_one(subscription)
        assert bodies([retried]) == ["second"]
        assert retried.headers["try"] == 2
        assert retried.receipt.delivery_count == 1, "a successor is a new message"
        assert not retried.receipt.redelivered
        await bench.complete([retried])
        await self.nothing_is_left(bench)

    async def test_retry_may_go_to_another_queue(self) -> None:
        bench = await self.open("events", "slow")
        await bench.send("a")
        delivery = await bench.receive_one(await bench.subscribe())
        await bench.settle(Retry(delivery.receipt, bench.message("a", queue="slow")))
        assert bodies(await bench.drain(bench.name("slow"), 1)) == ["a"]
        await self.nothing_is_left(bench)

    async def test_retry_waits_for_its_time(self) -> None:
        bench = await self.open()
        await bench.send("a")
        subscription = await bench.subscribe()
        delivery = await bench.receive_one(subscription)
        retried_at = time.monotonic()
        retry = Retry(delivery.receipt, bench.message("a", delay=_DELAY))
        (outcome,) = await bench.transport.settle([retry])
        if not bench.can.delays and not bench.can.delays_retries:
            assert isinstance(outcome, DelaysNotSupportedError)
            await bench.complete([delivery])
            return
        assert outcome is None
        retried = await bench.receive_one(subscription)
        assert time.monotonic() - retried_at >= _DELAY - _EARLY
        assert retried.receipt.delivery_count == 1
        assert not retried.receipt.redelivered

    # -- never settled ---------------------------------------------------------------------------

    async def test_what_a_vanished_consumer_held_is_redelivered(self) -> None:
        bench = await self.open(short_lease=True)
        await bench.send("a")
        first = await bench.receive_one(await bench.subscribe())
        assert not first.receipt.redelivered
        again = await self.reopen(bench, short_lease=True)
        if "at-least-once" not in again.can.delivery_modes:
            await again.nothing_comes(await again.subscribe())
            return
        second = await again.receive_one(await again.subscribe())
        assert bodies([second]) == ["a"]
        assert second.receipt.redelivered
        if again.can.attempt_tracking:
            assert second.receipt.delivery_count == 2

    async def test_an_acknowledged_delivery_is_not_redelivered(self) -> None:
        # At-most-once delivery depends on this: complete first, then work, then die.
        bench = await self.open()
        await bench.send("a")
        await bench.complete([await bench.receive_one(await bench.subscribe())])
        await self.nothing_is_left(bench)

    # -- leases -----------------------------------------------------------------------------------

    async def test_an_expired_lease_is_redelivered_and_fenced(self) -> None:
        bench = await self.open(short_lease=True)
        if (leasing := await self._leasing(bench)) is None:
            return
        await bench.send("a")
        subscription = await bench.subscribe()
        stale = await bench.receive_one(subscription)
        completed: object = "not tried"
        for count in range(2, 6):
            fresh = await bench.receive_one(subscription)
            assert bodies([fresh]) == ["a"]
            assert fresh.receipt.redelivered
            if bench.can.attempt_tracking:
                assert fresh.receipt.delivery_count == count
            assert list(await leasing.renew([stale.receipt])) == [False]
            successor = bench.message("successor")
            outcomes = await bench.transport.settle(
                [Complete(stale.receipt), Release(stale.receipt), Retry(stale.receipt, successor)]
            )
            assert [type(outcome) for outcome in outcomes] == [LeaseLostError] * 3
            (completed,) = await bench.transport.settle([Complete(fresh.receipt)])
            if not isinstance(completed, LeaseLostError):
                break
            # The machine was busy for longer than the lease: it comes once more.
            stale = fresh
        assert completed is None
        await bench.nothing_comes(subscription)

    async def test_a_renewed_lease_is_kept(self) -> None:
        for number in range(5):  # once is enough, unless the machine is busy
            topology = self.topology(namespace=f"-{number}")
            bench = await self.open(topology=topology, short_lease=True)
            leasing, lease = await self._leasing(bench), bench.can.lease
            if leasing is None or lease is None or await self._renews(bench, leasing, lease):
                return
        raise AssertionError("the machine is too busy to renew a lease in time")

    async def test_a_twin_renews_leases(self) -> None:
        for number in range(5):
            topology = self.topology(namespace=f"-{number}")
            bench = await self.open(topology=topology, short_lease=True)
            transport, lease = bench.transport, bench.can.lease
            twin = transport.twin() if isinstance(transport, Twinning) else None
            if twin is None or lease is None:
                return
            await twin.connect()
            try:
                if await self._renews(bench, twin, lease):
                    return
            finally:
                await twin.disconnect()
        raise AssertionError("the machine is too busy to renew a lease in time")

    async def _renews(self, bench: Bench, leasing: Leasing, lease: float) -> bool:
        """Renew a delivery for twice the lease. False: a renewal was so late that it may fail."""
        await bench.send("a")
        holder, rival = await bench.subscribe(), await bench.subscribe()
        renewed = time.monotonic()
        delivery = await bench.receive_one(holder)
        until = time.monotonic() + 2 * lease
        stealing = asyncio.create_task(rival.receive(1))
        while True:
            await asyncio.wait([stealing], timeout=lease / 5)
            now = time.monotonic()
            if enough := now > until:
                (outcome,) = await bench.transport.settle([Complete(delivery.receipt)])
                kept = outcome is None
            else:
                kept = list(await leasing.renew([delivery.receipt])) == [True]
            stolen = stealing.done()
            if enough or stolen or not kept:
                await rival.close()
                stolen = bool(await stealing)
            if time.monotonic() - renewed > 0.9 * lease and (stolen or not kept):
                return False
            assert not stolen, "a renewed delivery must not be given to another"
            assert kept
            if enough:
                return True
            renewed = now

    async def _leasing(self, bench: Bench) -> Leasing | None:
        declared = bench.can.lease is not None
        return await ability(bench.transport, Leasing, declared, lambda one: one.renew([]))
