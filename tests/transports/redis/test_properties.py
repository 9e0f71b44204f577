"""Properties travel beside the headers, and change nothing for messages without them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.support.redis import OwnServer
from tests.transports.redis.conftest import Open, OpenList

from matador.model.message import DeadLetter, Properties, Retry
from matador.model.topology import Topology
from matador.testing.compliance.bench import Bench
from matador.transports.kit.properties import ALL_PROPERTIES, PROPERTIES_HEADER
from matador.transports.redis import RedisListTransport, RedisPubSubTransport, RedisTransport

pytestmark = pytest.mark.broker

EVERY = Properties("orders.eu", "replies.7", "c-1", "PLACE", 1794769357.5)


@pytest_asyncio.fixture(params=[RedisTransport, RedisListTransport, RedisPubSubTransport])
async def bench(request: pytest.FixtureRequest, server: OwnServer, prefix: str) -> Any:
    transport = request.param(server.url, prefix=prefix)
    await transport.connect()
    topology = Topology("shop", queues=["events"])
    notes = await transport.apply_topology(topology)
    yield Bench(transport, topology, notes, patience=10, quiet=0.1)
    await transport.disconnect()


async def test_every_property_arrives_and_stays_with_a_retry_and_a_dead_letter(bench: Any) -> None:
    assert bench.can.properties == ALL_PROPERTIES
    subscription = await bench.subscribe()
    letters = await bench.transport.subscribe(bench.dead_letters(), prefetch=1)
    message = msgspec.structs.replace(bench.message("a", headers={"h": 1}), properties=EVERY)
    await bench.send(message)
    first = await bench.receive_one(subscription)
    assert (first.headers, first.properties, first.problem) == ({"h": 1}, EVERY, None)
    await bench.settle(Retry(first.receipt, message))
    again = await bench.receive_one(subscription)
    assert again.properties == EVERY
    await bench.settle(DeadLetter(again.receipt, "undeliverable", "r"))
    assert (await bench.receive_one(letters)).properties == EVERY


async def test_an_entry_without_properties_has_its_bytes_unchanged(
    open_bench: Open, open_list: OpenList, client: Any
) -> None:
    streams, lists = await open_bench(), await open_list()
    message = streams.message("a", id="1", headers={"h": 1})
    await streams.send(message)
    ((_, fields),) = await client.xrange(f"{streams.key()}:0")
    assert fields == {b"i": b"1", b"b": b"a", b"h": b'{"h":1}'}
    await lists.send(message)
    transport: Any = lists.transport
    base = transport._key(lists.name())
    assert await client.lrange(f"{base}:ready", 0, -1) == [b'1:0:{"i":"1","h":{"h":1}}\na']


async def test_properties_that_cannot_be_read_make_a_delivery_malformed(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench()
    headers = msgspec.json.encode({PROPERTIES_HEADER: "{", "h": 1})
    await client.xadd(f"{bench.key()}:0", {"i": "1", "b": "a", "h": headers})
    delivery = await bench.receive_one(await bench.subscribe())
    assert (delivery.headers, delivery.properties) == ({"h": 1}, None)
    assert PROPERTIES_HEADER in (delivery.problem or "")
