"""Consumers that come back after all that can happen to them, and counts that mean something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.support.rabbitmq import Raw, connections, cut, cut_and_reconnect, eventually

from matador.errors import LeaseLostError, NotConnectedError, QueueNotFoundError
from matador.model.message import Complete, DeadLetter, Delivery, Message, Release, Retry
from matador.model.topology import Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.rabbitmq.deliveries import AmqpHold

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]

Make = Callable[..., RabbitMQTransport]
PATIENCE = 10.0


@pytest.fixture
async def queue(transport: RabbitMQTransport, namespace: str) -> str:
    topology = Topology(namespace, queues=["events", WorkQueue("urgent", priorities=True)])
    await transport.apply_topology(topology)
    return f"{namespace}.events"


async def send(transport: RabbitMQTransport, queue: str, *bodies: bytes) -> None:
    messages = [Message(body.decode(), queue, body) for body in bodies]
    assert await transport.send(messages) == [None] * len(bodies)


async def receive(subscription: Subscription, count: int = 1) -> list[Delivery]:
    got: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(got) < count:
            more = await subscription.receive(count - len(got))
            assert more, "closed"
            got += more
    return got


def channel_of(delivery: Delivery) -> Any:
    hold = delivery.receipt.handle
    assert isinstance(hold, AmqpHold)
    return cast("Any", hold.holder.channel)


# -- accidents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1], ids=["publishing", "consuming"])
async def test_a_cut_connection_is_made_again_and_consumers_with_it(
    transport: RabbitMQTransport, queue: str, which: int
) -> None:
    subscription = await transport.subscribe(queue, prefetch=10)
    waiting = asyncio.create_task(receive(subscription, 1))
    await cut_and_reconnect(transport, which)
    await send(transport, queue, b"after")
    assert [one.body for one in await waiting] == [b"after"], "the same call goes on waiting"


async def test_receipts_of_a_lost_connection_are_refused_and_harmless(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, b"a")
    subscription = await transport.subscribe(queue, prefetch=10)
    (stale,) = await receive(subscription)
    cut(connections(transport)[1])
    (fresh,) = await receive(subscription)
    assert (fresh.body, fresh.receipt.redelivered) == (b"a", True)
    assert fresh.receipt.delivery_count == 2
    outcomes = await transport.settle(
        [
            Complete(stale.receipt),
            Release(stale.receipt),
            Retry(stale.receipt, Message("m", queue, b"twice?")),
            DeadLetter(stale.receipt, "undeliverable", "why"),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError] * 4
    assert await transport.settle([Complete(fresh.receipt)]) == [None]
    await subscription.close()
    assert raw.count(queue) == raw.count(f"{queue}.undeliverable") == 0


async def test_a_deleted_queue_is_made_again_if_it_is_ours(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    subscription = await transport.subscribe(queue, prefetch=10)
    waiting = asyncio.create_task(receive(subscription, 1))
    raw.channel.queue_delete(queue)

    async def sent() -> bool:
        return await transport.send([Message("m", queue, b"after")]) == [None]

    await wait_for(sent, message="the queue and its binding")
    assert [one.body for one in await waiting] == [b"after"]


async def test_a_deleted_queue_of_somebody_else_is_a_loud_failure(
    transport: RabbitMQTransport, namespace: str, raw: Raw
) -> None:
    raw.declare_queue(namespace)
    subscription = await transport.subscribe(namespace, prefetch=10)
    waiting = asyncio.create_task(receive(subscription, 1))
    raw.channel.queue_delete(namespace)
    with pytest.raises(QueueNotFoundError):
        await waiting
    with pytest.raises(QueueNotFoundError):
        await subscription.receive(1)
    raw.declare_queue(namespace)
    await send(transport, namespace, b"after")
    assert [one.body for one in await receive(subscription)] == [b"after"], "and then it works"
    raw.channel.queue_delete(namespace)


async def test_a_channel_closed_for_an_unknown_tag_is_opened_again(
    transport: RabbitMQTransport, queue: str
) -> None:
    await send(transport, queue, b"a")
    subscription = await transport.subscribe(queue, prefetch=10)
    (stale,) = await receive(subscription)
    channel_of(stale)._raw.basic_ack(999)
    (fresh,) = await receive(subscription)
    assert fresh.receipt.redelivered
    assert type((await transport.settle([Complete(stale.receipt)]))[0]) is LeaseLostError
    assert await transport.settle([Complete(fresh.receipt)]) == [None]
    assert transport.state.status == "connected", "only the channel was lost"


async def test_a_publishing_channel_that_is_closed_is_opened_again(
    transport: RabbitMQTransport, queue: str
) -> None:
    publisher = cast("Any", transport._supervisor.connection.publisher)
    publisher._channel._raw.basic_publish("no such exchange", "x", b"")
    await wait_for(lambda: publisher._channel is None, message="closed")
    await send(transport, queue, b"after")


async def test_who_gives_up_tells_the_receiver(make: Make, namespace: str, raw: Raw) -> None:
    transport = make(reconnect="immediate", reconnect_attempts=1)
    await transport.connect()
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    subscription = await transport.subscribe(f"{namespace}.events", prefetch=1)
    waiting = asyncio.create_task(receive(subscription))
    await asyncio.sleep(0)
    object.__setattr__(transport._address, "hosts", (("127.0.0.1", 1),))
    cut(connections(transport)[0])
    with pytest.raises(NotConnectedError, match="gave up"):
        await waiting
    assert transport.state.status == "failed"


async def test_what_was_deleted_meanwhile_is_there_with_the_new_connection(
    transport: RabbitMQTransport, queue: str, namespace: str, raw: Raw
) -> None:
    raw.channel.queue_delete(queue)
    raw.channel.exchange_delete(f"{namespace}.exchange")
    await cut_and_reconnect(transport, 0)
    # Before anybody sends: that would have it made again, too.
    raw.publish(f"{namespace}.exchange", queue, b"by somebody else", {})
    assert raw.count(queue) == 1


# -- counting --------------------------------------------------------------------------------------


async def test_a_release_carries_on_what_was_counted_before(
    transport: RabbitMQTransport, queue: str
) -> None:
    await send(transport, queue, b"a")
    first = await transport.subscribe(queue, prefetch=1)
    await receive(first)
    cut(connections(transport)[1])  # counted: nobody knows how far the handler came
    (second,) = await receive(first)
    assert second.receipt.delivery_count == 2
    assert await transport.settle([Release(second.receipt)]) == [None]
    (third,) = await receive(first)
    assert (third.receipt.delivery_count, third.receipt.redelivered) == (2, True)
    assert "x-matador-deliveries" not in third.headers
    cut(connections(transport)[1])
    (fourth,) = await receive(first)
    assert fourth.receipt.delivery_count == 3


async def test_what_a_classic_queue_does_not_count_is_counted_all_the_same(
    transport: RabbitMQTransport, queue: str, namespace: str
) -> None:
    urgent = f"{namespace}.urgent"
    await send(transport, urgent, b"a")
    subscription = await transport.subscribe(urgent, prefetch=1)
    for expected in (1, 2, 3, 4):  # or a message that kills its workers would come for ever
        (delivery,) = await receive(subscription)
        receipt = delivery.receipt
        assert (receipt.delivery_count, receipt.redelivered) == (expected, expected > 1)
        cut(connections(transport)[1])


async def test_a_successor_counts_from_the_beginning(
    transport: RabbitMQTransport, queue: str
) -> None:
    await send(transport, queue, b"a")
    subscription = await transport.subscribe(queue, prefetch=1)
    await receive(subscription)
    cut(connections(transport)[1])
    (delivery,) = await receive(subscription)
    again = Message("a", queue, b"b", delivery.headers)
    assert await transport.settle([Retry(delivery.receipt, again)]) == [None]
    (successor,) = await receive(subscription)
    assert (successor.receipt.delivery_count, successor.receipt.redelivered) == (1, False)


# -- acknowledging ---------------------------------------------------------------------------------


async def test_only_what_was_settled_is_acknowledged(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, *[b"%d" % number for number in range(10)])
    subscription = await transport.subscribe(queue, prefetch=10)
    deliveries = await receive(subscription, 10)
    chosen = [deliveries[place] for place in (7, 0, 1, 4, 2)]  # a row at the front, and single ones
    await transport.settle([Complete(one.receipt) for one in chosen])
    cut(connections(transport)[1])
    left = await receive(subscription, 5)
    assert sorted(one.body for one in left) == [b"3", b"5", b"6", b"8", b"9"]


async def test_a_consumer_holds_no_more_than_its_prefetch(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, *[b"%d" % number for number in range(10)])
    subscription = await transport.subscribe(queue, prefetch=3)
    deliveries = await receive(subscription, 3)
    assert raw.count(queue) == 7
    await transport.settle([Complete(deliveries[1].receipt)])
    await receive(subscription, 1)
    assert raw.count(queue) == 6


async def test_a_paused_consumer_holds_nothing_and_counts_nothing(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, *[b"%d" % number for number in range(5)])
    subscription = await transport.subscribe(queue, prefetch=5)
    (first,) = await subscription.receive(1)
    await subscription.pause()
    assert raw.count(queue) == 4
    await transport.settle([Complete(first.receipt)])
    deliveries = await receive(subscription, 4)
    assert sorted(one.body for one in deliveries) == [b"1", b"2", b"3", b"4"]
    assert not any(one.receipt.redelivered for one in deliveries)
    await transport.settle([Complete(one.receipt) for one in deliveries])
    assert raw.count(queue) == 0


async def test_a_receive_that_is_cancelled_after_a_pause_leaves_one_consumer(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    subscription = await transport.subscribe(queue, prefetch=2)
    await subscription.pause()
    for _ in range(3):
        waiting = asyncio.create_task(subscription.receive(1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await send(transport, queue, *[b"%d" % number for number in range(5)])
    await receive(subscription, 2)
    # One from before there was room for two more; a second consumer would hold the other two.
    assert raw.count(queue) == 2


async def test_after_a_pause_one_at_a_time_is_pushed_until_all_is_well(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, *[b"%d" % number for number in range(9)])
    subscription = await transport.subscribe(queue, prefetch=4)
    (suspect,) = await subscription.receive(1)
    for left in (8, 7, 6):
        await subscription.pause()
        assert raw.count(queue) == left
        await transport.settle([Complete(suspect.receipt)])
        (suspect,) = await subscription.receive(4)
        assert raw.count(queue) == left - 1
    deliveries = [suspect, *await receive(subscription, 4)]
    assert raw.count(queue) == 1
    assert not any(one.receipt.redelivered for one in deliveries)


async def test_what_is_on_its_way_when_a_consumer_leaves_is_not_counted(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, *[b"%d" % number for number in range(600)])
    for turn in range(10):
        subscription = await transport.subscribe(queue, prefetch=20)
        for _ in range(5):
            deliveries = await subscription.receive(10)
            assert not any(one.receipt.redelivered for one in deliveries)
            await transport.settle([Complete(one.receipt) for one in deliveries])
        await (subscription.pause() if turn % 2 else subscription.close())
        await subscription.close()
    left = raw.count(queue)
    subscription = await transport.subscribe(queue, prefetch=left)
    deliveries = await receive(subscription, left)
    assert not any(one.receipt.redelivered for one in deliveries)


async def test_a_paused_consumer_comes_back_after_a_cut(
    transport: RabbitMQTransport, queue: str
) -> None:
    subscription = await transport.subscribe(queue, prefetch=5)
    await subscription.pause()
    await cut_and_reconnect(transport, 0, 1)
    await send(transport, queue, b"after")
    (delivery,) = await receive(subscription, 1)
    assert delivery.body == b"after"


async def test_a_closed_subscription_keeps_its_channel_until_all_is_settled(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, b"a", b"b")
    subscription = await transport.subscribe(queue, prefetch=10)
    first, second = await receive(subscription, 2)
    channel = channel_of(first)
    await subscription.close()
    assert await transport.settle([Complete(first.receipt)]) == [None]
    assert channel.is_open
    assert await transport.settle([Complete(second.receipt)]) == [None]
    await wait_for(lambda: not channel.is_open, message="the channel to be closed")
    eventually(lambda: raw.count(queue) == 0, "both acknowledged")


async def test_deliveries_of_one_id_are_kept_apart(
    transport: RabbitMQTransport, queue: str
) -> None:
    same = [Message("same", queue, body) for body in (b"a", b"b")]
    assert await transport.send(same) == [None, None]
    subscription = await transport.subscribe(queue, prefetch=10)
    first, second = await receive(subscription, 2)
    assert await transport.settle([Complete(second.receipt)]) == [None]
    assert await transport.settle([Release(first.receipt)]) == [None]
    assert [one.body for one in await receive(subscription)] == [b"a"]


# -- how much is pushed ----------------------------------------------------------------------------


async def test_how_much_is_pushed_can_be_changed_and_counts_nothing(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    await send(transport, queue, *[b"%d" % number for number in range(20)])
    subscription = await transport.subscribe(queue, prefetch=2)
    eventually(lambda: raw.count(queue) == 18, "two are pushed")
    await subscription.set_prefetch(6)
    held = await receive(subscription, 6)
    assert raw.count(queue) == 14
    await subscription.set_prefetch(2)
    await transport.settle([Complete(one.receipt) for one in held])
    deliveries = await receive(subscription, 2)
    assert raw.count(queue) == 12, "no more than two are pushed again"
    await transport.settle([Complete(one.receipt) for one in deliveries])
    for prefetch in (8, 2, 8, 2, 8):  # in full flow
        await subscription.set_prefetch(prefetch)
        more = await receive(subscription, 2)
        deliveries += more
        await transport.settle([Complete(one.receipt) for one in more])
    deliveries += (last := await receive(subscription, 2))
    await transport.settle([Complete(one.receipt) for one in last])
    assert not any(one.receipt.redelivered for one in deliveries)
    bodies = [one.body for one in (*held, *deliveries)]
    assert sorted(bodies) == sorted(b"%d" % number for number in range(20))


async def test_a_consumer_that_comes_back_is_pushed_as_much_as_before(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    subscription = await transport.subscribe(queue, prefetch=2)
    await subscription.set_prefetch(6)
    await cut_and_reconnect(transport, 1)
    await send(transport, queue, *[b"%d" % number for number in range(10)])
    await receive(subscription, 6)
    assert raw.count(queue) == 4
    await subscription.pause()
    await subscription.close()
    eventually(lambda: raw.count(queue) == 4, "six are held by the receiver")
