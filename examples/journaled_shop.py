"""A shop that keeps a journal. It sends thirty orders; those without an amount fail."""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matador import DontRetry, Envelope, Matador, Schema, event, subscriber
from matador.observe import Journal
from matador.testing import wait_for
from matador.transports import SqliteTransport


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int
    country: str = "DE"


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...


@subscriber(description="Write the order into the books.", idempotent="yes")
def book_order(envelope: Envelope[OrderPlaced]) -> None:
    if envelope.data.amount <= 0 and not Path("bug-is-fixed").exists():
        raise DontRetry(f"order {envelope.data.order_id} has no amount")


# --8<-- [start:app]
app = Matador(
    "sqlite:///orders.db",
    schema=Schema({OrderPlaced: [email_receipt, book_order]}),
    consume_from=["events"],
    hooks=[Journal("journal/")],
)
# --8<-- [end:app]


async def main() -> None:
    """Send thirty orders, and handle them all."""
    async with app:
        await app.send_many(
            OrderPlaced(str(number), amount=number % 10 * 20, country=("DE", "NL")[number % 2])
            for number in range(1, 31)
        )

        assert isinstance(app.transport, SqliteTransport)
        depth = partial(app.transport.depth, "matador.events")

        async def done() -> bool:
            return (await depth()).total == 0

        await wait_for(done, timeout=60)


if __name__ == "__main__":
    asyncio.run(main())
