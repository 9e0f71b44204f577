"""How many messages are handled at once, how many are asked for, and how that is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    Handler,
    Heard,
    OrderPlaced,
    make_app,
    memory,
    settled,
    subscribed,
)

from matador import Envelope, Hooks, Topology
from matador.events.context import EventContext
from matador.model.message import Delivery
from matador.model.topology import WorkQueue
from matador.runtime import consumer as consumer_module
from matador.runtime import worker as worker_module
from matador.testing import ManualClock, wait_for
from matador.transports.memory import MemoryTransport


class Crowd:
    """Counts how many callbacks run at once; they wait until the doors are open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.handled = 0

    async def __call__(self, envelope: Envelope[Any], ctx: EventContext) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.open.wait()
        await asyncio.sleep(0)
        self.inside -= 1
        self.handled += 1


def queues(concurrency: int | None) -> Topology:
    return Topology("shop", queues=[WorkQueue("events", concurrency=concurrency)])


@pytest.mark.parametrize(("concurrency", "expected"), [(1, 1), (3, 3), (None, 10)])
async def test_no_more_run_at_once_than_the_queue_allows(
    concurrency: int | None, expected: int
) -> None:
    crowd, transport = Crowd(), FaultyTransport()
    async with make_app(transport, crowd, topology=queues(concurrency)) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(40))
        await wait_for(lambda: crowd.inside == expected)
        depth = await memory(app).depth("shop.events")
        assert (depth.in_flight, depth.ready) == (expected, 40 - expected), "nothing is hoarded"
        assert max(transport.limits) <= expected
        crowd.open.set()
        await settled(app)
    assert (crowd.most, crowd.handled) == (expected, 40)


async def test_messages_that_come_one_by_one_find_the_free_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_module, "_LONGEST_WAIT", 3600.0)
    crowd = Crowd()
    async with make_app(None, crowd, topology=queues(3)) as app:
        for n in range(3):
            await app.send(OrderPlaced(f"o-{n}"))
            await wait_for(lambda n=n: crowd.inside == n + 1)
        crowd.open.set()


async def test_queues_do_not_wait_for_each_other() -> None:
    crowd, quick = Crowd(), Handler()
    topology = Topology("shop", queues=[WorkQueue("events", concurrency=1), "billing"])
    app = make_app(
        None,
        subscribed(crowd, "slow"),
        subscribed(quick, "quick", queue="billing"),
        topology=topology,
        consume_from=["events", "billing"],
    )
    async with app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(5))
        await wait_for(lambda: quick.runs == 5)
        assert crowd.handled == 0
        crowd.open.set()
        await settled(app)


