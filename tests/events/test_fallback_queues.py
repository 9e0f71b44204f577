"""A chain of queues: when one cannot take a message, the next is tried."""

from __future__ import annotations

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    Handler,
    Heard,
    OrderPlaced,
    make_app,
    memory,
    settled,
    subscribed,
)

from matador import Topology
from matador.errors import SendFailedError, SendUnconfirmedError
from matador.model.topology import WorkQueue

CHAIN = Topology(
    "shop",
    queues=[
        WorkQueue("events", fallback="second"),
        WorkQueue("second", fallback="third"),
        "third",
        "alone",
    ],
)


async def test_the_first_queue_takes_it_if_it_can() -> None:
    heard = Heard()
    async with make_app(None, Handler(), topology=CHAIN, hooks=heard, consume_from=()) as app:
        result = await app.send(OrderPlaced("o-1"))
    assert [one.queue for one in result.messages] == ["shop.events"]
    assert heard.of("enqueue_warning") == []


async def test_the_next_one_takes_what_a_queue_cannot() -> None:
    heard, transport, handler = Heard(), FaultyTransport(), Handler()
    transport.refuse_queues = {"shop.events"}
    app = make_app(transport, handler, topology=CHAIN, hooks=heard, consume_from=["second"])
    async with app:
        result = await app.send(OrderPlaced("o-1"))
        (many,) = await app.send_many([OrderPlaced("o-2")])
        await settled(app, queue="shop.second")
    assert [one.queue for one in result.messages + many.messages] == ["shop.second"] * 2
    assert sorted(one.order_id for one in handler.data) == ["o-1", "o-2"]
    first, second = heard.of("enqueue_warning")
    assert first.queue == second.queue == "shop.second"
    assert "could not send to queue shop.events (shop.events is full)" in first.text
    assert "sent to shop.second instead" in first.text
    assert [event.queue for event in heard.of("enqueue_success")] == ["shop.second"] * 2


async def test_every_hop_of_the_chain_is_reported_and_the_last_error_returned() -> None:
    heard, transport = Heard(), FaultyTransport()
    transport.refuse_queues = {"shop.events", "shop.second", "shop.third"}
    app = make_app(transport, Handler(), topology=CHAIN, hooks=heard, consume_from=())
    async with app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
    (error,) = caught.value.result.errors
    assert error.queue == caught.value.queue == "shop.third"
    assert not error.unknown
    assert [event.queue for event in heard.of("enqueue_warning")] == ["shop.second", "shop.third"]
    assert not any("instead" in event.text for event in heard.of("enqueue_warning"))
    assert len(heard.of("enqueue_error")) == 1
    assert heard.of("enqueue_success") == []


async def test_the_third_takes_what_two_cannot() -> None:
    transport = FaultyTransport()
    transport.refuse_queues = {"shop.events", "shop.second"}
    async with make_app(transport, Handler(), topology=CHAIN, consume_from=()) as app:
        result = await app.send(OrderPlaced("o-1"))
        assert len(memory(app).messages("shop.third")) == 1
    assert [one.queue for one in result.messages] == ["shop.third"]


async def test_a_queue_without_a_fall_back_has_none() -> None:
    transport = FaultyTransport()
    transport.refuse_queues = {"shop.alone"}
    one = subscribed(Handler(), queue="alone")
    async with make_app(transport, one, topology=CHAIN, consume_from=()) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
    assert caught.value.queue == "shop.alone"
    assert caught.value.result.sent == 0


async def test_what_an_earlier_queue_may_have_stored_stays_unknown() -> None:
    transport = FaultyTransport()
    transport.refuse_queues = {"shop.second", "shop.third"}
    transport.send_errors.append(SendUnconfirmedError("the connection is lost"))
    async with make_app(transport, Handler(), topology=CHAIN, consume_from=()) as app:
        with pytest.raises(SendFailedError, match="the outcome is unknown") as caught:
            await app.send(OrderPlaced("o-1"))
    assert caught.value.unknown
    (error,) = caught.value.result.errors
    assert "may or may not have been sent to handle (shop.third)" in str(error)
    assert "shop.third is full; shop.events may have stored it" in str(error)
