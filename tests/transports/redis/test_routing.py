"""Exchanges, temporary queues and replies on a server that forgets, and that others write to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.redis import OwnServer
from tests.transports.redis.test_connection import kill_clients

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.message import Message, Properties
from matador.model.topology import Binding, Exchange, Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.redis import RedisTransport

pytestmark = pytest.mark.broker

ROUTED = Topology(
    "t",
    queues=["q", WorkQueue("mine", expires=60)],
    exchanges=["e"],
    bindings=[Binding("e", "q", "a.#"), Binding("e", "mine", "#")],
)


def message(key: str = "a", **options: Any) -> Message:
    return Message("m", "", b"x", properties=Properties(routing_key=key), **options)


@pytest_asyncio.fixture
async def transport(server: OwnServer, prefix: str) -> AsyncIterator[RedisTransport]:
    transport = RedisTransport(server.url, prefix=prefix)
    await transport.connect()
    await transport.apply_topology(ROUTED)
    yield transport
    await transport.disconnect()


async def forget_everything(client: Any, prefix: str) -> None:
    """What a server without persistence does when it is restarted."""
    keys = [key async for key in client.scan_iter(match=f"{prefix}*")]
    await client.unlink(*keys)


async def test_what_the_server_has_lost_is_declared_again(
    transport: RedisTransport, client: Any, prefix: str
) -> None:
    assert list(await transport.publish("e", [message()])) == [2]
    await forget_everything(client, prefix)
    assert list(await transport.publish("e", [message()])) == [1], "nobody consumes the other one"
    await client.unlink(transport._key("t.q"))
    assert list(await transport.publish("e", [message()])) == [1]
    assert (await transport.depth("t.q")).ready == 2


async def test_a_consumed_temporary_queue_comes_back(
    transport: RedisTransport, client: Any, prefix: str
) -> None:
    subscription = await transport.subscribe("t.mine", prefetch=1)
    receiving = asyncio.create_task(subscription.receive(1))
    await forget_everything(client, prefix)
    await kill_clients(client)

    async def routed() -> bool:
        try:
            return list(await transport.publish("e", [message("b")])) == [1]
        except MatadorError:
            return False

    await wait_for(routed, timeout=15, message="the queue to be back")
    async with asyncio.timeout(10):
        assert (await receiving)[0].body == b"x"


async def test_another_process_keeps_a_temporary_queue_that_it_consumes(
    transport: RedisTransport, server: OwnServer, prefix: str, client: Any
) -> None:
    other = RedisTransport(server.url, prefix=prefix)
    await other.connect()
    subscription = await other.subscribe("t.mine", prefetch=1)
    await client.unlink(f"{transport._key('t.mine')}:used")  # as if nobody had used it for long
    await other._declare_used(await other._client.connection())
    assert await client.exists(f"{transport._key('t.mine')}:used")
    await subscription.close()
    await other.disconnect()


async def test_nothing_is_left_of_an_expired_queue(
    transport: RedisTransport, client: Any, prefix: str
) -> None:
    await transport.publish("e", [message("b"), message("b", delay=60), message("b", priority=3)])
    await client.unlink(f"{transport._key('t.mine')}:used")
    await transport._routes.sweep()
    keys = [key async for key in client.scan_iter(match=f"{prefix}*mine*")]
    assert keys == []
    routes = f"{prefix}:{{routes}}"
    assert await client.hgetall(f"{routes}:temporary") == {}
    assert set(await client.hgetall(f"{routes}:bindings")) == {b"t.q"}
    with pytest.raises(QueueNotFoundError):
        await transport.subscribe("t.mine", prefetch=1)


async def test_what_others_write_does_no_harm(
    transport: RedisTransport, client: Any, prefix: str
) -> None:
    routes = f"{prefix}:{{routes}}"
    await client.hset(f"{routes}:exchanges", mapping={b"\xff": "topic", "odd": "odd"})
    odd: dict[str | bytes, str] = {"a": "{", "b": "[1]", "c": '[["e", 1]]', b"\xff": "[]", "d": ""}
    await client.hset(f"{routes}:bindings", mapping=odd)
    await client.hset(f"{routes}:bindings", "no.such.queue", '[["e", "#"], ["gone", "#"]]')
    await client.hset(f"{routes}:temporary", mapping={b"\xff\xfe": "1", "gone": "x"})
    await client.hincrby(routes, "number", 7)
    await transport._routes.sweep()
    assert list(await transport.publish("e", [message()])) == [2]
    more = Topology("t", queues=["a"], exchanges=["e"], bindings=[Binding("e", "a", "a")])
    await transport.apply_topology(more)
    assert list(await transport.publish("e", [message()])) == [3]


async def test_all_queues_get_a_message_or_none(transport: RedisTransport, client: Any) -> None:
    assert list(await transport.publish("e", [message()])) == [2]
    key = f"{transport._key('t.mine')}:0"
    await client.unlink(key)
    await client.set(key, "not a stream")
    (outcome,) = await transport.publish("e", [message()])
    assert isinstance(outcome, MatadorError)
    assert (await transport.depth("t.q")).ready == 1
    await client.unlink(key)
    assert list(await transport.publish("e", [message()])) == [2]


async def test_an_exchange_keeps_its_type(transport: RedisTransport) -> None:
    (note,) = await transport.apply_topology(Topology("u", exchanges=[Exchange("e", "fanout")]))
    assert "'topic'" in note.text


async def test_more_messages_than_one_script_takes_keep_their_order(
    transport: RedisTransport,
) -> None:
    many = [
        Message(str(number), "", b"%d" % number, properties=Properties(routing_key="a"))
        for number in range(1200)
    ]
    assert list(await transport.publish("e", many)) == [2] * 1200
    subscription = await transport.subscribe("t.q", prefetch=1200)
    found: list[str] = []
    async with asyncio.timeout(20):
        while len(found) < 1200:
            found += [one.id for one in await subscription.receive(500)]
    assert found == [str(number) for number in range(1200)]


async def test_replies_expire_by_themselves(
    transport: RedisTransport, client: Any, prefix: str
) -> None:
    address = await transport.reply_address()
    reply = Message("", address, b"1", properties=Properties(correlation_id="c"))
    assert list(await transport.send([reply])) == [None]
    keys = [key async for key in client.scan_iter(match=f"{prefix}*reply*")]
    assert len(keys) == 2
    for key in keys:
        assert 0 < await client.pttl(key) <= 60_000
    await transport.disconnect()
    assert [key async for key in client.scan_iter(match=f"{prefix}*reply*")] == []
    await transport.connect()
    assert list(await transport.send([reply])) == [None]
    assert [key async for key in client.scan_iter(match=f"{prefix}*reply*")] == []


async def test_replies_come_after_the_connection_was_lost(
    transport: RedisTransport, client: Any
) -> None:
    replies, address = await transport.replies(), await transport.reply_address()
    await kill_clients(client)

    async def answered() -> bool:
        try:
            reply = Message("", address, b"1", properties=Properties(correlation_id="c"))
            return list(await transport.send([reply])) == [None]
        except MatadorError:
            return False

    await wait_for(answered)
    async with asyncio.timeout(10):
        assert (await replies.receive(10))[0].body == b"1"
