"""Inspecting queues: browse, take, purge, depth, replay."""

from __future__ import annotations

import pytest

from matador.errors import QueueNotFoundError
from matador.model.message import Complete, DeadLetter, QueueDepth, Release
from matador.model.topology import WorkQueue
from matador.testing.compliance.base import ComplianceBase, ability
from matador.testing.compliance.bench import Bench, bodies, collect
from matador.testing.wait import wait_for
from matador.transports.base import Browsing, Measuring, Purging, Replaying


class BrowseCompliance(ComplianceBase):
    """Browse, take, purge, depth, replay. Each test checks the ability, or that it is refused."""

    # -- browse -----------------------------------------------------------------------------------

    async def test_browsing_shows_all_and_consumes_nothing(self) -> None:
        bench = await self.open()
        if (browsing := await self._browsing(bench)) is None:
            return
        await bench.send(bench.message("a", id="id-a", headers={"h": "1"}, key="k"), "b", "c")
        assert bodies(await collect(browsing.browse(bench.name()))) == ["a", "b", "c"]
        seen = await collect(browsing.browse(bench.name()))
        assert bodies(seen) == ["a", "b", "c"], "the same again"
        first = seen[0]
        assert (first.id, first.queue, first.ordering_key) == ("id-a", bench.name(), "k")
        assert first.headers["h"] == "1"
        assert first.state == "ready"
        assert first.delivery_count == 0
        assert bodies(await bench.drain(bench.name(), 3)) == ["a", "b", "c"]
        assert await collect(browsing.browse(bench.name())) == []

    async def test_browsing_starts_behind_a_position_and_stops_at_a_limit(self) -> None:
        bench = await self.open()
        if (browsing := await self._browsing(bench)) is None:
            return
        await bench.send(*[str(number) for number in range(6)])
        name = bench.name()
        page = await collect(browsing.browse(name, limit=2))
        assert bodies(page) == ["0", "1"]
        page = await collect(browsing.browse(name, after=page[-1].position, limit=3))
        assert bodies(page) == ["2", "3", "4"]
        page = await collect(browsing.browse(name, after=page[-1].position))
        assert bodies(page) == ["5"]
        assert await collect(browsing.browse(name, after=page[-1].position)) == []

    async def test_browsing_tells_the_states(self) -> None:
        bench = await self.open()
        if (browsing := await self._browsing(bench)) is None:
            return
        await bench.send("held", "ready")
        expected = {"held": "in-flight", "ready": "ready"}
        if bench.can.delays:
            await bench.send(bench.message("delayed", delay=60))
            expected["delayed"] = "delayed"
        subscription = await bench.subscribe(prefetch=1)
        await bench.receive_one(subscription)
        if self.sees_only_ready:
            expected = {"ready": "ready"}
        seen = await collect(browsing.browse(bench.name()))
        assert {stored.body.decode(): stored.state for stored in seen} == expected

    async def test_browsing_an_unknown_queue_fails(self) -> None:
        bench = await self.open()
        if (browsing := await self._browsing(bench)) is None:
            return
        with pytest.raises(QueueNotFoundError):
            await collect(browsing.browse(f"{bench.name()}-unknown"))

    async def test_exactly_the_chosen_messages_are_taken(self) -> None:
        bench = await self.open()
        if (browsing := await self._browsing(bench)) is None:
            return
        await bench.send("a", "b", "c", "d")
        seen = await collect(browsing.browse(bench.name()))
        chosen = [seen[1].position, seen[3].position]
        d, b = await browsing.take(bench.name(), chosen[::-1])
        assert b is not None
        assert d is not None
        assert bodies([b, d]) == ["b", "d"], "in the order asked for"
        again = await browsing.take(bench.name(), [*chosen, seen[0].position])
        assert again[:2] == [None, None], "in other hands"
        assert again[2] is not None
        assert bodies([again[2]]) == ["a"]
        await bench.settle(Complete(b.receipt), Release(d.receipt), Release(again[2].receipt))
        assert sorted(bodies(await bench.drain(bench.name(), 3))) == ["a", "c", "d"]

    async def test_a_dead_letter_can_be_taken(self) -> None:
        bench = await self.open()
        if (browsing := await self._browsing(bench)) is None:
            return
        await bench.send("a")
        delivery = await bench.receive_one(await bench.subscribe())
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "why"))
        (seen,) = await collect(browsing.browse(bench.dead_letters()))
        assert seen.reason == "why"
        (taken,) = await browsing.take(bench.dead_letters(), [seen.position])
        assert taken is not None
        await bench.complete([taken])
        assert await collect(browsing.browse(bench.dead_letters())) == []

    async def _browsing(self, bench: Bench) -> Browsing | None:
        return await ability(
            bench.transport,
            Browsing,
            bench.can.browse,
            lambda one: collect(one.browse(bench.name())),
            lambda one: one.take(bench.name(), []),
        )

    # -- purge ------------------------------------------------------------------------------------

    async def test_purge_deletes_all_that_nobody_holds(self) -> None:
        bench = await self.open("events", "other")
        name, declared = bench.name(), bench.can.purge
        transport = await ability(bench.transport, Purging, declared, lambda one: one.purge(name))
        if transport is None:
            return
        await bench.send("held", "a", "b", bench.message("untouched", queue="other"))
        subscription = await bench.subscribe(prefetch=1)
        held = await bench.receive_one(subscription)
        assert await transport.purge(bench.name()) == 2
        assert await transport.purge(bench.name()) == 0
        await bench.complete([held])
        await bench.nothing_comes(subscription)
        assert bodies(await bench.drain(bench.name("other"), 1)) == ["untouched"]
        with pytest.raises(QueueNotFoundError):
            await transport.purge(f"{bench.name()}-unknown")

    async def test_purge_deletes_what_is_delayed(self) -> None:
        bench = await self.open("events", "other")
        transport = bench.transport
        if not (bench.can.purge and bench.can.delays):
            return  # each is shown, or refused, by a test of its own
        assert isinstance(transport, Purging)
        other = bench.message("untouched", queue="other", delay=0.1)
        await bench.send(bench.message("soon", delay=0.1), other, bench.message("later", delay=60))
        assert await transport.purge(bench.name()) == 2
        (delivery,) = await bench.drain(bench.name("other"), 1)
        assert (delivery.body, delivery.receipt.delivery_count) == (b"untouched", 1)
        await bench.nothing_comes(await bench.subscribe())

    # -- depth ------------------------------------------------------------------------------------

    async def test_depth_counts_each_state(self) -> None:
        bench = await self.open()
        name, declared = bench.name(), bench.can.depth
        transport = await ability(bench.transport, Measuring, declared, lambda one: one.depth(name))
        if transport is None:
            return
        assert await transport.depth(bench.name()) == QueueDepth()
        await bench.send("held", "a", "b")
        delayed = 1 if bench.can.delays else 0
        if delayed:
            await bench.send(bench.message("later", delay=60))
        subscription = await bench.subscribe(prefetch=1)
        held = await bench.receive_one(subscription)
        unseen = self.sees_only_ready
        delayed = 0 if unseen else delayed
        expected = QueueDepth(ready=2, delayed=delayed, in_flight=0 if unseen else 1)
        assert await transport.depth(bench.name()) == expected
        await subscription.close()  # so that a broker that pushes does not push the next one
        await bench.complete([held])
        expected = QueueDepth(ready=2, delayed=delayed, in_flight=0)
        assert await transport.depth(bench.name()) == expected
        assert (await transport.depth(bench.dead_letters())).total == 0
        with pytest.raises(QueueNotFoundError):
            await transport.depth(f"{bench.name()}-unknown")

    # -- replay -----------------------------------------------------------------------------------

    async def test_what_is_finished_can_be_read_again(self) -> None:
        bench = await self.open(WorkQueue("events", retention=60))
        if (replaying := await self._replaying(bench)) is None:
            return
        await bench.send("a", "b", "c")
        subscription = await bench.subscribe(prefetch=1)
        for _ in range(2):
            await bench.complete([await bench.receive_one(subscription)])
        await subscription.close()
        for _ in range(2):
            read = await replaying.read(bench.name())
            found = [(stored.body, stored.state) for stored in read]
            assert found == [(b"a", "done"), (b"b", "done"), (b"c", "ready")]
            behind = await replaying.read(bench.name(), after=read[0].position, limit=1)
            assert bodies(behind) == ["b"]
        assert bodies(await bench.drain(bench.name(), 1)) == ["c"], "and not delivered again"
        assert await bench.count(bench.name()) in (0, None)

    async def test_what_is_finished_goes_when_the_retention_is_over(self) -> None:
        bench = await self.open(WorkQueue("events", retention=0.2))
        if (replaying := await self._replaying(bench)) is None:
            return
        await bench.send("a")
        await bench.drain(bench.name(), 1)

        async def gone() -> bool:
            return not await replaying.read(bench.name())

        await wait_for(gone, timeout=self.patience, message="the retention to pass")

    async def _replaying(self, bench: Bench) -> Replaying | None:
        name, declared = bench.name(), bench.can.replay
        assert declared or bench.noted(name), "apply_topology must say that it retains nothing"
        return await ability(bench.transport, Replaying, declared, lambda one: one.read(name))