class Concurrency(Hooks):
    """Answers what the test puts into ``answer``."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def get_queue_concurrency(self, queue: str) -> Any:
        self.asked.append(queue)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(2, 2), (None, 4), (RuntimeError("?"), 4), (0, 4), (-3, 4), ("many", 4)],
)
async def test_a_hook_may_decide_how_many(answer: object, expected: int) -> None:
    crowd, hooks = Crowd(), Concurrency(answer)
    async with make_app(None, crowd, topology=queues(4), hooks=hooks) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(12))
        await wait_for(lambda: crowd.inside == expected)
        crowd.open.set()
        await settled(app)
    assert hooks.asked[0] == "shop.events"
    assert crowd.most == expected


@pytest.mark.parametrize(("before", "after"), [(2, 5), (10, 3), (6, 1)])
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
async def test_and_change_its_mind_while_messages_run(
    before: int, after: int, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_ASK_CONCURRENCY_EVERY", 0.005)
    crowd, hooks = Crowd(), Concurrency(before)
    async with make_app(None, crowd, hooks=hooks) as app:
        (consumer,) = app._workers[0].consumers
        if busy:
            await app.send_many(OrderPlaced(f"o-{n}") for n in range(20))
            await wait_for(lambda: crowd.inside == before)
        hooks.answer = after
        await wait_for(lambda: consumer.concurrency == after)
        if busy:
            crowd.open.set()
            await settled(app)
            crowd.open.clear()
        crowd.most = 0
        await app.send_many(OrderPlaced(f"p-{n}") for n in range(20))
        await wait_for(lambda: crowd.inside == after)
        crowd.open.set()
        await settled(app)
    assert crowd.most == after


async def test_an_answer_that_is_no_number_does_not_end_the_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_ASK_CONCURRENCY_EVERY", 0.005)
    hooks = Concurrency(4)
    async with make_app(None, Handler(), hooks=hooks) as app:
        (consumer,) = app._workers[0].consumers
        hooks.answer = "many"
        asked = len(hooks.asked)
        await wait_for(lambda: len(hooks.asked) > asked + 1)
        hooks.answer = 2
        await wait_for(lambda: consumer.concurrency == 2)


# -- leases ------------------------------------------------------------------------------------


async def test_leases_are_renewed_for_as_long_as_a_callback_runs(
    manual_clock: ManualClock,
) -> None:
    crowd = Crowd()
    transport = MemoryTransport(clock=manual_clock, lease=0.06)
    renewed = 0

    async with make_app(transport, crowd, clock=manual_clock) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: crowd.inside == 1)
        original = transport.renew

        async def renew(receipts: Any) -> Any:
            nonlocal renewed
            renewed += 1
            return await original(receipts)

        transport.renew = renew  # the keeper looks it up at every turn
        for _ in range(5):
            seen = renewed
            await wait_for(lambda: renewed > seen)  # noqa: B023 - called at once
            manual_clock.advance(0.05)
        assert (await transport.depth("shop.events")).in_flight == 1
        crowd.open.set()
        await settled(app)
    assert crowd.handled == 1


async def test_a_lost_lease_is_told_to_the_callback_and_its_outcome_refused(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    contexts: list[EventContext] = []
    lost = asyncio.Event()

    async def handle(envelope: Envelope[Any], ctx: EventContext) -> None:
        contexts.append(ctx)
        if len(contexts) == 1:
            await wait_for(lambda: ctx.lease_lost)
            lost.set()

    heard = Heard()
    transport = MemoryTransport(clock=manual_clock, lease=0.06)
    async with make_app(transport, handle, clock=manual_clock, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: len(contexts) == 1)
        manual_clock.advance(10)  # as if the process had been frozen for that long
        await lost.wait()
        await wait_for(lambda: len(contexts) == 2)
        await settled(app)
        assert memory(app).completed("shop.events") == 1
    assert (contexts[0].lease_lost, contexts[1].lease_lost) == (True, False)
    assert contexts[1].redelivered
    assert len(heard.of("success")) == 1, "only the second run counts"
    assert "lost the lease of a message of shop.events" in caplog.text


@pytest.mark.parametrize(
    ("frozen", "counts"),
    [(31, [2]), (20, [1])],
    ids=["not begun: it is somebody else's by then", "begun: the broker confirms the lease"],
)
async def test_a_delivery_that_waited_for_long_is_begun_only_if_it_is_still_ours(
    manual_clock: ManualClock, frozen: float, counts: list[int]
) -> None:
    """The process is frozen between receiving and handling; the lease is 30 seconds."""
    contexts: list[EventContext] = []

    async def handle(envelope: Envelope[Any], ctx: EventContext) -> None:
        contexts.append(ctx)

    transport = MemoryTransport(clock=manual_clock, lease=30)
    async with make_app(transport, handle, clock=manual_clock) as app:
        (consumer,) = app._workers[0].consumers
        accept = consumer._accept

        def freeze(deliveries: Sequence[Delivery]) -> None:
            accept(deliveries)
            manual_clock.advance(frozen)
            consumer._accept = accept

        consumer._accept = freeze
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert [context.receipt.delivery_count for context in contexts] == counts
