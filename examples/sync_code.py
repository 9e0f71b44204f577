"""Matador in code without an event loop: a web view that sends, and subscribers that block."""

import threading
from dataclasses import dataclass

from matador import Envelope, Matador, Schema, SyncContext, event, subscriber
from matador.errors import SendFailedError


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@event("receipt.printed", description="A receipt came out of the printer.")
@dataclass(frozen=True)
class ReceiptPrinted:
    order_id: str


filed = threading.Event()


# --8<-- [start:subscribers]
@subscriber(description="Print the receipt.", idempotent="yes")
def print_receipt(envelope: Envelope[OrderPlaced], ctx: SyncContext) -> None:
    print(f"printing the receipt of order {envelope.data.order_id}")  # in a thread: may block
    ctx.send(ReceiptPrinted(envelope.data.order_id))  # keeps the correlation id


@subscriber(description="File the receipt.", idempotent="yes")
def file_receipt(envelope: Envelope[ReceiptPrinted]) -> None:
    print(f"filed under {envelope.docket.correlation_id}")
    filed.set()


# --8<-- [end:subscribers]

app = Matador(
    "sqlite:///sync_code.db",
    schema=Schema({OrderPlaced: [print_receipt], ReceiptPrinted: [file_receipt]}),
    consume_from=["events"],
)

# --8<-- [start:view]
shop = app.producer().sync()  # only sends; a worker process runs the subscribers


def place_order(form: dict[str, str]) -> tuple[int, str]:
    """A view, called by Flask or Django from any thread."""
    order = OrderPlaced(form["order_id"], int(form["amount"]))
    try:
        shop.send(order, correlation_id=form["request_id"])
    except SendFailedError:  # not stored, or perhaps not stored
        return 503, "try again"
    return 202, "accepted"


# --8<-- [end:view]


def main() -> None:
    with shop:  # disconnects at the end; in a server, the end of the process does
        print(place_order({"order_id": "1", "amount": "5", "request_id": "request-9"}))
    with app.sync() as worker:  # usually another process: matador worker sync_code.py
        filed.wait(10)
        worker.wait_idle(5)


if __name__ == "__main__":
    main()
