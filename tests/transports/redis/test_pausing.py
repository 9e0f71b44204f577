"""Pauses on Redis, beyond the compliance suite: reads that block, lost groups, a full server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.redis import is_reading
from tests.transports.redis.conftest import Open, OpenEither, OpenList
from tests.transports.redis.test_full import full

from matador.errors import TransportError
from matador.model.message import Complete
from matador.model.topology import Topology, WorkQueue
from matador.testing import wait_for
from matador.testing.compliance.bench import bodies, collect

pytestmark = pytest.mark.broker


async def test_a_read_that_blocks_for_long_hears_of_the_end_of_a_pause(
    open_either: OpenEither,
) -> None:
    one, other = await open_either(heartbeat=120), await open_either(heartbeat=120)
    subscription = await other.subscribe()
    for number in range(3):  # the last time without anything that could be noticed in between
        receiving = asyncio.create_task(other.receive_one(subscription))
        await wait_for(lambda: is_reading(subscription))
        await one.transport.pause_queue(one.name())
        await one.send(str(number))
        if number < 2:
            await asyncio.wait([receiving], timeout=0.1)
        assert not receiving.done()
        await one.transport.resume_queue(one.name())
        async with asyncio.timeout(20):
            delivery = await receiving
        assert bodies([delivery]) == [str(number)]
        await other.complete([delivery])


async def test_a_reader_that_knows_nothing_of_pauses_gets_nothing(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench()
    lane = f"{bench.key()}:0"
    await bench.send("a")
    await bench.transport.pause_queue(bench.name())
    await bench.send("b")
    assert await client.xreadgroup("matador", "older", {lane: ">"}) == []
    assert await client.xreadgroup("matador", "older", {lane: ">"}, block=50) == []
    await bench.transport.resume_queue(bench.name())
    ((_, entries),) = await client.xreadgroup("matador", "older", {lane: ">"}, count=1)
    assert [fields[b"b"] for _, fields in entries] == [b"a"]


async def test_what_is_held_is_not_delivered_again_after_a_pause(open_either: OpenEither) -> None:
    bench = await open_either()
    await bench.send("held", "next")
    subscription = await bench.subscribe()
    held = await bench.receive_one(subscription)
    await bench.transport.pause_queue(bench.name())
    await bench.transport.resume_queue(bench.name())
    other = await bench.receive_one(await bench.subscribe())
    assert bodies([other]) == ["next"]
    await bench.nothing_comes(subscription)
    await bench.settle(Complete(held.receipt), Complete(other.receipt))


async def test_what_is_retained_is_not_delivered_again_after_a_pause(open_bench: Open) -> None:
    bench = await open_bench(WorkQueue("events", retention=60))
    await bench.send("done", "next")
    subscription = await bench.subscribe(prefetch=1)
    await bench.complete([await bench.receive_one(subscription)])
    await bench.transport.pause_queue(bench.name())
    read = await bench.transport.read(bench.name())
    assert [(one.body, one.state) for one in read] == [(b"done", "done"), (b"next", "ready")]
    assert bodies(await collect(bench.transport.browse(bench.name()))) == ["next"]
    await bench.transport.resume_queue(bench.name())
    assert bodies([await bench.receive_one(subscription)]) == ["next"]
    await bench.nothing_comes(subscription)


async def test_a_group_that_is_lost_during_a_pause_is_paused_when_it_is_made_again(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench()
    subscription = await bench.subscribe()
    await bench.transport.pause_queue(bench.name())
    await bench.send("a")
    receiving = asyncio.create_task(bench.receive_one(subscription))
    await wait_for(lambda: is_reading(subscription))
    await client.xgroup_destroy(f"{bench.key()}:0", "matador")
    await asyncio.wait([receiving], timeout=bench.quiet)
    assert not receiving.done()
    await bench.transport.resume_queue(bench.name())
    assert bodies([await receiving]) == ["a"]


async def test_lanes_that_are_added_to_a_paused_queue_are_paused(open_bench: Open) -> None:
    bench = await open_bench()
    await bench.transport.pause_queue(bench.name())
    priorities = Topology("shop", queues=[WorkQueue("events", priorities=True)])
    await bench.transport.apply_topology(priorities)
    await bench.send(bench.message("low", priority=1), bench.message("high", priority=9))
    subscription = await bench.subscribe(prefetch=1)
    await bench.nothing_comes(subscription)
    await bench.transport.resume_queue(bench.name())
    for expected in ("high", "low"):
        delivery = await bench.receive_one(subscription)
        assert bodies([delivery]) == [expected]
        await bench.complete([delivery])


@pytest.mark.parametrize("place", ["nonsense", f"{'9' * 30}-1"])
async def test_a_place_that_somebody_has_overwritten_loses_no_message(
    open_bench: Open, client: Any, place: str
) -> None:
    bench = await open_bench()
    await bench.send("a")
    await bench.transport.pause_queue(bench.name())
    await client.hset(bench.key(), mapping={"paused:0": place, "resumed": "more of it"})
    assert bodies(await collect(bench.transport.browse(bench.name()))) == ["a"]
    await bench.transport.resume_queue(bench.name())
    assert bodies(await bench.drain(bench.name(), 1)) == ["a"]
    await bench.transport.pause_queue(bench.name())
    await bench.transport.resume_queue(bench.name())
    assert await client.hget(bench.key(), "resumed") == b"2"


async def test_what_older_producers_put_into_a_paused_list_comes_behind(
    open_list: OpenList, client: Any
) -> None:
    bench: Any = await open_list(lease=30)
    ready = f"{bench.transport._key(bench.name())}:ready"
    await bench.send("a", "b")
    await bench.transport.pause_queue(bench.name())
    await client.rpush(ready, "c")
    await bench.transport.pause_queue(bench.name())
    assert await client.exists(ready) == 0
    await client.rpush(ready, "d")
    assert (await bench.transport.depth(bench.name())).ready == 4
    await bench.transport.resume_queue(bench.name())
    assert bodies(await bench.drain(bench.name(), 4)) == ["a", "b", "c", "d"]


async def test_a_full_server_pauses_nothing_and_ends_every_pause(
    open_either: OpenEither, client: Any
) -> None:
    bench = await open_either()
    transport, name = bench.transport, bench.name()
    await bench.send("a")
    async with full(client):
        with pytest.raises(TransportError):
            await transport.pause_queue(name)
        assert not await transport.is_paused(name)
    await transport.pause_queue(name)
    async with full(client):
        await transport.resume_queue(name)
        assert not await transport.is_paused(name)
    assert bodies(await bench.drain(name, 1)) == ["a"]


async def test_a_queue_that_is_deleted_takes_its_pause_along(open_bench: Open) -> None:
    bench = await open_bench()
    await bench.transport.pause_queue(bench.name())
    await bench.transport.delete_queue(bench.name())
    await bench.transport.apply_topology(bench.topology)
    assert not await bench.transport.is_paused(bench.name())
    await bench.send("a")
    assert bodies(await bench.drain(bench.name(), 1)) == ["a"]
