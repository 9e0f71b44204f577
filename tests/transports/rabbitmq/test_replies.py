"""Answers by direct reply-to: they keep coming after everything that can happen to a channel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pika
import pytest
from chaos.proxy import Proxy

from matador.errors import NotConnectedError, QueueNotFoundError
from matador.model.message import Complete, Message, Properties
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.rabbitmq import RabbitMQTransport, sender


@pytest.fixture
async def queue(transport: RabbitMQTransport, namespace: str) -> str:
    """The queue of the questions."""
    await transport.apply_topology(Topology(namespace, queues=["questions"]))
    return f"{namespace}.questions"


async def ask(transport: RabbitMQTransport, queue: str, replies: Subscription, text: str) -> bytes:
    """Send a question, answer it, and return the answer."""
    address = await transport.reply_address()
    question = Message("q", queue, text.encode(), properties=Properties(reply_to=address))
    assert list(await transport.send([question])) == [None]
    subscription = await transport.subscribe(queue, prefetch=1)
    async with asyncio.timeout(10):
        (delivery,) = await subscription.receive(1)
        await transport.settle([Complete(delivery.receipt)])
        await subscription.close()
        assert delivery.properties is not None
        target = delivery.properties.reply_to
        assert target is not None
        assert target.startswith(f"{address}.")
        assert list(await transport.send([Message("a", target, delivery.body * 2)])) == [None]
        (answer,) = await replies.receive(1)
    return answer.body


async def test_answers_come_after_the_broker_closed_the_channel(
    transport: RabbitMQTransport, queue: str, namespace: str
) -> None:
    replies = await transport.replies()
    assert await ask(transport, queue, replies, "a") == b"aa"
    (outcome,) = await transport.publish(f"{namespace}.nowhere", [Message("m", queue, b"")])
    assert isinstance(outcome, QueueNotFoundError), "RabbitMQ closes the channel for this"
    assert await ask(transport, queue, replies, "b") == b"bb"


async def test_answers_come_after_the_connection_was_lost(
    transport: RabbitMQTransport, queue: str
) -> None:
    replies = await transport.replies()
    session: Any = transport._supervisor.connection
    session.publishing.cut()
    await wait_for(lambda: transport.state.status == "reconnecting")
    await wait_for(lambda: transport.state.status == "connected")
    assert await ask(transport, queue, replies, "a") == b"aa"


async def test_an_answer_to_somebody_who_is_gone_harms_nobody(
    transport: RabbitMQTransport, queue: str, make: Callable[..., RabbitMQTransport]
) -> None:
    other = make()
    await other.connect()
    address = await other.reply_address()
    await other.send([Message("q", queue, b"", properties=Properties(reply_to=address))])
    await other.disconnect()
    subscription = await transport.subscribe(queue, prefetch=1)
    (delivery,) = await subscription.receive(1)
    assert delivery.properties is not None
    assert delivery.properties.reply_to is not None
    answers = [Message("a", delivery.properties.reply_to, b""), Message("m", queue, b"")]
    assert list(await transport.send(answers)) == [None, None]
    assert transport.state.status == "connected"


async def test_replies_end_with_the_transport_and_can_be_asked_for_again(
    transport: RabbitMQTransport, queue: str
) -> None:
    replies = await transport.replies()
    waiting = asyncio.create_task(replies.receive(1))
    await asyncio.sleep(0)
    await transport.disconnect()
    assert list(await waiting) == []
    with pytest.raises(NotConnectedError):
        await transport.replies()
    await transport.connect()
    again = await transport.replies()
    assert again is not replies
    assert await ask(transport, queue, again, "a") == b"aa"


# -- the connection on which callers are looked up -------------------------------------------------


async def address_of(client: RabbitMQTransport, server: RabbitMQTransport, queue: str) -> str:
    """Where a server sends replies to a client."""
    mine = await client.reply_address()
    assert await client.send([Message("q", queue, b"", properties=Properties(reply_to=mine))])
    subscription = await server.subscribe(queue, prefetch=1)
    async with asyncio.timeout(20):
        (delivery,) = await subscription.receive(1)
    await server.settle([Complete(delivery.receipt)])
    await subscription.close()
    assert delivery.properties is not None
    assert delivery.properties.reply_to is not None
    return delivery.properties.reply_to


def reply_to(address: str, body: bytes = b"a") -> Message:
    return Message("", address, body, properties=Properties(transient=True))


@pytest.fixture
async def behind(url: str) -> AsyncIterator[tuple[Proxy, RabbitMQTransport]]:
    """A server behind a network that can fail."""
    port = pika.URLParameters(url).port
    with Proxy(port) as proxy:
        transport = RabbitMQTransport(url.replace(f":{port}", f":{proxy.port}"))
        await transport.connect()
        yield proxy, transport
        proxy.heal()
        await transport.disconnect()


async def test_replies_are_sent_though_no_caller_can_be_looked_up(
    transport: RabbitMQTransport, queue: str
) -> None:
    """Each look-up would take ten seconds, one after the other, and be tried for every reply."""
    address = await address_of(transport, transport, queue)
    replies = await transport.replies()
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # new connections get no answer
        transport._supervisor.connection.consuming.port = deaf.getsockname()[1]
        async with asyncio.timeout(60):
            for number in range(20):
                assert await transport.send([reply_to(address, b"%d" % number)]) == [None]
                assert [one.body for one in await replies.receive(1)] == [b"%d" % number]


async def test_a_connection_that_does_not_answer_is_not_asked_again(
    behind: tuple[Proxy, RabbitMQTransport], transport: RabbitMQTransport, queue: str
) -> None:
    proxy, server = behind
    address = await address_of(transport, server, queue)
    replies = await transport.replies()
    await server.send([reply_to("amq.rabbitmq.reply-to.rubbish")])  # opens it
    silent = server._sender._callers._connection
    assert silent is not None
    proxy.hold()
    sending = asyncio.create_task(server.send([reply_to(address)]))
    await wait_for(
        lambda: server._sender._callers._connection is None, timeout=15, message="given up"
    )
    proxy.heal()
    async with asyncio.timeout(60):
        assert await sending == [None]
        assert [one.body for one in await replies.receive(1)] == [b"a"]
    assert silent.is_closed


async def test_nobody_waits_while_a_stranger_is_looked_up(
    transport: RabbitMQTransport, make: Callable[..., RabbitMQTransport], queue: str
) -> None:
    server = make()
    await server.connect()
    address = await address_of(transport, server, queue)
    replies = await transport.replies()
    stranger = "amq.rabbitmq.reply-to.rubbish"
    async with asyncio.timeout(30):
        await server.send([reply_to(address, b"known from now on")])
        await replies.receive(1)
        async with server._sender._callers._asking:  # as long as others are looked up
            messages = [reply_to(stranger), reply_to(address, b"1"), reply_to(address, b"2")]
            sending = asyncio.create_task(server.send(messages))
            bodies: list[bytes] = []
            while len(bodies) < 2:
                bodies += [one.body for one in await replies.receive(2)]
            assert bodies == [b"1", b"2"]
            assert not sending.done()
        assert await sending == [None, None, None]


async def test_many_strangers_do_not_displace_a_caller_who_is_replied_to(
    transport: RabbitMQTransport, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_MOST_CALLERS", 3)
    address = await address_of(transport, transport, queue)
    for number in range(6):
        await transport.send([reply_to(address)])
        await transport.send([reply_to(f"amq.rabbitmq.reply-to.rubbish{number}")])
        assert address in transport._sender._callers._harmful
    assert len(transport._sender._callers._harmful) == 3
