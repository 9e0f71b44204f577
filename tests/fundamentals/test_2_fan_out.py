"""Chapter 2: every subscriber gets a message of its own, and none depends on another."""

from __future__ import annotations

from tests.fundamentals.shop import OrderPlaced

from matador import DontRetry, Envelope, Schema, SubscriberStub, subscriber
from matador.testing import running


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...


@subscriber(description="Charge the card.", queue="billing")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    raise DontRetry("the card was declined")


@subscriber(description="Only in December.", enabled=lambda: False)
async def christmas_card(envelope: Envelope[OrderPlaced]) -> None: ...


async def test_one_that_fails_does_not_hold_up_the_others() -> None:
    async with running(Schema({OrderPlaced: [email_receipt, charge]})) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.drain()

        assert len(harness.handled("email-receipt")) == 1
        (letter,) = harness.dead_letters("charge")
        assert letter.reason == "the card was declined"


async def test_a_subscriber_that_is_not_enabled_is_skipped() -> None:
    async with running(Schema({OrderPlaced: [email_receipt, christmas_card]})) as harness:
        result = await harness.send(OrderPlaced("o-1", 5))
        assert (result.sent, result.skipped) == (1, 1)


async def test_a_stub_stands_for_a_subscriber_of_another_service() -> None:
    ship = SubscriberStub("ship", description="In the warehouse service.", queue="warehouse")
    async with running(Schema({OrderPlaced: [email_receipt, ship]})) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.drain()

        assert [one.docket.target_subscriber for one in harness.sent] == ["email-receipt", "ship"]
        assert len(harness.handled()) == 1, "the other is handled over there"


async def test_a_plugin_listens_to_every_event() -> None:
    @subscriber(description="Write it down.", idempotent="yes")
    async def audit(envelope: Envelope[object]) -> None: ...

    schema = Schema({OrderPlaced: [email_receipt]}).with_plugin(audit)
    async with running(schema) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.drain()
        assert len(harness.handled("audit")) == 1
