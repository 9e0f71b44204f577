"""While callbacks are quick, messages are received before a slot is free; no promise changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import OrderPlaced, make_app, memory, settled, subscribed

from matador import Envelope, Hooks, Matador, Topology
from matador.errors import MatadorError
from matador.events.context import EventContext
from matador.model.message import Release, Settlement
from matador.model.topology import WorkQueue
from matador.runtime import consumer as consumer_module
from matador.runtime import worker as worker_module
from matador.runtime.consumer import MOST_COUNTED, MOST_HELD
from matador.testing import ManualClock, wait_for
from matador.transports.base import Subscription

TOPOLOGY = Topology("shop", queues=[WorkQueue("events", concurrency=10)])


@pytest.fixture(autouse=True)
def a_slow_machine_is_quick_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far is read ahead depends on how much is handled in this time."""
    monkeypatch.setattr(consumer_module, "_AHEAD_SECONDS", 1.0)


class QuickThenSlow:
    """Returns at once for the first few messages; then it waits for its door."""

    def __init__(self, quick: int) -> None:
        self.quick = quick
        self.door = asyncio.Event()
        self.began = self.ended = self.most = 0
        self.deliveries: list[int] = []

    async def __call__(self, envelope: Envelope[Any], ctx: EventContext) -> None:
        self.began += 1
        self.most = max(self.most, self.began - self.ended)
        self.deliveries.append(ctx.receipt.delivery_count)
        if self.began > self.quick:
            await self.door.wait()
        self.ended += 1


async def send(app: Matador, count: int) -> None:
    await app.send_many(OrderPlaced(f"o-{n}") for n in range(count))


async def test_quick_callbacks_are_read_ahead_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_LONGEST_WAIT", 600.0)
    transport, handler = FaultyTransport(), QuickThenSlow(10_000)
    async with make_app(transport, handler, topology=TOPOLOGY) as app:
        await send(app, 2000)
        await settled(app)
    assert 10 < max(transport.limits) <= MOST_HELD
    assert (handler.ended, handler.most) == (2000, 1), "still no more at once than slots"
    assert not any(isinstance(one, Release) for one in transport.settled), "none has waited long"


async def test_a_queue_whose_messages_may_run_once_only_is_not_read_ahead() -> None:
    transport, handler = FaultyTransport(), QuickThenSlow(10_000)
    once = subscribed(handler, idempotent="no")
    async with make_app(transport, once, topology=TOPOLOGY) as app:
        await send(app, 2000)
        await settled(app)
    assert max(transport.limits) <= 10


async def test_what_waits_for_a_slow_callback_goes_to_other_workers_uncounted() -> None:
    # Waits as long as by default, or a slow machine would give back quick ones, too.
    transport, handler = FaultyTransport(), QuickThenSlow(1000)
    async with make_app(transport, handler, topology=TOPOLOGY) as app:
        await send(app, 2000)
        await wait_for(lambda: handler.began == 1010)

        async def nothing_hoarded() -> bool:
            return (await memory(app).depth("shop.events")).in_flight == 10

        await wait_for(nothing_hoarded)
        given_back = sum(isinstance(one, Release) for one in transport.settled)
        assert 0 < given_back <= MOST_HELD - 10
        assert app.state.processing == 10
        handler.door.set()
        await settled(app)
    assert (handler.ended, set(handler.deliveries)) == (2000, {1})


async def test_what_was_read_ahead_is_given_back_on_a_stop() -> None:
    transport, handler = FaultyTransport(), QuickThenSlow(1000)
    async with make_app(transport, handler, topology=TOPOLOGY) as app:
        await send(app, 2000)
        await wait_for(lambda: handler.began == 1010)
        await app.pause()
        depth = await memory(app).depth("shop.events")
        assert (depth.in_flight, depth.ready) == (10, 990)
        handler.door.set()
        await app.resume()
        await settled(app)
    assert (handler.ended, set(handler.deliveries)) == (2000, {1})


class Pushing(FaultyTransport):
    """Its broker pushes, and is told how much."""

    def __init__(self) -> None:
        super().__init__()
        self.prefetch: list[int] = []

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        subscription: Any = await super().subscribe(queue, prefetch=prefetch)
        self.prefetch.append(prefetch)

        async def set_prefetch(prefetch: int) -> None:
            self.prefetch.append(prefetch)

        subscription.set_prefetch = set_prefetch
        return subscription


async def test_a_broker_that_pushes_is_told_how_much_to_push(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_module, "_LONGEST_WAIT", 0.05)
    transport, handler = Pushing(), QuickThenSlow(1000)
    async with make_app(transport, handler, topology=TOPOLOGY) as app:
        await send(app, 1200)
        await wait_for(lambda: handler.began == 1010)
        await wait_for(lambda: MOST_HELD in transport.prefetch and transport.prefetch[-1] == 10)
        handler.door.set()
        await settled(app)


async def test_one_at_a_time_is_one_at_a_time_for_a_broker_that_pushes() -> None:
    transport, handler = Pushing(), QuickThenSlow(10_000)
    one = Topology("shop", queues=[WorkQueue("events", concurrency=1)])
    async with make_app(transport, handler, topology=one) as app:
        await send(app, 500)
        await settled(app)
    assert (handler.ended, transport.prefetch) == (500, [1])


