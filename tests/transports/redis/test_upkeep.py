"""Maintenance beside messages that somebody holds, and with errors in the middle of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.redis import is_reading
from tests.transports.redis.conftest import Keyed, Open, OpenEither, OpenList
from tests.transports.redis.test_connection import kill_clients
from tests.transports.redis.test_full import full

from matador.errors import MatadorError
from matador.model.message import Complete, DeadLetter, Delivery, Once, Release
from matador.model.topology import DeadLetterQueue, DeadLetters, WorkQueue
from matador.testing import wait_for
from matador.testing.compliance.bench import bodies, collect
from matador.transports.redis import upkeep
from matador.transports.redis.client import script

pytestmark = pytest.mark.broker


async def consumers(client: Any, lane: str) -> dict[str, int]:
    """The consumers of a lane, and how many entries each holds."""
    rows = await client.xinfo_consumers(lane, "matador")
    return {row["name"].decode().partition("~")[0]: row["pending"] for row in rows}


async def run(bench: Keyed, name: str, *arguments: str | int) -> Any:
    transport: Any = bench.transport
    return await transport._client.run(script(name), [bench.key()], arguments)


async def letters_of(bench: Keyed, count: int, first: int = 0) -> None:
    """Put some letters among the dead ones."""
    subscription = await bench.subscribe()
    await bench.send(*map(str, range(first, first + count)))
    deliveries = await bench.receive(subscription, count)
    await bench.settle(*[DeadLetter(one.receipt, "undeliverable", "r") for one in deliveries])
    await subscription.close()


async def hold_letters(bench: Keyed, count: int) -> list[Delivery]:
    subscription = await bench.transport.subscribe(bench.dead_letters(), prefetch=count)
    return await bench.receive(subscription, count)


# -- consumers -------------------------------------------------------------------------------------


async def test_pruning_removes_who_holds_nothing_and_nobody_else(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench(lease=30)
    lane = f"{bench.key()}:0"
    await bench.send("a", "b")
    await client.xreadgroup("matador", "holder", {lane: ">"}, count=1)
    await client.xreadgroup("matador", "idle", {lane: ">"}, count=1)
    ((id_, _),) = (await client.xrange(lane))[1:]
    await client.xack(lane, "matador", id_)
    await run(bench, "prune", "", 3_600_000)
    assert await consumers(client, lane) == {"holder": 1, "idle": 0}, "both were seen lately"

    async def pruned() -> bool:
        await run(bench, "prune", "", 1)
        return await consumers(client, lane) == {"holder": 1}

    await wait_for(pruned)
    assert (await client.xpending(lane, "matador"))["pending"] == 1


async def test_a_consumed_queue_is_pruned_now_and_then(
    open_bench: Open, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_PRUNE_EVERY", 0.0)
    monkeypatch.setattr(upkeep, "_UNSEEN", 1)
    bench = await open_bench(heartbeat=0.2)
    lane = f"{bench.key()}:0"
    await bench.send("a")
    await client.xreadgroup("matador", "holder~600000", {lane: ">"}, count=1)
    await client.execute_command("XGROUP", "CREATECONSUMER", lane, "matador", "idle")
    await bench.subscribe()

    async def pruned() -> bool:
        return await consumers(client, lane) == {"holder": 1}

    await wait_for(pruned)


async def test_who_leaves_takes_nothing_along(open_bench: Open, client: Any) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True), lease=30)
    await bench.send(bench.message("a", priority=3))
    subscription = await bench.subscribe()
    held = await bench.receive_one(subscription)
    await subscription.close()
    assert list((await consumers(client, f"{bench.key()}:3")).values()) == [1]
    assert await consumers(client, f"{bench.key()}:0") == {}
    await bench.complete([held])


# -- limits of dead letters ------------------------------------------------------------------------


async def test_a_limit_drops_no_letter_that_somebody_holds(open_bench: Open) -> None:
    bench = await open_bench(
        dead_letters=DeadLetters(undeliverable=DeadLetterQueue(max_length=3)), lease=30
    )
    await letters_of(bench, 3)
    held = await hold_letters(bench, 2)
    assert bodies(held) == ["0", "1"]
    await letters_of(bench, 5, first=3)
    seen = bodies(await collect(bench.transport.browse(bench.dead_letters())))
    assert {"0", "1"} <= set(seen)
    await bench.complete(held)
    left = bodies(await collect(bench.transport.browse(bench.dead_letters())))
    assert left[-1:] == ["7"]
    assert len(left) <= 3


async def test_what_was_given_back_counts_as_any_other_letter(open_bench: Open) -> None:
    bench = await open_bench(
        dead_letters=DeadLetters(undeliverable=DeadLetterQueue(max_length=3)), lease=30
    )
    await letters_of(bench, 3)
    first, second, third = await hold_letters(bench, 3)
    await bench.settle(Release(first.receipt), Release(third.receipt))
    await letters_of(bench, 300, first=3)
    assert (await bench.transport.depth(bench.dead_letters())).total == 3
    left = bodies(await collect(bench.transport.browse(bench.dead_letters())))
    assert left == ["1", "301", "302"]
    await bench.complete([second])


async def test_time_to_live_ends_no_letter_that_somebody_holds(open_bench: Open) -> None:
    bench = await open_bench(
        dead_letters=DeadLetters(undeliverable=DeadLetterQueue(ttl=0.3)), lease=30
    )
    await letters_of(bench, 3)
    (held,) = await hold_letters(bench, 1)

    async def others_are_gone() -> bool:
        return (await bench.transport.depth(bench.dead_letters())).total == 1

    await wait_for(others_are_gone)
    await letters_of(bench, 1, first=3)
    assert bodies(await collect(bench.transport.browse(bench.dead_letters()))) == ["0", "3"]
    assert list(await bench.transport.renew([held.receipt])) == [True]
    await bench.settle(Release(held.receipt))

    async def all_are_gone() -> bool:
        return (await bench.transport.depth(bench.dead_letters())).total == 0

    await wait_for(all_are_gone)


async def test_no_letter_goes_before_its_time(open_bench: Open) -> None:
    bench = await open_bench(dead_letters=DeadLetters(undeliverable=DeadLetterQueue(ttl=600)))
    await letters_of(bench, 3)
    assert (await bench.transport.depth(bench.dead_letters())).ready == 3


# -- retention, purging ----------------------------------------------------------------------------


async def test_the_end_of_a_retention_ends_nothing_that_is_held_or_waits(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench(WorkQueue("events", retention=0.1), lease=30)
    subscription = await bench.subscribe()
    await bench.send("done", "held", "released", "waits")
    done, held, released = await bench.receive(subscription, 3)
    await bench.settle(Complete(done.receipt), Release(released.receipt))
    # Somebody else's notes about what is done are in nobody's way.
    odd = {b"\xff": 1, b"0:": 1, b"0:x": 1, b"delayed:1-1": 1, b"nothing": 1}
    await client.zadd(f"{bench.key()}:done", odd)

    async def swept() -> bool:
        await bench.transport.depth(bench.name())
        return await client.exists(f"{bench.key()}:done") == 0

    await wait_for(swept)
    seen = await collect(bench.transport.browse(bench.name()))
    assert [(one.body, one.state) for one in seen] == [
        (b"held", "in-flight"),
        (b"released", "ready"),
        (b"waits", "ready"),
    ]
    await bench.complete([held])


async def test_a_purge_leaves_what_somebody_holds(open_either: OpenEither) -> None:
    bench = await open_either()
    subscription = await bench.subscribe()
    await bench.send("held", "released", "waits", bench.message("later", delay=60))
    held, released = await bench.receive(subscription, 2)
    await bench.settle(Release(released.receipt))
    purging: Any = bench.transport
    assert await purging.purge(bench.name()) == 3
    depth = await purging.depth(bench.name())
    assert (depth.ready, depth.delayed, depth.in_flight) == (0, 0, 1)
    await bench.complete([held])


async def test_a_seal_forgets_the_ids_of_its_part_and_no_other(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench()
    message = bench.message("a")
    for batch in (1, 2, 3):
        await bench.transport.send_once([message], Once("scope", batch))
    await bench.transport.seal(Once("scope", 2))
    for batch in (1, 2, 3):
        await bench.transport.send_once([message], Once("scope", batch))
    assert await bench.count(bench.name()) == 3
    notes = await client.keys(f"{bench.key()}:once:scope:*")
    assert [note.rpartition(b":")[2] for note in notes] == [b"3"]


# -- errors in the middle --------------------------------------------------------------------------


async def test_what_was_lost_on_the_way_comes_back_and_what_arrived_stays(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench(lease=30)
    subscription = await bench.subscribe()
    await bench.send("arrived", "lost")
    (arrived,) = await bench.receive(subscription, 1)
    consumer = arrived.receipt.handle[0].consumer
    await client.xreadgroup("matador", consumer, {f"{bench.key()}:0": ">"})
    waiting = asyncio.create_task(bench.receive_one(subscription))
    await wait_for(lambda: is_reading(subscription))
    await kill_clients(client)
    lost = await waiting
    assert (lost.body, lost.receipt.delivery_count) == (b"lost", 1)
    assert list(await bench.transport.renew([arrived.receipt])) == [True]
    await bench.complete([arrived, lost])


async def test_lists_know_what_arrived_too(open_list: OpenList, client: Any) -> None:
    bench = await open_list(lease=30)
    transport: Any = bench.transport
    base, consumer = transport._key(bench.name()), transport._consumer
    subscription = await bench.subscribe()
    await client.rpush(f"{base}:ready", b"odd", b"odd, and lost")
    await bench.send("arrived", "lost")
    odd = await bench.receive_one(subscription)
    await client.lmove(f"{base}:ready", f"{base}:held:{consumer}", "LEFT", "RIGHT")
    arrived = await bench.receive_one(subscription)
    await client.lmove(f"{base}:ready", f"{base}:held:{consumer}", "LEFT", "RIGHT")
    waiting = asyncio.create_task(bench.receive(subscription, 2))
    await wait_for(lambda: is_reading(subscription))
    await kill_clients(client)
    lost = await waiting
    assert sorted(bodies(lost)) == ["lost", "odd, and lost"]
    assert {one.receipt.delivery_count for one in lost} == {1}
    await bench.complete([odd, arrived, *lost])


async def test_a_list_that_is_something_else_keeps_nobody_from_taking_back(
    open_list: OpenList, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await open_list(lease=0.2)
    transport: Any = bench.transport
    base = transport._key(bench.name())
    await client.set(f"{base}:held:broken", "something else")
    await client.rpush(f"{base}:held:ghost", b"1:0:x")
    await client.set(f"{base}:delayed", "something else")
    await client.zadd(f"{base}:consumers", {"broken": 1, "ghost": 2})
    assert (await bench.receive_one(await bench.subscribe())).body == b"x"
    await wait_for(lambda: "WRONGTYPE" in caplog.text)


async def is_up(bench: Any) -> bool:
    try:
        return await bench.count(bench.name()) is not None
    except MatadorError:
        return False


async def test_a_full_server_is_connected_again_and_room_is_made(
    open_either: OpenEither, client: Any
) -> None:
    """What is finished makes room: a worker must get that far on a server that is full."""
    bench = await open_either()
    await bench.send("a", "b")
    held = await bench.receive(await bench.subscribe(), 2)
    async with full(client):
        await kill_clients(client)
        await wait_for(lambda: is_up(bench))
        assert list(await bench.transport.settle([Complete(one.receipt) for one in held])) == [
            None,
            None,
        ]


async def test_a_worker_says_that_it_lives_on_a_full_server(
    open_list: OpenList, client: Any
) -> None:
    bench = await open_list(lease=30)
    await bench.subscribe()
    transport: Any = bench.transport
    base = transport._key(bench.name())
    before = await wait_for(lambda: client.zscore(f"{base}:consumers", transport._consumer))
    async with full(client):
        await transport._client.run(script("upkeep", "list"), [base], [transport._consumer, 90_000])
    after = await client.zscore(f"{base}:consumers", transport._consumer)
    assert after > before + 50_000


async def test_renewing_needs_no_room(open_bench: Open, client: Any) -> None:
    bench = await open_bench(lease=30)
    await bench.send("a")
    held = await bench.receive_one(await bench.subscribe())
    async with full(client):
        assert list(await bench.transport.renew([held.receipt])) == [True]
