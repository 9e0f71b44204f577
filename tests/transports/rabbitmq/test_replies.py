"""Answers by direct reply-to: they keep coming after everything that can happen to a channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from matador.errors import NotConnectedError, QueueNotFoundError
from matador.model.message import Complete, Message, Properties
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.rabbitmq import RabbitMQTransport


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
    await wait_for(lambda: transport.state.status == "connected", timeout=10)
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
