"""The shop of the second half of the demo. It keeps a journal, and two subscribers fail.

It keeps its files in the current folder, so `demo_pipeline.py` runs it in a folder of its own.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from matador import (
    Context,
    DontRetry,
    Envelope,
    Matador,
    Schema,
    StandardRetryPolicy,
    Topology,
    event,
    subscriber,
)
from matador.observe import Journal

FIXED = Path("bug-is-fixed")  # this file exists once the fix is deployed

COUPONS = ["WELCOME"]


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    amount: int
    country: str
    coupon: str | None = None


@event("parcel.shipped", description="A parcel left the house.")
@dataclass(frozen=True)
class ParcelShipped:
    order_id: int
    phone: str


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    await asyncio.sleep(0.001 * (envelope.data.order_id % 7))
    if envelope.data.order_id % 20 == 0 and ctx.attempt == 1:
        raise ConnectionError("the mail server is busy")


@subscriber(description="Write the order into the books.", idempotent="yes")
async def book(envelope: Envelope[OrderPlaced]) -> None:
    order = envelope.data
    fixed = FIXED.exists()  # noqa: ASYNC240 - a demo
    if order.coupon is not None and order.coupon not in COUPONS and not fixed:
        raise DontRetry(f"order {order.order_id}: unknown coupon '{order.coupon}'")


@subscriber(description="Ship the parcel.", idempotent="yes", queue="shipping")
async def ship(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    await asyncio.sleep(0.004)
    order = envelope.data
    phone = "none" if order.order_id % 250 == 7 else f"+49 30 {order.order_id:06d}"
    await ctx.send(ParcelShipped(order.order_id, phone))


@subscriber(description="Text the customer.", idempotent="yes", queue="shipping")
async def text_customer(envelope: Envelope[ParcelShipped]) -> None:
    parcel = envelope.data
    if not parcel.phone.startswith("+"):
        raise DontRetry(f"order {parcel.order_id} has no telephone number")


def orders(number: int) -> list[OrderPlaced]:
    """Orders with various amounts and countries, some with an unknown coupon."""
    return [
        OrderPlaced(
            order_id=place,
            amount=5 + place * 37 % 495,
            country=("DE", "NL", "FR")[place % 3],
            coupon="SUMMER" if place % 40 == 1 else None,
        )
        for place in range(number)
    ]


def make_app(*, works: bool = True) -> Matador:
    """The application, with its files in the current folder."""
    return Matador(
        "sqlite:///shop.db",
        schema=Schema({OrderPlaced: [email_receipt, book, ship], ParcelShipped: [text_customer]}),
        topology=Topology("shop", queues=["events", "shipping"]),
        consume_from=["events", "shipping"] if works else [],
        retry=StandardRetryPolicy(base_delay=0.3, jitter=0.5),
        hooks=[Journal("journal/")],
    )


app = make_app()
