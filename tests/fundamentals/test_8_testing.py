"""Chapter 8: how users test what they build with Matador."""

from __future__ import annotations

import pytest
from tests.fundamentals.shop import OrderPlaced, PaymentTaken

from matador import Context, Envelope, Matador, Schema, subscriber
from matador.testing import make_envelope, running


@subscriber(description="Charge the card.", idempotent="yes")
async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    await ctx.send(PaymentTaken(envelope.data.order_id))


@subscriber(description="Thank the customer.", idempotent="yes")
async def thank(envelope: Envelope[PaymentTaken]) -> str:
    return f"thanks for {envelope.data.order_id}"


app = Matador(
    "sqlite:///shop.db",
    schema=Schema({OrderPlaced: [charge], PaymentTaken: [thank]}),
    consume_from=["events"],
)


async def place_order(order_id: str) -> None:
    """The code of a user, which knows nothing of tests."""
    await app.send(OrderPlaced(order_id, 5), delay=60)


async def test_a_callback_is_a_function_and_can_be_called() -> None:
    assert await thank(make_envelope(PaymentTaken("o-1"))) == "thanks for o-1"


async def test_the_whole_application_runs_in_memory_and_without_waiting() -> None:
    async with running(app) as harness:
        await place_order("o-1")
        await harness.drain()  # the minute passes at once

        assert [one.data for one in harness.handled("charge")] == [OrderPlaced("o-1", 5)]
        assert harness.results("thank") == ["thanks for o-1"]
        harness.raise_errors()


async def test_it_can_be_run_again_in_the_next_test() -> None:
    async with running(app) as harness:
        await harness.drain()
        assert harness.sent == [], "nothing is left of the last one"


async def test_a_mistake_in_a_test_is_not_a_passing_test() -> None:
    async with running(app) as harness:
        with pytest.raises(Exception, match="did you mean 'charge'"):
            harness.handled("chrage")
