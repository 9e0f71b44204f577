"""Chapter 3: what fails is tried again, and what cannot be helped is kept."""

from __future__ import annotations

import pytest
from tests.fundamentals.shop import OrderPlaced

from matador import (
    Context,
    DontRetry,
    Envelope,
    Matador,
    Schema,
    StandardRetryPolicy,
    assert_event,
    subscriber,
)
from matador.runtime.dead_letters import Selection
from matador.testing import running


async def test_a_failure_is_tried_again_a_little_later() -> None:
    @subscriber(description="Fails at first.", idempotent="yes")
    async def flaky(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ConnectionError("the mail server is down")

    async with running(Schema({OrderPlaced: [flaky]})) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.drain()

        assert [one.envelope.docket.attempts for one in harness.failed("flaky")] == [1, 2]
        (envelope,) = harness.handled("flaky")
        assert envelope.docket.attempts == 3
        assert envelope.docket.first_error == "the mail server is down"
        assert harness.clock.monotonic() == pytest.approx(1 + 2, abs=0.001)


async def test_what_fails_too_often_is_kept_among_the_dead_letters() -> None:
    broken = True

    @subscriber(description="Broken until it is repaired.", idempotent="yes")
    async def charge(envelope: Envelope[OrderPlaced]) -> None:
        if broken:
            raise ConnectionError("the gateway is down")

    app = Matador(
        "memory://",
        schema=Schema({OrderPlaced: [charge]}),
        consume_from=["events"],
        retry=StandardRetryPolicy(max_attempts=5),
    )
    async with running(app) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.drain()
        assert len(harness.failed("charge")) == 5
        assert harness.dead_letters("charge")[0].reason == "max attempts exceeded (5)"

        # Repaired: the dead letters are sent back to where they came from.
        broken = False
        chosen = await app.dead_letters.choose(Selection(subscriber="charge"))
        assert (await app.dead_letters.redrive(chosen)).done == 1
        await harness.drain()
        assert len(harness.handled("charge")) == 1


async def test_a_callback_may_say_that_there_is_no_point() -> None:
    @subscriber(description="Knows better.", idempotent="yes")
    async def charge(envelope: Envelope[OrderPlaced]) -> None:
        assert_event(envelope, envelope.data.amount > 0, "an order must cost something")
        raise DontRetry("the card was declined")

    async with running(Schema({OrderPlaced: [charge]})) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.send(OrderPlaced("o-2", 0))
        await harness.drain()
        assert sorted(one.reason for one in harness.dead_letters("charge")) == [
            "assertion error: an order must cost something",
            "the card was declined",
        ]
