"""The shop of the demo, with three subscribers: one is flaky, one has a bug, one is resumable.

It keeps its files in the current folder, so `demo.py` runs it in a folder of its own.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from matador import (
    Context,
    Envelope,
    Matador,
    Schema,
    SqliteCheckpointStore,
    StandardRetryPolicy,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.transports import SqliteTransport

WORLD = "world.jsonl"  # the side effects: mails, charges, entries in the books
FIXED = "bug-is-fixed"  # this file exists once the fix is deployed
STUCK = "carrier-does-not-answer"  # this file exists while order 40 waits for the carrier
CALM = "carrier-answers-again"

COUPONS = ["WELCOME"]


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    amount: int
    coupon: str | None = None


def happened(what: str, envelope: Envelope[OrderPlaced]) -> None:
    """Record a side effect. A killed process leaves a whole line or none."""
    line = {"what": what, "order": envelope.data.order_id, "envelope": envelope.id}
    with Path(WORLD).open("a") as world:
        world.write(json.dumps(line) + "\n")


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    if envelope.data.order_id % 5 == 0 and ctx.attempt == 1:
        raise ConnectionError("the mail server is busy")
    happened("mail", envelope)


@subscriber(description="Write the order into the books.", idempotent="yes")
def book(envelope: Envelope[OrderPlaced]) -> None:
    order = envelope.data
    known = [*COUPONS, "SUMMER"] if Path(FIXED).exists() else COUPONS  # the fix, or the bug
    if order.coupon is not None and order.coupon not in known:
        raise LookupError(f"unknown coupon {order.coupon}")
    happened("entry", envelope)


@subscriber(
    description="Charge the card, then book the carrier.",
    idempotent="resumable",
    importance="must-investigate",
    queue="billing",
)
async def check_out(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    await ctx.io("charge-card", lambda: happened("charge", envelope))
    await ctx.io("book-carrier", lambda: book_carrier(envelope))
    happened("parcel", envelope)


async def book_carrier(envelope: Envelope[OrderPlaced]) -> str:
    if envelope.data.order_id == 40 and not Path(CALM).exists():  # noqa: ASYNC240 - a demo
        Path(STUCK).touch()  # noqa: ASYNC240
        await asyncio.sleep(60)
    return f"parcel {envelope.data.order_id}"


def make_app(folder: Path, consume_from: Iterable[str] = ()) -> Matador:
    """The application, with its files in a folder."""
    return Matador(
        SqliteTransport(folder / "shop.db", lease=4),  # short, to keep the demo short
        schema=Schema({OrderPlaced: [email_receipt, book, check_out]}),
        topology=Topology("shop", queues=["events", WorkQueue("billing", concurrency=1)]),
        consume_from=consume_from,
        retry=StandardRetryPolicy(base_delay=0.3, jitter=0.5),
        checkpoints=SqliteCheckpointStore(folder / "checkpoints.db"),
    )


app = make_app(Path(), consume_from=["events", "billing"])
