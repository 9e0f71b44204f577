"""The shop on a broker. Set its URL first: `export SHOP_URL=amqp://localhost`."""

import os
from dataclasses import dataclass

from matador import DontRetry, Envelope, Matador, Schema, Topology, event, subscriber


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    print(f"receipt for order {envelope.data.order_id} sent")


@subscriber(description="Write the order into the books.", idempotent="yes")
def book_order(envelope: Envelope[OrderPlaced]) -> None:  # runs in a thread
    if envelope.data.amount <= 0:
        raise DontRetry(f"order {envelope.data.order_id} has no amount")
    print(f"order {envelope.data.order_id} booked: {envelope.data.amount}")


# --8<-- [start:app]
app = Matador(
    os.environ.get("SHOP_URL", "sqlite:///shop.db"),
    schema=Schema({OrderPlaced: [email_receipt, book_order]}),
    topology=Topology("shop", queues=["events"]),
    consume_from=["events"],
)
# --8<-- [end:app]
