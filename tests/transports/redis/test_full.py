"""A server that is full refuses what is new, loses nothing, and goes on when there is room."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.taking import take_stored
from tests.transports.redis.conftest import Open, OpenList

from matador.errors import StorageFullError
from matador.model.message import DeadLetter, Once, Release, Retry
from matador.testing.compliance.bench import Bench, bodies

pytestmark = pytest.mark.broker


@asynccontextmanager
async def full(client: Any) -> AsyncGenerator[None]:
    await client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await client.config_set("maxmemory", 0)


async def check(bench: Bench, client: Any) -> None:
    await bench.send("a", "b", "c", bench.message("later", delay=60))
    subscription = await bench.subscribe()
    first, second = await bench.receive(subscription, 2)
    transport = bench.transport
    async with full(client):
        (outcome,) = await transport.send([bench.message("refused")])
        assert isinstance(outcome, StorageFullError)
        outcomes = await transport.settle(
            [
                Retry(first.receipt, bench.message("a")),
                DeadLetter(second.receipt, "undeliverable", "r"),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [StorageFullError] * 2
        await transport.settle([Release(first.receipt)])
    # There is room again: everything is where it was, or has come back.
    await bench.send("new")
    assert (await bench.count(bench.name()) or 0) >= 5
    await transport.settle([Release(first.receipt), Release(second.receipt)])
    received = bodies(await bench.receive(subscription, 4))
    assert set(received) == {"a", "b", "c", "new"}


async def test_streams(open_bench: Open, client: Any) -> None:
    await check(await open_bench(lease=30), client)


async def test_lists(open_list: OpenList, client: Any) -> None:
    await check(await open_list(lease=30), client)


async def test_a_full_server_takes_no_message_out_of_its_place(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench(lease=30)
    await bench.send("a", bench.message("later", delay=60))
    seen = [stored async for stored in bench.transport.browse(bench.name())]
    positions = [stored.position for stored in seen]
    async with full(client):
        with pytest.raises(StorageFullError):
            await take_stored(bench.transport, bench.name(), positions)
        with pytest.raises(StorageFullError):
            await take_stored(bench.transport, bench.name(), positions[1:])
    assert sorted(bodies(await take_stored(bench.transport, bench.name(), positions))) == [
        "a",
        "later",
    ]


async def test_an_id_is_noted_only_with_its_message(open_bench: Open, client: Any) -> None:
    bench = await open_bench()
    message, once = bench.message("a", id="a"), Once("scope")
    await bench.transport.send_once([bench.message("first")], once)
    async with full(client):
        (outcome,) = await bench.transport.send_once([message], once)
        assert isinstance(outcome, StorageFullError)
    assert list(await bench.transport.send_once([message], once)) == [None]
    assert bodies(await bench.drain(bench.name(), 2)) == ["first", "a"]
