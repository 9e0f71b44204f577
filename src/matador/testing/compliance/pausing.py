"""Pausing queues: a paused queue delivers nothing to any process until it is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from matador.errors import ConfigurationError, QueueNotFoundError, TransportClosedError
from matador.model.message import DeadLetter, Delivery, Message, Release, Retry
from matador.model.topology import WorkQueue
from matador.testing.compliance.base import ComplianceBase, ability
from matador.testing.compliance.bench import Bench, bodies
from matador.transports.base import Browsing, Measuring, Purging, QueuePausing


class PauseCompliance(ComplianceBase):
    """``capabilities.pause``."""

    async def test_a_paused_queue_takes_messages_and_delivers_none(self) -> None:
        bench = await self.open("events", "other")
        if (transport := await self._pausing(bench)) is None:
            return
        name = bench.name()
        assert not await transport.is_paused(name)
        await bench.send("a")
        await transport.pause_queue(name)
        await transport.pause_queue(name)
        assert await transport.is_paused(name)
        assert not await transport.is_paused(bench.name("other"))
        await bench.send("b", bench.message("elsewhere", queue="other"))
        subscription = await bench.subscribe()
        await bench.nothing_comes(subscription)
        assert bodies(await bench.drain(bench.name("other"), 1)) == ["elsewhere"]
        await transport.resume_queue(name)
        await transport.resume_queue(name)
        assert not await transport.is_paused(name)
        got = await bench.receive(subscription, 2)
        assert sorted(bodies(got)) == ["a", "b"]
        assert [one.receipt.delivery_count for one in got] == [1, 1]
        await bench.complete(got)

    async def test_a_receive_that_waits_gets_nothing_until_the_end_of_the_pause(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None:
            return
        for round_ in range(3):  # also when it was paused before
            subscription = await bench.subscribe()
            waiting = asyncio.create_task(bench.receive_one(subscription))
            await self._is_waiting(waiting)
            await transport.pause_queue(bench.name())
            await bench.send(f"sent {round_}")
            await self._is_waiting(waiting)
            await transport.resume_queue(bench.name())
            delivery = await waiting
            assert bodies([delivery]) == [f"sent {round_}"]
            await bench.complete([delivery])
            await subscription.close()

    async def test_what_is_held_when_a_queue_is_paused_can_be_settled(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None:
            return
        await bench.send("completed", "retried", "released", "dead")
        subscription = await bench.subscribe()
        held = {one.body.decode(): one for one in await bench.receive(subscription, 4)}
        await transport.pause_queue(bench.name())
        await bench.complete([held["completed"]])
        await bench.settle(
            Retry(held["retried"].receipt, _again(bench, held["retried"])),
            Release(held["released"].receipt),
            DeadLetter(held["dead"].receipt, "undeliverable", "a test"),
        )
        await bench.nothing_comes(subscription)
        assert bodies(await bench.drain(bench.dead_letters(), 1)) == ["dead"]
        await transport.resume_queue(bench.name())
        got = await bench.receive(subscription, 2)
        assert sorted(bodies(got)) == ["released", "retried"]
        await bench.complete(got)
        await bench.nothing_comes(subscription)

    async def test_what_becomes_due_during_a_pause_waits_for_its_end(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None or not bench.can.delays:
            return
        await transport.pause_queue(bench.name())
        await bench.send(bench.message("later", delay=0.05))
        subscription = await bench.subscribe()
        bench.quiet = max(bench.quiet, 0.3)
        await bench.nothing_comes(subscription)
        await transport.resume_queue(bench.name())
        got = await bench.receive(subscription, 1)
        assert bodies(got) == ["later"]
        await bench.complete(got)

    async def test_a_lost_lease_does_not_end_a_pause(self) -> None:
        bench = await self.open(short_lease=True)
        lease = bench.can.lease
        if (transport := await self._pausing(bench)) is None or lease is None:
            return
        await bench.send("lost")
        await bench.receive_one(await bench.subscribe())
        await transport.pause_queue(bench.name())
        subscription = await bench.subscribe()
        bench.quiet = lease * 1.5
        await bench.nothing_comes(subscription)
        await transport.resume_queue(bench.name())
        assert bodies(await bench.receive(subscription, 1)) == ["lost"]

    async def test_a_paused_queue_with_priorities_keeps_its_order(self) -> None:
        bench = await self.open(WorkQueue("events", priorities=True))
        if (transport := await self._pausing(bench)) is None or not bench.can.priorities:
            return
        subscription = await bench.subscribe(prefetch=1)
        await bench.send(bench.message("first", priority=5))
        first = await bench.receive_one(subscription)
        await transport.pause_queue(bench.name())
        await bench.send(
            bench.message("low", priority=1), bench.message("high", priority=9), bench.message("no")
        )
        await bench.complete([first])
        await bench.nothing_comes(subscription)
        await transport.resume_queue(bench.name())
        for expected in ("high", "low", "no"):
            delivery = await bench.receive_one(subscription)
            assert bodies([delivery]) == [expected]
            await bench.complete([delivery])

    async def test_a_paused_queue_can_be_measured_browsed_and_purged(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None:
            return
        name = bench.name()
        await bench.send("before")
        delivery = await bench.receive_one(subscription := await bench.subscribe(prefetch=1))
        await transport.pause_queue(name)
        await bench.complete([delivery])
        await subscription.close()
        await bench.send("a", "b", "c")
        if bench.can.depth and isinstance(transport, Measuring):
            depth = await transport.depth(name)
            assert (depth.ready, depth.in_flight) == (3, 0)
        if bench.can.browse and isinstance(transport, Browsing):
            seen = [stored async for stored in transport.browse(name)]
            assert bodies(seen) == ["a", "b", "c"]
            assert [stored.state for stored in seen] == ["ready"] * 3
            (taken,) = await transport.take(name, [seen[1].position])
            assert taken is not None
            assert bodies([taken]) == ["b"]
            await bench.complete([taken])
        else:
            await transport.resume_queue(name)
            await bench.drain(name, 3)
            await transport.pause_queue(name)
            await bench.send("a", "c")
        if bench.can.purge and isinstance(transport, Purging):
            assert await transport.purge(name) == 2
            await bench.send("left")
        await transport.resume_queue(name)
        purged = bench.can.purge
        assert bodies(await bench.drain(name, 1 if purged else 2)) == (
            ["left"] if purged else ["a", "c"]
        )

    async def test_the_topology_applied_again_does_not_end_a_pause(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None:
            return
        await transport.pause_queue(bench.name())
        await self.declare(bench.transport, bench.topology)
        await bench.transport.disconnect()
        await bench.transport.connect()
        await self.declare(bench.transport, bench.topology)
        assert await transport.is_paused(bench.name())
        await bench.send("a")
        await bench.nothing_comes(await bench.subscribe())

    async def test_a_pause_counts_for_all_processes(self) -> None:
        """Another transport represents another process, and one that starts later."""
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None:
            return
        waiting = await self._other(bench)
        subscription = await waiting.subscribe()
        receiving = asyncio.create_task(waiting.receive_one(subscription))
        await self._is_waiting(receiving)
        await transport.pause_queue(bench.name())
        await bench.send("a")
        await self._is_waiting(receiving)
        later = await self._other(bench)
        assert isinstance(later.transport, QueuePausing)
        assert await later.transport.is_paused(bench.name())
        another = await later.subscribe()
        await later.nothing_comes(another)
        await another.close()
        await later.transport.resume_queue(bench.name())
        delivery = await receiving
        assert bodies([delivery]) == ["a"]
        await waiting.complete([delivery])
        assert not await transport.is_paused(bench.name())

    async def test_a_pause_survives_a_restart(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None or not bench.can.durable:
            return
        await transport.pause_queue(bench.name())
        await bench.send("a")
        again = await self.reopen(bench, restart=True)
        assert isinstance(again.transport, QueuePausing)
        assert await again.transport.is_paused(bench.name())
        subscription = await again.subscribe()
        await again.nothing_comes(subscription)
        await again.transport.resume_queue(bench.name())
        got = await again.receive(subscription, 1)
        assert bodies(got) == ["a"]
        await again.complete(got)

    async def test_subscriptions_to_a_paused_queue_end_at_once(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None:
            return
        await bench.send("a")
        await transport.pause_queue(bench.name())
        subscription = await bench.subscribe()
        receiving = asyncio.create_task(subscription.receive(1))
        await self._is_waiting(receiving)
        async with asyncio.timeout(self.patience):
            await subscription.close()
            assert not await receiving
        cancelled = asyncio.create_task((await bench.subscribe()).receive(1))
        await self._is_waiting(cancelled)
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        await transport.resume_queue(bench.name())
        assert bodies(await bench.drain(bench.name(), 1)) == ["a"]

    async def test_what_cannot_be_paused_is_refused(self) -> None:
        bench = await self.open()
        if (transport := await self._pausing(bench)) is None:
            return
        unknown = f"{bench.name()}-unknown"
        for call in (transport.pause_queue, transport.resume_queue, transport.is_paused):
            with pytest.raises(QueueNotFoundError):
                await call(unknown)
        with pytest.raises(ConfigurationError, match="dead letters"):
            await transport.pause_queue(bench.dead_letters())
        assert not await transport.is_paused(bench.dead_letters())
        await bench.transport.disconnect()
        for call in (transport.pause_queue, transport.resume_queue, transport.is_paused):
            with pytest.raises(TransportClosedError):
                await call(bench.name())

    # -- what they share --------------------------------------------------------------------------

    async def _pausing(self, bench: Bench) -> QueuePausing | None:
        name = bench.name()
        return await ability(
            bench.transport,
            QueuePausing,
            bench.can.pause,
            lambda one: one.pause_queue(name),
            lambda one: one.resume_queue(name),
            lambda one: one.is_paused(name),
        )

    async def _other(self, bench: Bench) -> Bench:
        """A bench on another transport; on the same one where there is only one process."""
        if bench.can.in_process:
            return bench
        return await self.open(topology=bench.topology)

    async def _is_waiting(
        self, receiving: asyncio.Task[Delivery] | asyncio.Task[Sequence[Delivery]]
    ) -> None:
        done, _ = await asyncio.wait([receiving], timeout=self.quiet)
        assert not done, "nothing may be received"


def _again(bench: Bench, delivery: Delivery) -> Message:
    return bench.message(delivery.body, id=delivery.id or None)
