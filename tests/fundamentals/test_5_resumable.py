"""Chapter 5: a subscriber that goes on where it was interrupted."""

from __future__ import annotations

from tests.fundamentals.shop import OrderPlaced, PaymentTaken

from matador import Context, Envelope, Schema, subscriber
from matador.testing import running


async def test_a_step_that_is_done_is_not_done_again() -> None:
    charged: list[str] = []
    notified: list[str] = []

    async def charge_card() -> str:
        charged.append("once")
        return "payment-7"

    async def notify_warehouse() -> None:
        notified.append("warehouse")

    async def notify_customer() -> None:
        notified.append("customer")
        if len(notified) < 3:
            raise ConnectionError("the mail server is down")

    @subscriber(description="Charge the card.", idempotent="resumable")
    async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> str:
        payment = await ctx.io("charge-card", charge_card)
        # Side by side; those that succeed are remembered, even if another fails.
        await ctx.all([("warehouse", notify_warehouse), ("customer", notify_customer)])
        await ctx.send(PaymentTaken(envelope.data.order_id))
        return payment

    async with running(Schema({OrderPlaced: [charge], PaymentTaken: []})) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.drain()
        assert harness.results("charge") == ["payment-7"]
        assert len(harness.failed("charge")) == 1

    assert charged == ["once"]
    assert notified == ["warehouse", "customer", "customer"]
