"""The events of the shop, and who handles them."""

# --8<-- [start:events]
from dataclasses import dataclass

from matador import Envelope, Matador, Schema, event, subscriber
from matador.django import with_database


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    amount: int


@subscriber(description="Send the receipt.", idempotent="yes")
@with_database  # drops connections that the database has closed
def send_receipt(envelope: Envelope[OrderPlaced]) -> None:  # sync: runs in a thread
    from shop.models import Order

    Order.objects.filter(pk=envelope.data.order_id).update(receipt_sent=True)
    print(f"receipt for order {envelope.data.order_id} sent", flush=True)


app = Matador(
    "sqlite:///events.db",
    schema=Schema({OrderPlaced: [send_receipt]}),
    consume_from=["events"],
)
# --8<-- [end:events]
