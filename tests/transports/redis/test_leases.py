"""Who holds what: stale entries, fencing, consumers that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.transports.redis.conftest import Open

from matador.errors import LeaseLostError
from matador.model.message import Complete, DeadLetter, Release, Retry
from matador.testing import wait_for
from matador.testing.compliance.bench import bodies

pytestmark = pytest.mark.broker


async def test_what_a_worker_held_that_vanished_is_claimed_and_counted(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    lane = f"{prefix}:{{shop.events}}:0"
    await bench.send("a", "b", "c")
    await client.xreadgroup("matador", "ghost", {lane: ">"}, count=2)
    subscription = await bench.subscribe()
    (first,) = await bench.receive(subscription, 1)
    assert bodies([first]) == ["c"], "what nobody holds comes at once"
    stale = await bench.receive(subscription, 2)
    assert sorted(bodies(stale)) == ["a", "b"]
    assert [one.receipt.delivery_count for one in stale] == [2, 2]
    assert all(one.receipt.redelivered for one in stale)
    await bench.complete([first, *stale])


async def test_deliveries_are_counted_until_it_is_called_poison(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(lease=0.2)
    await bench.send("poison")
    subscription = await bench.subscribe()
    counts = [(await bench.receive_one(subscription)).receipt.delivery_count for _ in range(4)]
    assert counts == [1, 2, 3, 4]


async def test_a_claim_takes_no_more_than_it_may(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(lease=0.5)
    await bench.send(*map(str, range(10)))
    await client.xreadgroup("matador", "ghost", {f"{prefix}:{{shop.events}}:0": ">"}, count=10)
    holder = await bench.subscribe()
    assert len(await holder.receive(3)) <= 3
    assert (await bench.transport.depth(bench.name())).in_flight == 10


async def test_every_settlement_of_a_lost_lease_is_refused_and_changes_nothing(
    open_bench: Open,
) -> None:
    bench = await open_bench("events", "slow", lease=0.2)
    await bench.send("a")
    first, second = await bench.subscribe(), await bench.subscribe()
    stale = await bench.receive_one(first)
    fresh = await bench.receive_one(second)
    outcomes = await bench.transport.settle(
        [
            Complete(stale.receipt),
            Release(stale.receipt),
            Retry(stale.receipt, bench.message("again")),
            Retry(stale.receipt, bench.message("elsewhere", queue="slow")),
            DeadLetter(stale.receipt, "undeliverable", "r"),
            DeadLetter(stale.receipt, "undeliverable", "r", bench.message("letter")),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError] * 6
    await bench.complete([fresh])
    for queue in (bench.name(), bench.name("slow"), bench.dead_letters()):
        assert await bench.count(queue) == 0


async def test_a_released_delivery_cannot_be_settled_by_its_old_receipt(open_bench: Open) -> None:
    """The same consumer gets it again, and it counts as the first delivery: the claim differs."""
    bench = await open_bench()
    await bench.send("a")
    subscription = await bench.subscribe()
    old = await bench.receive_one(subscription)
    await bench.settle(Release(old.receipt))
    new = await bench.receive_one(subscription)
    assert (new.receipt.delivery_count, new.receipt.redelivered) == (1, False)
    for settlement in (Complete(old.receipt), Release(old.receipt)):
        (outcome,) = await bench.transport.settle([settlement])
        assert isinstance(outcome, LeaseLostError)
    await bench.complete([new])


async def test_a_release_wakes_another_worker_at_once(open_bench: Open) -> None:
    holder, idle = await open_bench(lease=30), await open_bench(lease=30)
    await holder.send("a")
    delivery = await holder.receive_one(await holder.subscribe())
    waiting = asyncio.create_task(idle.receive_one(await idle.subscribe()))
    early, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not early
    await holder.settle(Release(delivery.receipt))
    async with asyncio.timeout(1):
        again = await waiting
    assert again.receipt.delivery_count == 1


async def test_a_consumer_leaves_no_trace_once_it_holds_nothing(
    open_bench: Open, client: Any, prefix: str
) -> None:
    lane = f"{prefix}:{{shop.events}}:0"

    async def consumers() -> list[str]:
        return [row["name"].decode() for row in await client.xinfo_consumers(lane, "matador")]

    bench = await open_bench()
    await bench.send("a", "b")
    busy, done = await bench.subscribe(), await bench.subscribe()
    await bench.receive_one(busy)
    await bench.complete([await bench.receive_one(done)])
    await busy.close()
    await done.close()
    assert len(await consumers()) == 1, "it holds something: its entries must not be forgotten"
    again = await bench.subscribe()
    await bench.complete([await bench.receive_one(again)])
    await again.close()
    await wait_for(lambda: bench.transport.state.status == "connected")
    assert len(await consumers()) == 1


async def test_the_lease_of_a_taken_message_is_kept_and_lost_like_any_other(
    open_bench: Open,
) -> None:
    bench = await open_bench(lease=0.3)
    await bench.send("a", bench.message("later", delay=60))
    seen = [stored async for stored in bench.transport.browse(bench.name())]
    taken = await bench.transport.take(bench.name(), [stored.position for stored in seen])
    assert sorted(bodies(taken)) == ["a", "later"]
    receipts = [one.receipt for one in taken]
    assert list(await bench.transport.renew(receipts)) == [True, True]
    again = await bench.receive(await bench.subscribe(), 2)
    assert [one.receipt.delivery_count for one in again] == [2, 2]
    assert list(await bench.transport.renew(receipts)) == [False, False]
