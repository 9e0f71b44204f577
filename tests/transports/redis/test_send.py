"""What is stored, for how long, in which keys; and that a long run leaves nothing behind."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.support.redis import OwnServer, is_reading
from tests.transports.redis.conftest import Open

from matador.model.message import Complete, DeadLetter, Once, Release
from matador.model.topology import DeadLetterQueue, DeadLetters, WorkQueue
from matador.testing import wait_for
from matador.testing.compliance.bench import bodies, collect
from matador.transports.redis.topology import key_of

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("queue", "key"),
    [
        ("shop.events", "m:{shop.events}"),
        ("shop.events.unhandled", "m:{shop.events}.unhandled"),
        ("shop.events.undeliverable", "m:{shop.events}.undeliverable"),
        ("shop.undeliverable", "m:{shop}.undeliverable"),
    ],
)
def test_a_queue_and_its_dead_letters_share_a_hash_tag(queue: str, key: str) -> None:
    assert key_of("m", queue) == key


async def test_all_keys_have_the_tag_of_their_queue(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True, retention=60))
    await bench.send(bench.message("a", priority=3), bench.message("later", delay=60), "b")
    subscription = await bench.subscribe()
    first, second = await bench.receive(subscription, 2)
    await bench.settle(Release(first.receipt), DeadLetter(second.receipt, "undeliverable", "r"))
    await bench.transport.send_once([bench.message("c")], Once("scope"))
    keys = [key.decode() async for key in client.scan_iter(match=f"{prefix}:*")]
    tags = {tag for key in keys for tag in re.findall(r"\{(.*?)\}", key)}
    assert tags == {"shop.events", "once:scope"}


async def test_what_was_sent_before_the_first_worker_is_not_skipped(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    await bench.send("early")
    (group,) = await client.xinfo_groups(f"{prefix}:{{shop.events}}:0")
    assert (group["name"], group["last-delivered-id"]) == (b"matador", b"0-0")
    late = await open_bench()
    assert bodies([await late.receive_one(await late.subscribe())]) == ["early"]


async def test_memory_is_flat(open_bench: Open, client: Any, prefix: str) -> None:
    bench = await open_bench()
    lane = f"{prefix}:{{shop.events}}:0"
    subscription = await bench.subscribe()

    async def run(number: int) -> tuple[int, int]:
        for start in range(0, number, 1000):
            await bench.send(*(f"{start + one} {'x' * 200}" for one in range(1000)))
            left = 1000
            while left:
                deliveries = await subscription.receive(400)
                left -= len(deliveries)
                released = deliveries[: len(deliveries) > 1]
                await bench.complete(deliveries[len(released) :])
                for one in released:
                    await bench.settle(Release(one.receipt))
                left += len(released)
        keys = [key async for key in client.scan_iter(match=f"{prefix}:*")]
        sizes = [await client.memory_usage(key, samples=0) for key in keys]
        return len(keys), sum(sizes)

    before = await run(2000)
    after = await run(18_000)
    assert after[0] == before[0]
    assert after[1] < before[1] * 1.5
    assert await client.xlen(lane) == 0
    assert (await client.xpending(lane, "matador"))["pending"] == 0
    assert not any(lane.held for lane in subscription._lanes.values())


async def test_finished_messages_are_trimmed_when_their_time_is_over(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(WorkQueue("events", retention=0.3))
    lane = f"{prefix}:{{shop.events}}:0"
    await bench.send("done", "held")
    subscription = await bench.subscribe()
    done, held = await bench.receive(subscription, 2)
    await bench.complete([done])
    assert await client.xlen(lane) == 2
    assert [one.state for one in await bench.transport.read(bench.name())] == ["done", "in-flight"]

    async def trimmed() -> bool:
        await bench.transport.renew([held.receipt])
        return await client.xlen(lane) == 1

    await wait_for(trimmed)
    assert bodies(await bench.transport.read(bench.name())) == ["held"]
    await bench.complete([held])
    await wait_for(lambda: _is_empty(client, lane))
    assert await client.exists(f"{prefix}:{{shop.events}}:done") == 0


async def _is_empty(client: Any, lane: str) -> bool:
    return await client.xlen(lane) == 0


async def test_a_queue_of_priorities_is_read_again_in_order_of_sending(open_bench: Open) -> None:
    bench = await open_bench(WorkQueue("events", retention=60, priorities=True))
    sent = [bench.message(str(number), priority=number % 4) for number in range(50)]
    await bench.send(*sent)
    await bench.complete(await bench.receive(await bench.subscribe(), 30))
    seen: list[str] = []
    after = None
    while page := await bench.transport.read(bench.name(), after=after, limit=7):
        seen += bodies(page)
        after = page[-1].position
    assert seen == [str(number) for number in range(50)]


async def test_a_delayed_message_is_let_in_once_whoever_dies(open_bench: Open, client: Any) -> None:
    doomed = await open_bench()
    doomed_subscription = await doomed.subscribe()
    await doomed.send(*[doomed.message(str(number), delay=0.3) for number in range(500)])
    # It dies with its connections and its watch, before anything is due.
    await doomed.transport._upkeep[doomed.name()].close()
    await doomed_subscription.close()
    bench = await open_bench()
    received = await bench.receive(await bench.subscribe(), 500)
    assert sorted(map(int, bodies(received))) == list(range(500))
    await bench.complete(received)
    assert await bench.count(bench.name()) == 0


async def test_several_watches_let_each_message_in_once(open_bench: Open) -> None:
    benches = [await open_bench() for _ in range(4)]
    subscriptions = [await bench.subscribe() for bench in benches]
    first = benches[0]
    await first.send(*[first.message(str(n), delay=0.05 + n / 10_000) for n in range(1000)])
    received: list[str] = []

    async def consume(number: int) -> None:
        while deliveries := await subscriptions[number].receive(50):
            received.extend(bodies(deliveries))
            await benches[number].complete(deliveries)

    consuming = [asyncio.create_task(consume(number)) for number in range(4)]
    await wait_for(lambda: len(received) >= 1000)
    for subscription in subscriptions:
        await subscription.close()
    await asyncio.gather(*consuming)
    assert sorted(map(int, received)) == list(range(1000))


async def test_dead_letters_are_kept_up_to_their_number(
    open_bench: Open, client: Any, prefix: str
) -> None:
    limit = DeadLetters(undeliverable=DeadLetterQueue(max_length=5))
    bench = await open_bench(dead_letters=limit)
    await bench.send(*map(str, range(20)))
    deliveries = await bench.receive(await bench.subscribe(), 20)
    await bench.settle(*[DeadLetter(one.receipt, "undeliverable", "r") for one in deliveries])
    letters = await collect(bench.transport.browse(bench.dead_letters()))
    assert bodies(letters) == ["15", "16", "17", "18", "19"]


async def test_a_queue_that_loses_its_priorities_forgets_no_message(open_bench: Open) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    await bench.send(bench.message("high", priority=9), bench.message("low", priority=1))
    plain = await open_bench("events")
    await plain.send(plain.message("new", priority=10))
    received = bodies(await plain.receive(await plain.subscribe(), 3))
    assert received == ["high", "low", "new"]


async def test_a_priority_beyond_the_levels_counts_as_the_nearest(open_bench: Open) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    numbers = {"lowest": -7, "highest": 999, "middle": 5}
    await bench.send(*[bench.message(body, priority=n) for body, n in numbers.items()])
    received = await bench.receive(await bench.subscribe(), 3)
    assert bodies(received) == ["highest", "middle", "lowest"]
    assert [one.receipt.priority for one in received] == [999, 5, -7]


async def test_a_higher_priority_wakes_and_overtakes(open_bench: Open) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    subscription = await bench.subscribe()
    waiting = asyncio.create_task(subscription.receive(1))
    await wait_for(lambda: is_reading(subscription))
    await bench.send(*[bench.message(str(n), priority=n) for n in (1, 9, 5)])
    received = bodies(await waiting)
    assert len(received) == 1, "a waiting read over many lanes takes no more than it may"
    rest = bodies(await bench.receive(subscription, 2))
    assert sorted(received + rest) == ["1", "5", "9"]
    assert rest == sorted(rest, reverse=True)


async def test_what_cannot_be_written_fails_alone(open_bench: Open) -> None:
    bench = await open_bench()
    odd: Any = {"key": object()}
    outcomes = await bench.transport.send(
        [bench.message("a"), bench.message("odd", headers=odd), bench.message("b")]
    )
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert bodies(await bench.drain(bench.name(), 2)) == ["a", "b"]


async def test_many_large_messages_travel_in_parcels(open_bench: Open, server: OwnServer) -> None:
    bench = await open_bench()
    sent = [bench.message(bytes([number]) * 300_000) for number in range(40)]
    assert set(await bench.transport.send(sent)) == {None}
    subscription = await bench.subscribe()
    received = await bench.receive(subscription, 40)
    assert [one.body[0] for one in received] == list(range(40))
    outcomes = await bench.transport.settle([Complete(one.receipt) for one in received])
    assert set(outcomes) == {None}
