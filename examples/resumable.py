"""A resumable subscriber: a retry skips the steps that are already completed."""

import asyncio
from dataclasses import dataclass

from matador import (
    Context,
    Envelope,
    Matador,
    Schema,
    SqliteCheckpointStore,
    StandardRetryPolicy,
    event,
    subscriber,
)
from matador.testing import wait_for


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@event("payment.taken", description="The customer's card was charged.")
@dataclass(frozen=True)
class PaymentTaken:
    order_id: str
    payment_id: str


@dataclass(frozen=True)
class Payment:
    id: str
    amount: int


thanked: list[str] = []


async def charge_card(order: OrderPlaced) -> Payment:
    print(f"charging {order.amount}")
    return Payment(f"payment-{order.order_id}", order.amount)


async def tell(whom: str, attempt: int) -> str:
    if whom == "warehouse" and attempt == 1:
        raise ConnectionError("the warehouse does not answer")
    print(f"telling the {whom}")
    return f"{whom} knows"


# --8<-- [start:subscriber]
@subscriber(description="Charge the card, tell the others.", idempotent="resumable")
async def check_out(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    order = envelope.data
    payment = await ctx.io("charge-card", lambda: charge_card(order))
    await ctx.all(
        [
            ("tell-warehouse", lambda: tell("warehouse", ctx.attempt)),
            ("tell-accounting", lambda: tell("accounting", ctx.attempt)),
        ]
    )
    await ctx.io("announce", lambda: announce(ctx, order, payment))
    print(f"checked out with {payment.id} in attempt {ctx.attempt}")


async def announce(ctx: Context, order: OrderPlaced, payment: Payment) -> None:
    await ctx.send(PaymentTaken(order.order_id, payment.id))  # raises if it could not be stored


# --8<-- [end:subscriber]


@subscriber(description="Thank the customer.", idempotent="yes")
async def thank(envelope: Envelope[PaymentTaken]) -> None:
    print(f"thanks for {envelope.data.payment_id}")
    thanked.append(envelope.data.order_id)


# --8<-- [start:app]
app = Matador(
    "sqlite:///resumable.db",
    schema=Schema({OrderPlaced: [check_out], PaymentTaken: [thank]}),
    consume_from=["events"],
    checkpoints=SqliteCheckpointStore("checkpoints.db"),
    retry=StandardRetryPolicy(base_delay=0.1),
)
# --8<-- [end:app]


async def main() -> None:
    async with app:
        await app.send(OrderPlaced("7", amount=20))
        await wait_for(lambda: bool(thanked), message="the customer to be thanked")
        await app.wait_idle(5)


if __name__ == "__main__":
    asyncio.run(main())
