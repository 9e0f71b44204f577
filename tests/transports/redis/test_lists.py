"""Lists: what a worker held that died comes back, counted; its late settlements are refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.support.own_time import OwnTime
from tests.support.redis import OwnServer, is_reading, plain_client
from tests.transports.redis.conftest import OpenList
from tests.transports.redis.test_connection import kill_clients

from matador.errors import LeaseLostError
from matador.model.message import Complete, DeadLetter, Release, Retry
from matador.model.topology import DeadLetterQueue, DeadLetters
from matador.testing import wait_for
from matador.testing.compliance.bench import Bench, bodies
from matador.transports import transport_from_url
from matador.transports.redis import RedisListTransport

pytestmark = pytest.mark.broker

_BASE = "list:{shop.events}"


def test_the_address_asks_for_lists() -> None:
    assert isinstance(transport_from_url("redis://h?mode=list"), RedisListTransport)


async def freeze(bench: Bench) -> None:
    """As if the process stood still: it beats no more."""
    transport: Any = bench.transport
    for upkeep in transport._upkeep.values():
        await upkeep.close()


async def test_what_a_dead_worker_held_is_handled_by_another(open_list: OpenList) -> None:
    doomed, other = await open_list(lease=0.3), await open_list(lease=0.3)
    await doomed.send("a", "b", "c")
    held = await doomed.receive(await doomed.subscribe(), 2)
    await freeze(doomed)
    received = await other.receive(await other.subscribe(), 3)
    counts = {one.body: one.receipt.delivery_count for one in received}
    assert counts == {b"a": 2, b"b": 2, b"c": 1}
    # It was only frozen, and comes back: whatever it says is refused and changes nothing.
    late = [
        Complete(held[0].receipt),
        Release(held[0].receipt),
        Retry(held[1].receipt, doomed.message("again")),
        Retry(held[1].receipt, doomed.message("elsewhere", queue="slow")),
        DeadLetter(held[1].receipt, "undeliverable", "r"),
    ]
    outcomes = await doomed.transport.settle(late)
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError] * 5
    await other.complete(received)
    for queue in (other.name(), other.name("slow"), other.dead_letters()):
        assert await other.count(queue) == 0


async def test_a_worker_that_beats_keeps_what_it_holds(open_list: OpenList) -> None:
    busy, idle = await open_list(lease=0.3), await open_list(lease=0.3)
    holding, waiting = await busy.subscribe(), await idle.subscribe()
    for _ in range(5):
        await busy.send("a")
        async with OwnTime() as own:
            held = await busy.receive_one(holding)
            stealing = asyncio.create_task(idle.receive_one(waiting))
            await asyncio.wait([stealing], timeout=1)
        if not stealing.done():
            await busy.complete([held])
            stealing.cancel()
            return
        assert own.longest > 0.1, "it was taken away though it beat in time"
        await idle.complete([await stealing])  # the machine was busy for longer than the lease
    raise AssertionError("the machine is too busy to beat in time")


async def test_a_message_moved_to_a_connection_that_was_cut_is_not_lost(
    open_list: OpenList, client: Any
) -> None:
    bench = await open_list(lease=30)
    await bench.send(*map(str, range(500)))
    subscription = await bench.subscribe()
    handled: list[str] = []
    while len(handled) < 500:
        async with asyncio.timeout(20):
            deliveries = await subscription.receive(20)
        assert not any(one.receipt.redelivered for one in deliveries)
        handled += bodies(deliveries)
        if len(handled) % 100 == 0:
            await kill_clients(client)
        settlements = [Complete(one.receipt) for one in deliveries]
        await wait_for(lambda settlements=settlements: _settled(bench, settlements))
    assert sorted(map(int, handled)) == list(range(500))


async def _settled(bench: Bench, settlements: list[Complete]) -> bool:
    try:
        outcomes = await bench.transport.settle(settlements)
    except Exception:
        return False
    return all(outcome is None or "already" in str(outcome) for outcome in outcomes)


async def test_a_waiting_receive_is_woken_by_a_release(open_list: OpenList) -> None:
    holder, idle = await open_list(), await open_list()
    await holder.send("a")
    held = await holder.receive_one(await holder.subscribe())
    subscription = await idle.subscribe()
    waiting = asyncio.create_task(idle.receive_one(subscription))
    await wait_for(lambda: is_reading(subscription))
    await holder.settle(Release(held.receipt))
    async with OwnTime() as own:
        again = await waiting
    assert own.seconds < 1
    assert again.receipt.delivery_count == 1


async def test_what_is_given_back_together_keeps_its_order(open_list: OpenList) -> None:
    bench = await open_list()
    await bench.send("a", "b", "c", "d")
    subscription = await bench.subscribe()
    held = await bench.receive(subscription, 3)
    await bench.settle(*[Release(one.receipt) for one in held])
    assert bodies(await bench.receive(subscription, 4)) == ["a", "b", "c", "d"]


async def test_limits_of_dead_letters_are_noted_as_unsupported(open_list: OpenList) -> None:
    bench = await open_list(DeadLetters(undeliverable=DeadLetterQueue(max_length=2)))
    assert bench.noted(bench.dead_letters())


async def test_nothing_is_left_behind(open_list: OpenList, client: Any, prefix: str) -> None:
    bench = await open_list()
    subscription = await bench.subscribe()
    for _ in range(5):
        await bench.send(*map(str, range(400)))
        await bench.complete(await bench.receive(subscription, 400))
    await bench.transport.disconnect()
    keys = {key.decode() async for key in client.scan_iter(match=f"{prefix}-{_BASE}*")}
    assert keys == {
        f"{prefix}-{_BASE}",
        f"{prefix}-{_BASE}.unhandled",
        f"{prefix}-{_BASE}.undeliverable",
    }


async def test_a_read_of_a_dead_worker_that_waits_on_the_server_loses_no_message(
    open_list: OpenList, client: Any, server: OwnServer
) -> None:
    """As after a pause of the server: nobody has looked after the queue for more than a minute, and
    the worker has died meanwhile. Its read gets the next message; nobody is there to take it."""
    bench = await open_list(lease=0.3)
    base = cast("Any", bench.transport)._key(bench.name())
    await client.zadd(f"{base}:consumers", {"dead~300": 1})
    async with plain_client(server.url) as dead:
        reading = asyncio.create_task(
            dead.blmove(f"{base}:ready", f"{base}:held:dead~300", 0, "LEFT", "RIGHT")
        )
        await wait_for(lambda: is_blocked(client))
        await client.zadd(f"{base}:delayed", {"7:0:due": 1})
        received = await bench.receive_one(await bench.subscribe())
        assert (received.body, received.receipt.delivery_count) == (b"due", 2)
        assert await reading == b"7:0:due"
    await bench.complete([received])
    assert await bench.count(bench.name()) == 0


async def is_blocked(client: Any) -> bool:
    return any(one["cmd"] == "blmove" for one in await client.client_list())
