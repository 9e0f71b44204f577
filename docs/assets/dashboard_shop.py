"""A shop with plenty to look at, for the screenshots of the dashboard."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass

from matador import DontRetry, Envelope, Matador, Schema, Topology, WorkQueue, event, subscriber
from matador.jobs import ActiveJob, Queue, Worker
from matador.observe import History, Journal

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")


@event("order.placed", description="A customer placed an order.", aliases=["order.created"])
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    customer: str
    amount: int
    card_number: str


@event("order.shipped", description="An order left the warehouse.")
@dataclass(frozen=True)
class OrderShipped:
    order_id: str
    parcel: str


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    await asyncio.sleep(random.uniform(0.001, 0.03))


@subscriber(
    description="Charge the card.",
    idempotent="resumable",
    queue="billing",
    importance="must-investigate",
)
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    await asyncio.sleep(random.uniform(0.005, 0.06))
    order = envelope.data
    if order.amount > 900:
        raise DontRetry(f"card of {order.customer!r} declined for {order.amount} EUR")
    if order.amount % 41 == 0:
        raise TimeoutError(f"the bank did not answer within {order.amount} ms")


@subscriber(description="Tell the customer where the parcel is.", idempotent="yes")
async def notify(envelope: Envelope[OrderShipped]) -> None:
    await asyncio.sleep(random.uniform(0.001, 0.01))
    if envelope.data.parcel.endswith("7"):
        raise DontRetry("no phone number")


@subscriber(description="Count parcels.", idempotent="yes")
async def count_parcels(envelope: Envelope[OrderShipped]) -> None:
    """Counts nothing, quickly."""


app = Matador(
    URL,
    schema=Schema({OrderPlaced: [email_receipt, charge], OrderShipped: [notify, count_parcels]}),
    topology=Topology("shop", queues=["events", WorkQueue("billing", concurrency=8)]),
    consume_from=["events", "billing"],
    hooks=[Journal("journal/", rotate_age=2), History("history.db")],
)
emails = Queue("emails", provider="sqlite:///jobs.db")


async def send_email(job: ActiveJob[dict[str, str]]) -> str:
    await job.update_progress(50)
    if job.data["to"].startswith("bounce"):
        raise ValueError(f"{job.data['to']} does not exist")
    return "sent"


worker = Worker(emails, send_email, concurrency=2)
