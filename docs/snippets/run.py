"""A worker without the command line."""

import logging
from dataclasses import dataclass

from matador import Envelope, Matador, Schema, Shutdown, event, subscriber


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...


# --8<-- [start:run]
app = Matador(
    "sqlite:///shop.db",
    schema=Schema({OrderPlaced: [email_receipt]}),
    consume_from=["events"],
    shutdown=Shutdown(timeout=60),
)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.run()  # runs until SIGTERM or SIGINT
# --8<-- [end:run]