@pytest.mark.parametrize("concurrency", [2, 10, 60])
async def test_slow_callbacks_are_not_read_ahead_of(
    concurrency: int, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_AHEAD_SECONDS", 0.02)

    async def slow(envelope: Envelope[Any], ctx: EventContext) -> None:
        manual_clock.advance(0.03)

    transport = Pushing()
    few = Topology("shop", queues=[WorkQueue("events", concurrency=concurrency)])
    async with make_app(transport, slow, topology=few, clock=manual_clock) as app:
        await send(app, 500)
        await settled(app)
    assert max(transport.limits) <= concurrency
    assert transport.prefetch == [concurrency]


async def test_what_is_resized_to_one_at_a_time_is_not_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_ASK_CONCURRENCY_EVERY", 0.01)
    transport, handler = Pushing(), QuickThenSlow(10_000)
    wanted = [10]

    class Wanted(Hooks):
        async def get_queue_concurrency(self, queue: str) -> int:
            return wanted[0]

    async with make_app(transport, handler, topology=TOPOLOGY, hooks=Wanted()) as app:
        await send(app, 2000)
        await settled(app)
        assert max(transport.limits) > 10
        wanted[0] = 1
        await wait_for(lambda: app.consumer_health[0].concurrency == 1)
        await send(app, 1)  # answers the receive that was waiting
        await settled(app)
        transport.limits.clear()
        await send(app, 500)
        await settled(app)
    assert set(transport.limits) == {1}
    assert transport.prefetch[-1] == 1


class Refusing(Pushing):
    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        subscription: Any = await super().subscribe(queue, prefetch=prefetch)

        async def refuse(prefetch: int) -> None:
            self.prefetch.append(prefetch)
            raise RuntimeError("no")

        subscription.set_prefetch = refuse
        return subscription


async def test_a_broker_that_cannot_change_what_it_pushes_loses_nothing() -> None:
    transport, handler = Refusing(), QuickThenSlow(10_000)
    async with make_app(transport, handler, topology=TOPOLOGY) as app:
        await send(app, 1000)
        await settled(app)
    assert (handler.ended, MOST_HELD in transport.prefetch) == (1000, True)


async def test_health_says_how_queues_are_consumed() -> None:
    handler = QuickThenSlow(0)
    async with make_app(None, handler, topology=TOPOLOGY) as app:
        (queue,) = app.consumer_health
        assert (queue.queue, queue.running, queue.handled) == ("shop.events", 0, 0)
        assert app.health().status == "healthy"
        await send(app, 12)
        await wait_for(lambda: handler.began == 10)
        (queue,) = app.consumer_health
        assert (queue.running, queue.concurrency, queue.stalled) == (10, 10, False)
        handler.door.set()
        await settled(app)
        assert app.consumer_health[0].handled == 12
    assert app.health().status == "unhealthy"
    assert app.consumer_health == ()


async def test_a_queue_whose_messages_run_one_after_the_other_is_not_read_ahead() -> None:
    transport, handler = FaultyTransport(), QuickThenSlow(10_000)
    one = Topology("shop", queues=[WorkQueue("events", concurrency=1)])
    async with make_app(transport, handler, topology=one) as app:
        await send(app, 500)
        await settled(app)
    assert max(transport.limits) == 1


class Counting(FaultyTransport):
    """Counts deliveries at the cost of a round trip, and is told how many it may count ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: list[int] = []

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        subscription: Any = await super().subscribe(queue, prefetch=prefetch)
        subscription.read_ahead = self.ahead.append
        return subscription


@pytest.mark.parametrize(
    ("concurrency", "idempotent", "told"), [(10, "yes", True), (10, "no", False), (1, "yes", True)]
)
async def test_counting_ahead_is_allowed_where_messages_may_run_again(
    concurrency: int, idempotent: Any, told: bool
) -> None:
    """With a concurrency of 1, too: it takes one message at a time all the same."""
    transport, handler = Counting(), subscribed(QuickThenSlow(10_000), idempotent=idempotent)
    topology = Topology("shop", queues=[WorkQueue("events", concurrency=concurrency)])
    async with make_app(transport, handler, topology=topology) as app:
        await send(app, 2000)
        await settled(app)
    assert bool(transport.ahead) == told
    if concurrency == 1:
        assert max(transport.limits) == 1
    assert all(0 <= one <= MOST_COUNTED for one in transport.ahead)


class SlowToSettle(Counting):
    """Settles nothing while its door is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.door = asyncio.Event()
        self.door.set()

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        await self.door.wait()
        return await super().settle(settlements)


async def test_as_much_as_is_counted_ahead_is_handled_while_others_are_being_settled() -> None:
    transport, handler = SlowToSettle(), subscribed(quick := QuickThenSlow(10_000))
    async with make_app(transport, handler, topology=TOPOLOGY) as app:
        await send(app, 2000)
        await settled(app)
        while transport.ahead[-1] != MOST_COUNTED:  # a busy machine is not quick at once
            await send(app, 500)
            await settled(app)
        transport.door.clear()
        before = quick.ended
        await send(app, 2000)
        unsettled = 2 * MOST_HELD + MOST_COUNTED
        await wait_for(lambda: quick.ended - before > unsettled)
        for _ in range(100):  # more would begin meanwhile
            await asyncio.sleep(0)
        assert quick.ended - before <= unsettled + MOST_HELD
        transport.door.set()
        await settled(app)
    assert (quick.ended, set(quick.deliveries)) == (before + 2000, {1})
