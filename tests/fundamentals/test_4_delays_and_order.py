"""Chapter 4: later, sooner, and one after the other."""

from __future__ import annotations

from datetime import timedelta

from tests.fundamentals.shop import OrderPlaced

from matador import Envelope, Matador, Schema, SendOptions, Topology, WorkQueue, subscriber
from matador.testing import running


@subscriber(description="Ask how it was.", idempotent="yes")
async def ask_for_a_review(envelope: Envelope[OrderPlaced]) -> None: ...


async def test_a_delayed_event_is_handled_when_its_time_has_come() -> None:
    async with running(Schema({OrderPlaced: [ask_for_a_review]})) as harness:
        await harness.send(OrderPlaced("o-1", 5), delay=timedelta(days=3))
        await harness.advance(timedelta(days=2))
        assert harness.handled("ask-for-a-review") == []
        await harness.advance(timedelta(days=1))
        assert len(harness.handled("ask-for-a-review")) == 1


async def test_events_with_one_ordering_key_are_handled_in_order() -> None:
    async with running(Schema({OrderPlaced: [ask_for_a_review]})) as harness:
        await harness.app.send_many(
            (OrderPlaced(customer, number), SendOptions(ordering_key=customer))
            for number in range(5)
            for customer in ("ada", "bob")
        )
        await harness.drain()
        handled = [one.data for one in harness.handled("ask-for-a-review")]
        for customer in ("ada", "bob"):
            assert [one.amount for one in handled if one.order_id == customer] == [0, 1, 2, 3, 4]


async def test_a_higher_priority_goes_first() -> None:
    app = Matador(
        "memory://",
        schema=Schema({OrderPlaced: [ask_for_a_review]}),
        topology=Topology("shop", queues=[WorkQueue("events", priorities=True, concurrency=1)]),
        consume_from=["events"],
    )
    async with running(app) as harness:
        for amount in (1, 9, 5):
            # Delayed alike, so that all are there when the first is taken.
            await harness.send(OrderPlaced("o", amount), priority=amount, delay=1)
        await harness.drain()
        handled = harness.handled("ask-for-a-review")
        assert [one.data.amount for one in handled] == [9, 5, 1]
