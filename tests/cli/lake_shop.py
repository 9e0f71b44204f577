"""A shop whose cashier declines cards over 100, until it is fixed; for the tests of lakes."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from matador import DontRetry, Envelope, Matador, Schema, Topology, event, subscriber
from matador.observe import Journal
from matador.testing import wait_for
from matador.transports import SqliteTransport

FIXED = Path("fixed")


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...


@subscriber(description="Charge the card.", idempotent="yes", queue="billing")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    if envelope.data.amount > 100 and not FIXED.exists():  # noqa: ASYNC240 - a test
        raise DontRetry(f"card {envelope.data.order_id} was declined")


app = Matador(
    "sqlite:///shop.db",
    schema=Schema({OrderPlaced: [email_receipt, charge]}),
    topology=Topology("shop", queues=["events", "billing"]),
    consume_from=["events", "billing"],
    hooks=[Journal("journal/")],
)


async def is_done() -> bool:
    """Does nothing wait any more?"""
    broker = app.transport
    assert isinstance(broker, SqliteTransport)
    depths = [await broker.depth(f"shop.{queue}") for queue in ("events", "billing")]
    return not any(depth.total for depth in depths)


async def work(orders: int) -> None:
    """Send orders of 10, 20, 30 and so on, and work until none waits."""
    async with app:
        await app.send_many(OrderPlaced(str(n), 10 * n) for n in range(1, orders + 1))
        await wait_for(is_done, timeout=60)


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1])))
