"""Ordering keys: one at a time and in order, whatever the number of consumers and of failures."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from tests.support.taking import take_stored
from tests.transports.sqlite.conftest import Make, Open

from matador.model.message import Complete, Message, Release, Retry
from matador.model.topology import Topology, WorkQueue
from matador.testing import ManualClock
from matador.transports.sqlite import SqliteTransport

KEYS = 5
EACH = 40


async def test_four_consumers_with_retries_keep_the_order_of_every_key(
    connect: Open, make: Make
) -> None:
    chance = random.Random(7)
    sender = await connect()
    messages = [
        make(f"{number}", ordering_key=f"key-{number % KEYS}", delay=chance.choice([0, 0, 0.01]))
        for number in range(KEYS * EACH)
    ]
    handled: defaultdict[str, list[int]] = defaultdict(list)
    running: set[str] = set()
    done = asyncio.Event()

    async def consume(transport: SqliteTransport) -> None:
        subscription = await transport.subscribe("t.q", prefetch=8)
        while not done.is_set():
            for delivery in await subscription.receive(8):
                receipt = delivery.receipt
                key = str(receipt.ordering_key)
                assert key not in running, "two of one key at once"
                running.add(key)
                await asyncio.sleep(0)
                running.remove(key)
                choice = chance.random()
                if choice < 0.2:
                    retry = Message("r", "t.q", delivery.body, delay=0.005, ordering_key=key)
                    await transport.settle([Retry(receipt, retry)])
                elif choice < 0.3:
                    await transport.settle([Release(receipt)])
                else:
                    handled[key].append(int(delivery.body))
                    await transport.settle([Complete(receipt)])
            if sum(map(len, handled.values())) == len(messages):
                done.set()
                await asyncio.gather(*[transport.disconnect() for transport in consumers])

    consumers = [await connect() for _ in range(4)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for transport in consumers:
            tasks.create_task(consume(transport))
        for start in range(0, len(messages), 10):
            await sender.send(messages[start : start + 10])
    assert len(handled) == KEYS
    assert all(numbers == sorted(numbers) for numbers in handled.values())


async def test_a_delayed_retry_holds_up_its_followers_and_nobody_else(
    connect: Open, make: Make
) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock, lease=100)
    subscription = await transport.subscribe("t.q", prefetch=10)
    await transport.send([make("a1", ordering_key="a"), make("a2", ordering_key="a"), make("b1")])
    first, other = await subscription.receive(10)
    assert [first.body, other.body] == [b"a1", b"b1"]
    again = Message("1", "t.q", b"a1 again", delay=60, ordering_key="a")
    await transport.settle([Retry(first.receipt, again), Complete(other.receipt)])
    depth = await transport.depth("t.q")
    assert (depth.ready, depth.delayed) == (1, 1)
    clock.advance(60)
    (first,) = await subscription.receive(10)
    assert first.body == b"a1 again"
    assert first.receipt.delivery_count == 1
    await transport.settle([Complete(first.receipt)])
    (second,) = await subscription.receive(10)
    assert second.body == b"a2"


async def test_a_follower_with_a_delay_of_its_own_waits_for_both(connect: Open, make: Make) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock, lease=1000)
    subscription = await transport.subscribe("t.q", prefetch=10)
    await transport.send([make("1", ordering_key="a"), make("2", ordering_key="a", delay=60)])
    (first,) = await subscription.receive(10)
    await transport.settle([Complete(first.receipt)])
    assert (await transport.depth("t.q")).delayed == 1
    clock.advance(60)
    (second,) = await subscription.receive(10)
    assert second.body == b"2"


async def test_an_expired_lease_does_not_let_followers_pass(connect: Open, make: Make) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock, lease=30)
    subscription = await transport.subscribe("t.q", prefetch=10)
    await transport.send([make(ordering_key="a") for _ in range(3)])
    for count in (1, 2, 3):
        (delivery,) = await subscription.receive(10)
        assert (delivery.body, delivery.receipt.delivery_count) == (b"1", count)
        clock.advance(31)


async def test_a_message_taken_out_of_turn_goes_back_to_its_place(
    connect: Open, make: Make
) -> None:
    transport = await connect()
    await transport.send([make(ordering_key="a") for _ in range(3)])
    positions = [message.position async for message in transport.browse("t.q")]
    (taken,) = await take_stored(transport, "t.q", positions[1:2])
    await transport.settle([Release(taken.receipt)])
    subscription = await transport.subscribe("t.q", prefetch=10)
    for body in (b"1", b"2", b"3"):
        (delivery,) = await subscription.receive(10)
        assert delivery.body == body
        await transport.settle([Complete(delivery.receipt)])


async def test_a_retry_elsewhere_lets_the_next_one_through(connect: Open, make: Make) -> None:
    transport = await connect(Topology("t", queues=["q", "slow"]))
    await transport.send([make(ordering_key="a"), make(ordering_key="a")])
    subscription = await transport.subscribe("t.q", prefetch=10)
    (first,) = await subscription.receive(10)
    moved = Message("1", "t.slow", b"moved", ordering_key="a")
    assert await transport.settle([Retry(first.receipt, moved)]) == [None]
    (second,) = await subscription.receive(10)
    assert second.body == b"2"
    assert (await transport.depth("t.slow")).ready == 1


async def test_priorities_do_not_break_the_order_of_a_key(connect: Open, make: Make) -> None:
    transport = await connect(Topology("t", queues=[WorkQueue("q", priorities=True)]))
    await transport.send(
        [
            make("low", priority=-5),
            make("none"),
            make("a1", ordering_key="a", priority=1),
            make("a2", ordering_key="a", priority=9),
            make("high", priority=5),
        ]
    )
    subscription = await transport.subscribe("t.q", prefetch=10)
    order: list[str] = []
    while len(order) < 5:
        (delivery,) = await subscription.receive(1)
        order.append(delivery.body.decode())
        await transport.settle([Complete(delivery.receipt)])
    assert order == ["high", "a1", "a2", "low", "none"]
