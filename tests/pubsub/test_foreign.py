"""Programs written with nothing but pika, as the wire format says, on the other side."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.pubsub import Place, place_on
from tests.support.rabbitmq import Raw

from matador.pubsub import AckStrategy, DeadLetterOptions, MessageContext, Subscriber
from matador.rpc import RpcServer
from matador.testing import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]


@pytest_asyncio.fixture
async def rabbit(tmp_path: Path) -> AsyncIterator[Place]:
    async with place_on("rabbitmq", tmp_path) as place:
        yield place


async def test_a_retry_that_its_full_queue_refuses_stops_no_worker(rabbit: Place) -> None:
    """The worker holds all it may: nothing but giving up on the retry makes room."""
    queue = rabbit.queue("orders")
    sub = rabbit.subscriber("orders", concurrency=1, ack=AckStrategy(max_retries=3))
    begun, filled, good = asyncio.Event(), asyncio.Event(), list[str]()

    @sub.on("#")
    async def handle(message: str) -> None:
        if message == "good":
            good.append(message)
            return
        begun.set()
        await filled.wait()
        raise ValueError("never")

    with Raw(rabbit.url) as raw:
        raw.declare_queue(queue, x_max_length=1, x_overflow="reject-publish")
        async with sub:
            raw.publish(rabbit.exchange, "a", b'"bad"', {}, message_id="m-1")
            await asyncio.wait_for(begun.wait(), 20)
            raw.publish(rabbit.exchange, "a", b'"good"', {})
            filled.set()
            await wait_for(lambda: good == ["good"], timeout=60)
            (letter,) = await rabbit.letters("orders")
    assert (letter.id, letter.body) == ("m-1", b'"bad"')


async def test_their_publisher_and_our_subscriber(rabbit: Place) -> None:
    sub = rabbit.subscriber("analytics")
    seen: list[tuple[Any, MessageContext]] = []

    @sub.on("orders.*")
    async def handle(message: dict[str, Any], ctx: MessageContext) -> None:
        seen.append((message, ctx))
        if ctx.attempts == 2:
            raise ValueError("in the attempt after theirs")

    async with sub:
        with Raw(rabbit.url) as raw:
            raw.publish(
                rabbit.exchange,
                "orders.created",
                b'{"id": 1}',
                {"tenant": "acme", "x-retry-count": 1, "x-first-failure": 1_794_769_357_436},
                content_type="application/json",
                delivery_mode=2,
                correlation_id="c-1",
                message_id="m-1",
                timestamp=round(time.time() * 1000),
            )
            # As little as there can be: no properties, no headers.
            raw.channel.basic_publish(rabbit.exchange, "orders.plain", b'{"id": 2}')
        await wait_for(lambda: len(seen) == 3)
    by_id = [(message["id"], ctx) for message, ctx in seen]
    theirs = [ctx for id_, ctx in by_id if id_ == 1]
    assert [ctx.attempts for ctx in theirs] == [2, 3]
    assert [ctx.message_id for ctx in theirs] == ["m-1", "m-1"]
    assert [ctx.correlation_id for ctx in theirs] == ["c-1", "c-1"]
    assert theirs[0].first_failure == theirs[1].first_failure
    assert theirs[0].first_failure is not None
    assert round(theirs[0].first_failure.timestamp() * 1000) == 1_794_769_357_436
    assert theirs[0].headers["tenant"] == "acme"
    (plain,) = (ctx for id_, ctx in by_id if id_ == 2)
    assert (plain.routing_key, plain.correlation_id, plain.attempts) == ("orders.plain", None, 1)
    assert plain.message_id


async def test_our_publisher_and_their_subscriber(rabbit: Place) -> None:
    queue = rabbit.queue("theirs")
    with Raw(rabbit.url) as raw:
        raw.channel.exchange_declare(rabbit.exchange, "topic", durable=True)
        raw.channel.queue_declare(queue, durable=True)
        raw.channel.queue_bind(queue, rabbit.exchange, "orders.#")
        before = time.time() * 1000
        async with rabbit.publisher() as publisher:
            published = await publisher.publish(
                "orders.created", {"id": 1, "é": None}, metadata={"tenant": "acme", "n": 7}
            )
            await publisher.publish("orders", 2, persistent=False, correlation_id="mine")
        method, properties, body = raw.get(queue)
        assert (method.exchange, method.routing_key) == (rabbit.exchange, "orders.created")
        assert body == '{"id":1,"é":null}'.encode()
        assert properties.content_type == "application/json"
        assert properties.delivery_mode == 2
        assert properties.message_id == published.message_id
        assert len(properties.correlation_id) == 36
        assert before - 1 <= properties.timestamp <= time.time() * 1000 + 1
        assert properties.headers == {"tenant": "acme", "n": 7}
        assert (properties.reply_to, properties.type) == (None, None)
        method, properties, body = raw.get(queue)
        assert (body, properties.delivery_mode) == (b"2", 1)
        assert properties.correlation_id == "mine"
        assert not properties.headers


async def test_the_queues_are_declared_as_theirs(rabbit: Place) -> None:
    """A declaration with other arguments would be refused, and close the channel."""
    sub = rabbit.subscriber("analytics")

    @sub.on("orders.*")
    async def handle(message: int) -> None:
        raise ValueError("over")

    queue = sub.queue
    arguments = {
        "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": f"{queue}.dead",
    }
    with Raw(rabbit.url) as raw:
        raw.channel.exchange_declare("dlx", "direct", durable=True)
        async with sub, rabbit.publisher() as publisher:
            raw.channel.exchange_declare(rabbit.exchange, "topic", durable=True)
            raw.channel.queue_declare(queue, durable=True, arguments=arguments)
            raw.channel.queue_declare(f"{queue}.dlq", durable=True)
            await publisher.publish("orders.made", 1)
            await wait_for(lambda: sub.metrics().messages_dead_lettered == 1)
        _, properties, body = raw.get(f"{queue}.dlq")  # stored before the subscriber was closed
        assert json.loads(body) == 1
        assert properties.headers["x-retry-count"] == 3
        assert properties.headers["x-matador-original-queue"] == queue
        # What another consumer rejects lands there, too: the queue has both arguments.
        raw.channel.basic_publish("", queue, b"2")
        method, _, _ = raw.channel.basic_get(queue)
        raw.channel.basic_nack(method.delivery_tag, requeue=False)
        _, properties, body = raw.get(f"{queue}.dlq")
        assert body == b"2"


@pytest.mark.parametrize("kind", ["subscriber", "server"])
async def test_dead_letters_are_kept_as_their_options_say(rabbit: Place, kind: str) -> None:
    """A declaration with other arguments would be refused, and close the channel."""
    exchange, queue = f"{rabbit.name}.dead", rabbit.queue("orders")
    letters = DeadLetterOptions(exchange=exchange, routing_key="lost", ttl=60, max_length=7)
    receiver: Subscriber | RpcServer = rabbit.subscriber("orders", dead_letters=letters)
    if kind == "server":
        receiver = RpcServer(rabbit.url, queue=queue, dead_letters=letters)

    def handle(data: int) -> None: ...

    if isinstance(receiver, Subscriber):
        receiver.on("#")(handle)
    else:
        receiver.register("any", handle)
    with Raw(rabbit.url) as raw:
        async with receiver:
            arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "lost"}
            raw.channel.queue_declare(queue, durable=True, arguments=arguments)
            limits = {"x-message-ttl": 60_000, "x-max-length": 7}
            raw.channel.queue_declare(f"{queue}.dlq", durable=True, arguments=limits)
            raw.publish(exchange, "lost", b"theirs", {})
            assert (await asyncio.to_thread(raw.get, f"{queue}.dlq"))[2] == b"theirs"
        raw.channel.exchange_delete(exchange)
