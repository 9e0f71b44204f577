"""Who holds what: stale entries, fencing, consumers that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.own_time import OwnTime
from tests.support.taking import take_stored
from tests.transports.redis.conftest import Open, OpenEither

from matador.errors import LeaseLostError
from matador.model.message import Complete, DeadLetter, Release, Retry
from matador.testing import wait_for
from matador.testing.compliance.bench import bodies

pytestmark = pytest.mark.broker


async def test_what_a_worker_held_that_vanished_is_claimed_and_counted(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(heartbeat=0.4)
    lane = f"{prefix}:{{shop.events}}:0"
    await bench.send("a", "b", "c")
    await client.xreadgroup("matador", "ghost~500", {lane: ">"}, count=2)
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
    patient = await open_bench("events", "slow", lease=30, heartbeat=0.4)
    await bench.send("a")
    stale = await bench.receive_one(await bench.subscribe())
    fresh = await patient.receive_one(await patient.subscribe())
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
    await patient.complete([fresh])
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
    assert list(await bench.transport.renew([old.receipt, new.receipt])) == [False, True]
    await bench.complete([new])


async def test_a_release_wakes_another_worker_at_once(open_bench: Open) -> None:
    holder, idle = await open_bench(lease=30), await open_bench(lease=30)
    await holder.send("a")
    delivery = await holder.receive_one(await holder.subscribe())
    waiting = asyncio.create_task(idle.receive_one(await idle.subscribe()))
    early, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not early
    await holder.settle(Release(delivery.receipt))
    async with OwnTime() as own:
        again = await waiting
    assert own.seconds < 1
    assert again.receipt.delivery_count == 1


async def test_a_consumer_leaves_no_trace_once_it_holds_nothing(
    open_bench: Open, client: Any, prefix: str
) -> None:
    lane = f"{prefix}:{{shop.events}}:0"

    async def consumers() -> list[str]:
        return [row["name"].decode() for row in await client.xinfo_consumers(lane, "matador")]

    bench = await open_bench(lease=1)
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
    taken = await take_stored(bench.transport, bench.name(), [stored.position for stored in seen])
    assert sorted(bodies(taken)) == ["a", "later"]
    receipts = [one.receipt for one in taken]
    assert list(await bench.transport.renew(receipts)) == [True, True]
    again = await bench.receive(await bench.subscribe(), 2)
    assert [one.receipt.delivery_count for one in again] == [2, 2]
    assert list(await bench.transport.renew(receipts)) == [False, False]


# -- workers of two configurations side by side ----------------------------------------------------


async def stop_beating(bench: Any) -> None:
    """As if the process stood still: lists have no renewals, their workers beat."""
    for upkeep in getattr(bench.transport, "_upkeep", {}).values():
        await upkeep.close()


async def test_a_worker_with_a_short_lease_leaves_what_one_with_a_long_lease_holds(
    open_either: OpenEither,
) -> None:
    patient, hasty = await open_either(lease=60), await open_either(lease=0.2)
    await patient.send("a")
    held = await patient.receive_one(await patient.subscribe())
    await stop_beating(patient)
    hasty.quiet = 1.0
    subscription = await hasty.subscribe()
    await hasty.nothing_comes(subscription)
    if hasty.can.browse:
        (seen,) = [one async for one in hasty.transport.browse(hasty.name())]
        assert list(await take_stored(hasty.transport, hasty.name(), [seen.position])) == []
    await patient.settle(Release(held.receipt))
    again = await hasty.receive_one(subscription)
    assert again.receipt.delivery_count == 1
    await hasty.complete([again])


async def test_a_worker_with_a_long_lease_claims_what_one_with_a_short_lease_has_lost(
    open_either: OpenEither,
) -> None:
    hasty, patient = await open_either(lease=0.3), await open_either(lease=60, heartbeat=0.4)
    await hasty.send("a")
    lost = await hasty.receive_one(await hasty.subscribe())
    await stop_beating(hasty)
    claimed = await patient.receive_one(await patient.subscribe())
    assert claimed.receipt.delivery_count == 2
    (outcome,) = await hasty.transport.settle([Complete(lost.receipt)])
    assert isinstance(outcome, LeaseLostError)


async def test_a_renewal_holds_for_the_lease_of_whoever_renews(open_bench: Open) -> None:
    holder, hasty = await open_bench(lease=1), await open_bench(lease=0.1)
    await holder.send("a")
    held = await holder.receive_one(await holder.subscribe())
    waiting = asyncio.create_task(hasty.receive_one(await hasty.subscribe()))
    loop = asyncio.get_running_loop()
    until = loop.time() + 2.5
    renewed = loop.time()
    while not waiting.done() and renewed < until:
        now = loop.time()
        if list(await holder.transport.renew([held.receipt])) == [False]:
            break
        renewed = now
        await asyncio.wait([waiting], timeout=0.3)
    claimed = await waiting
    # However late the last renewal was: it held for the lease of the one who renewed.
    assert loop.time() - renewed > 0.9
    assert claimed.receipt.delivery_count == 2


async def test_what_several_workers_lost_is_claimed_in_order(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(lease=30)
    lane = f"{prefix}:{{shop.events}}:0"
    await bench.send(*map(str, range(9)))
    for number in range(9):
        ghost = f"ghost-{number % 3}~100"
        await client.xreadgroup("matador", ghost, {lane: ">"}, count=1)
    waiting = bench.receive(await bench.subscribe(), 9)
    assert bodies(await waiting) == [str(number) for number in range(9)]


async def test_many_that_are_held_do_not_hide_one_that_is_lost(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(lease=0.2)
    lane = f"{prefix}:{{shop.events}}:0"
    await bench.send(*map(str, range(50)))
    await client.xreadgroup("matador", "patient~600000", {lane: ">"}, count=49)
    await client.xreadgroup("matador", "ghost~100", {lane: ">"}, count=1)
    assert bodies([await bench.receive_one(await bench.subscribe())]) == ["49"]
