"""A message that was delivered again and again is handled alone: it may kill its worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.support.shop import OrderPlaced, make_app, settled, subscribed

from matador import Context, Envelope, StandardRetryPolicy, Topology
from matador.errors import ConnectionFailedError, MatadorError
from matador.model.message import Delivery, Release, Settlement
from matador.runtime import consumer as consumer_module
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.memory import MemoryTransport

TWO_QUEUES = Topology("shop", queues=["events", "billing"])


class Redelivering(MemoryTransport):
    """A transport on which everything was delivered before, so and so often."""

    def __init__(self, deliveries: int) -> None:
        super().__init__()
        self.deliveries = deliveries

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        subscription = await super().subscribe(queue, prefetch=prefetch)
        receive = subscription.receive

        async def receive_again(limit: int) -> Sequence[Delivery]:
            return [self._again(one) for one in await receive(limit)]

        subscription.receive = receive_again
        return subscription

    def _again(self, delivery: Delivery) -> Delivery:
        receipt = msgspec.structs.replace(
            delivery.receipt, delivery_count=self.deliveries, redelivered=True
        )
        return msgspec.structs.replace(delivery, receipt=receipt)


class Room:
    """A callback that counts how many are in it at once; they leave when the door is open."""

    def __init__(self) -> None:
        self.door = asyncio.Event()
        self.inside = self.most = self.left = 0

    async def __call__(self, envelope: Envelope[Any], ctx: Context) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.door.wait()
        await asyncio.sleep(0)
        self.inside -= 1
        self.left += 1


@pytest.mark.parametrize(
    ("max_deliveries", "deliveries", "most"), [(5, 2, 6), (5, 3, 1), (4, 3, 1), (3, 2, 1)]
)
async def test_suspects_run_one_at_a_time(max_deliveries: int, deliveries: int, most: int) -> None:
    room = Room()
    policy = StandardRetryPolicy(max_deliveries=max_deliveries)
    async with make_app(Redelivering(deliveries), room, retry=policy) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(6))
        await wait_for(lambda: room.inside == most)
        room.door.set()
        await settled(app)
    assert (room.left, room.most) == (6, most)


async def test_what_runs_already_does_not_hold_up_the_next_suspect() -> None:
    transport, room = Redelivering(1), Room()
    passed: list[str] = []

    async def handle(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        if envelope.data.order_id == "slow":
            await room(envelope, ctx)
        passed.append(envelope.data.order_id)

    async with make_app(transport, handle) as app:
        await app.send(OrderPlaced("slow"))
        await wait_for(lambda: room.inside == 1)
        transport.deliveries = 3
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(3))
        await wait_for(lambda: len(passed) == 3)
        room.door.set()
    assert passed == ["o-0", "o-1", "o-2", "slow"]


async def test_suspects_of_all_queues_run_one_at_a_time() -> None:
    room = Room()
    subscribers = [subscribed(room, "a"), subscribed(room, "b", queue="billing")]
    async with make_app(
        Redelivering(3), *subscribers, topology=TWO_QUEUES, consume_from=["events", "billing"]
    ) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(4))
        await wait_for(lambda: room.inside == 1)
        room.door.set()
        await settled(app)
        await settled(app, queue="shop.billing")
    assert (room.left, room.most) == (8, 1)


async def test_a_shutdown_runs_the_suspects_in_memory_one_at_a_time() -> None:
    room = Room()
    app = make_app(Redelivering(3), room)
    await app.start()
    await app.send_many(OrderPlaced(f"o-{n}") for n in range(3))
    await wait_for(lambda: room.inside == 1)
    ending = asyncio.create_task(app.shutdown(10))
    await wait_for(lambda: app.state.status == "waiting-handlers")
    room.door.set()
    await ending
    assert (room.left, room.most) == (3, 1)


async def test_a_shutdown_cuts_a_suspect_short_when_time_is_up() -> None:
    room = Room()
    app = make_app(Redelivering(3), room)
    await app.start()
    await app.send_many(OrderPlaced(f"o-{n}") for n in range(3))
    await wait_for(lambda: room.inside == 1)
    async with asyncio.timeout(30):
        await app.shutdown(0.05)
    assert (room.left, room.most) == (0, 1)


async def test_a_suspect_that_hangs_does_not_hold_up_its_worker_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_module, "ALONE_AT_MOST", 0.05)
    transport, room = Redelivering(3), Room()
    passed: list[str] = []

    async def handle(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        if envelope.data.order_id == "hangs":
            await room(envelope, ctx)
        passed.append(envelope.data.order_id)

    async with make_app(transport, handle) as app:
        await app.send(OrderPlaced("hangs"))
        await wait_for(lambda: room.inside == 1)
        transport.deliveries = 1
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(3))
        await wait_for(lambda: len(passed) == 3)
        assert room.inside == 1
        room.door.set()
    assert sorted(passed) == ["hangs", "o-0", "o-1", "o-2"]
    assert "others are handled beside it from now on" in caplog.text


async def test_what_cannot_be_given_back_beside_a_suspect_is_given_back_later() -> None:
    class Stubborn(Redelivering):
        failures = 3

        async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
            if self.failures and any(isinstance(one, Release) for one in settlements):
                self.failures -= 1
                raise ConnectionFailedError("not now")
            return await super().settle(settlements)

    transport, handled = Stubborn(3), Counter[str]()

    async def handle(envelope: Envelope[OrderPlaced]) -> None:
        handled[envelope.data.order_id] += 1

    async with make_app(transport, handle) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(4))
        await settled(app)
    assert handled == {f"o-{n}": 1 for n in range(4)}
    assert transport.failures == 0


async def test_a_pause_that_fails_loses_nothing() -> None:
    class Unpausable(Redelivering):
        async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
            subscription = await super().subscribe(queue, prefetch=prefetch)

            async def pause() -> None:
                raise ConnectionFailedError("not now")

            subscription.pause = pause  # pyright: ignore[reportAttributeAccessIssue] - made one
            return subscription

    handled: list[str] = []

    async def handle(envelope: Envelope[OrderPlaced]) -> None:
        handled.append(envelope.data.order_id)

    async with make_app(Unpausable(3), handle) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(4))
        await settled(app)
    assert sorted(handled) == [f"o-{n}" for n in range(4)]
