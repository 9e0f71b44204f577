"""RPC and pub/sub on the wire, seen by a program that has nothing but an AMQP library."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker
from tests.support.rabbitmq import Raw, cut_and_reconnect, eventually

from matador.errors import QueueNotFoundError
from matador.model.message import Complete, DeadLetter, Message, Properties, Retry
from matador.model.topology import (
    Binding,
    DeadLetterQueue,
    DeadLetters,
    Exchange,
    Topology,
    WorkQueue,
)
from matador.testing import wait_for
from matador.transports.rabbitmq import RabbitMQTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]

# The properties of a message, as pika names them, that nobody has set.
UNSET = dict.fromkeys(
    (
        "content_type",
        "content_encoding",
        "headers",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp",
        "type",
        "user_id",
        "app_id",
        "cluster_id",
    )
)


def served(name: str, **options: Any) -> Topology:
    """The topology of an RPC server, in a namespace that must not be seen on the broker."""
    options.setdefault("dead_letters", DeadLetters(unhandled=False, undeliverable=False))
    return Topology("unseen", queues=[WorkQueue(name, exact=True, create=True)], **options)


def is_now(timestamp: int) -> bool:
    return abs(timestamp - time.time() * 1000) < 60_000


async def test_a_request_has_these_properties_and_no_others(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    await transport.apply_topology(served(f"{namespace}-maths"))
    request = Message(
        "50dbfa1b",
        f"{namespace}-maths",
        b'{"a":1,"b":2}',
        properties=Properties(
            reply_to=await transport.reply_address(),
            correlation_id="c-1",
            type="ADD",
            transient=True,
        ),
    )
    assert list(await transport.send([request])) == [None]
    method, properties, body = raw.get(request.queue)
    assert (method.exchange, method.routing_key, body) == ("", request.queue, b'{"a":1,"b":2}')
    found: dict[str, Any] = dict(properties.__dict__)
    assert is_now(found.pop("timestamp"))
    assert found.pop("reply_to").startswith("amq.rabbitmq.reply-to.")
    expected = UNSET | {
        "content_type": "application/json",
        "delivery_mode": 1,
        "correlation_id": "c-1",
        "message_id": "50dbfa1b",
        "type": "ADD",
    }
    del expected["timestamp"], expected["reply_to"]
    assert found == expected


async def test_a_reply_has_a_content_type_and_the_correlation_id_only(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    await transport.apply_topology(served(f"{namespace}-maths"))
    replies: list[tuple[Any, bytes]] = []
    channel = raw.channel

    def note(_: Any, __: Any, properties: Any, body: bytes) -> None:
        replies.append((properties, body))

    channel.basic_consume("amq.rabbitmq.reply-to", note, auto_ack=True)
    channel.basic_publish(
        "",
        f"{namespace}-maths",
        b"{}",
        pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="c-2", type="add"),
        mandatory=True,
    )
    subscription = await transport.subscribe(f"{namespace}-maths", prefetch=10)
    (request,) = await subscription.receive(10)
    assert request.properties is not None
    assert request.properties.reply_to is not None
    assert (request.properties.type, request.id) == ("add", "")
    own = Properties(correlation_id=request.properties.correlation_id, transient=True)
    reply = Message("", request.properties.reply_to, b"3", properties=own)
    assert list(await transport.send([reply])) == [None]
    await transport.settle([Complete(request.receipt)])

    def arrived() -> bool:
        raw._connection.process_data_events(0.01)  # type: ignore[arg-type] - takes floats
        return bool(replies)

    await asyncio.to_thread(eventually, arrived, "the reply")
    ((properties, body),) = replies
    assert body == b"3"
    expected = UNSET | {"content_type": "application/json", "correlation_id": "c-2"}
    assert vars(properties) == expected


async def test_replies_go_to_queues_of_others_too_and_are_dropped_if_those_are_gone(
    transport: RabbitMQTransport, raw: Raw
) -> None:
    mine = raw.channel.queue_declare("", exclusive=True).method.queue
    properties = Properties(correlation_id="c", transient=True)
    answers = [Message("", queue, b"1", properties=properties) for queue in (mine, "gone-queue")]
    odd = Message("", "amq.rabbitmq.reply-to.rubbish", b"1", properties=properties)
    assert list(await transport.send([*answers, odd])) == [None, None, None]
    _, found, _ = raw.get(mine)
    expected = UNSET | {"content_type": "application/json", "correlation_id": "c"}
    assert vars(found) == expected
    assert transport.state.status == "connected"


async def test_what_is_published_has_these_properties(
    transport: RabbitMQTransport, raw: Raw
) -> None:
    mine = raw.channel.queue_declare("", exclusive=True).method.queue
    raw.channel.queue_bind(mine, "amq.topic", f"{mine}.*")
    notes = await transport.apply_topology(Topology("unseen", exchanges=["amq.topic"]))
    assert list(notes) == [], "the broker's own exchanges are not declared"
    message = Message(
        "50dbfa1b",
        "",
        b'{"id":1}',
        {"tenant": "acme"},
        properties=Properties(routing_key=f"{mine}.created", correlation_id="c-3"),
    )
    assert list(await transport.publish("amq.topic", [message])) == [1]
    method, properties, body = raw.get(mine)
    assert (method.exchange, method.routing_key) == ("amq.topic", f"{mine}.created")
    assert json.loads(body) == {"id": 1}
    found: dict[str, Any] = dict(properties.__dict__)
    assert is_now(found.pop("timestamp"))
    expected = UNSET | {
        "content_type": "application/json",
        "headers": {"tenant": "acme"},
        "delivery_mode": 2,
        "correlation_id": "c-3",
        "message_id": "50dbfa1b",
    }
    del expected["timestamp"]
    assert found == expected


async def test_a_queue_is_declared_as_others_declare_it(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    name = f"{namespace}-maths"
    letters = DeadLetters(
        unhandled=False, undeliverable=False, dlq=DeadLetterQueue(ttl=60, max_length=10)
    )
    notes = await transport.apply_topology(served(name, dead_letters=letters))
    assert list(notes) == []
    # The broker refuses each of these if it differs in anything.
    raw.channel.exchange_declare("dlx", "direct", durable=True)
    raw.channel.queue_declare(
        name,
        durable=True,
        arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": f"{name}.dead"},
    )
    raw.channel.queue_declare(
        f"{name}.dlq", durable=True, arguments={"x-message-ttl": 60_000, "x-max-length": 10}
    )
    raw.publish("dlx", f"{name}.dead", b"theirs", {})
    _, _, body = raw.get(f"{name}.dlq")
    assert body == b"theirs"
    for unseen in ("unseen.exchange", "unseen.dlx"):
        with pytest.raises(ChannelClosedByBroker):
            raw.channel.exchange_declare(unseen, passive=True)


async def test_rejected_by_others_and_dead_lettered_by_us_it_is_in_the_same_queue(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    name = f"{namespace}-maths"
    letters = DeadLetters(unhandled=False, undeliverable=False, dlq=True)
    await transport.apply_topology(served(name, dead_letters=letters))
    raw.publish("", name, b"rejected", {})
    method, _, _ = await asyncio.to_thread(raw.channel.basic_get, name)
    raw.channel.basic_nack(method.delivery_tag, requeue=False)
    _, _, body = raw.get(f"{name}.dlq")
    assert body == b"rejected"
    await transport.send([Message("m", name, b"failed")])
    subscription = await transport.subscribe(name, prefetch=1)
    (delivery,) = await subscription.receive(1)
    outcomes = await transport.settle([DeadLetter(delivery.receipt, "dlq", "why")])
    assert list(outcomes) == [None]
    method, properties, body = raw.get(f"{name}.dlq")
    assert (method.exchange, method.routing_key) == ("dlx", f"{name}.dead")
    assert body == b"failed"
    assert properties.headers["x-matador-dead-letter-reason"] == "why"


async def test_an_unknown_queue_is_an_error(transport: RabbitMQTransport, namespace: str) -> None:
    request = Message("m", f"{namespace}-nobody", b"", properties=Properties(transient=True))
    (outcome,) = await transport.send([request])
    assert isinstance(outcome, QueueNotFoundError)


async def test_a_request_can_be_retried_later(transport: RabbitMQTransport, namespace: str) -> None:
    name = f"{namespace}-maths"
    await transport.apply_topology(served(name))
    await transport.send([Message("m", name, b"again", properties=Properties(type="ADD"))])
    subscription = await transport.subscribe(name, prefetch=1)
    (delivery,) = await subscription.receive(1)
    again = Message("m", name, b"again", delay=0.2, properties=delivery.properties)
    assert list(await transport.settle([Retry(delivery.receipt, again)])) == [None]
    async with asyncio.timeout(10):
        (delivery,) = await subscription.receive(1)
    assert (delivery.id, delivery.properties) == ("m", Properties(type="ADD"))
    await transport.settle([Complete(delivery.receipt)])


async def test_a_temporary_queue_is_not_durable_and_expires(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    topology = Topology(namespace, queues=[WorkQueue("mine", expires=60)])
    assert list(await transport.apply_topology(topology)) == []
    name = f"{namespace}.mine"
    raw.channel.queue_declare(name, durable=False, arguments={"x-expires": 60_000})
    await transport.send([Message("m", name, b"direct")])
    method, _, _ = raw.get(name)
    assert (method.exchange, method.routing_key) == ("", name)


async def test_temporary_queues_and_bindings_are_back_after_a_reconnect(
    transport: RabbitMQTransport, make: Callable[..., RabbitMQTransport], raw: Raw, namespace: str
) -> None:
    exchange = Exchange(f"{namespace}.events")
    mine, gone = (f"{namespace}.{name}" for name in ("mine", "gone"))
    await transport.apply_topology(
        Topology(
            namespace,
            queues=[WorkQueue("mine", expires=60), WorkQueue("gone", expires=60)],
            exchanges=[exchange],
            bindings=[
                Binding(exchange.name, "mine", "a.*"),
                Binding(exchange.name, "mine", "b.*"),
                Binding(exchange.name, "gone"),
            ],
        )
    )
    # A second topology of the same namespace does not replace the first.
    await transport.apply_topology(Topology(namespace, exchanges=[exchange]))
    subscription = await transport.subscribe(mine, prefetch=10)
    await transport.delete_queue(gone)
    await transport.unbind(exchange.name, mine, "b.*")
    await cut_and_reconnect(transport, 0, 1)
    raw.channel.queue_delete(mine)  # as a restarted broker would have lost it
    receiving = asyncio.create_task(subscription.receive(10))

    async def routed() -> bool:
        message = Message("m", "", b"a", properties=Properties(routing_key="a.1"))
        return list(await transport.publish(exchange.name, [message])) == [1]

    await wait_for(routed, timeout=10, message="the binding to be back")
    async with asyncio.timeout(10):
        assert (await receiving)[0].body == b"a"
    other = Message("m", "", b"b", properties=Properties(routing_key="b.1"))
    assert list(await transport.publish(exchange.name, [other])) == [0]
    with pytest.raises(ChannelClosedByBroker):
        raw.channel.queue_declare(gone, passive=True)


async def test_hostile_replies_do_not_end_the_connection(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    name = f"{namespace}-maths"
    await transport.apply_topology(served(name))
    replies, address = await transport.replies(), await transport.reply_address()
    asked = Properties(reply_to=address, correlation_id="c")
    await transport.send([Message("m", name, b"", properties=asked)])
    _, properties, _ = raw.get(name)
    odd: list[pika.BasicProperties] = [
        pika.BasicProperties(headers={"deep": {"a": [{"b": None}]}, "t": True}),
        pika.BasicProperties(correlation_id="someone else's", expiration="0"),
        pika.BasicProperties(),
        pika.BasicProperties(correlation_id="c", content_type="x/y", headers={"big": "x" * 90_000}),
    ]
    for one in odd:
        raw.channel.basic_publish("", properties.reply_to, b"x" * 300_000, one)
    raw.channel.basic_publish("", properties.reply_to, b"", pika.BasicProperties(message_id="end"))
    found: list[Any] = []
    async with asyncio.timeout(10):
        while not found or found[-1].id != "end":
            found += await replies.receive(10)
    assert len(found) == len(odd) + 1
    assert {len(one.body) for one in found[:-1]} == {300_000}
    assert transport.state.status == "connected"
