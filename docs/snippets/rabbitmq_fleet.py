"""Join a fleet on RabbitMQ: its queues, its subscribers, and the outcomes of a send."""

import asyncio
import logging
import os
from dataclasses import dataclass

from matador import (
    Envelope,
    Matador,
    Schema,
    SendResult,
    SubscriberStub,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.errors import SendFailedError

# --8<-- [start:url]
URL = os.environ.get("RABBITMQ_URL", "amqp://app:secret@rabbit-1,rabbit-2/shop?heartbeat=10")
# --8<-- [end:url]


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@subscriber(description="Email the receipt.", idempotent="yes", queue="urgent")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...


# --8<-- [start:fleet]
invoice = SubscriberStub("write-invoice", queue="invoices", description="Another service.")
app = Matador(
    URL,
    schema=Schema({OrderPlaced: [email_receipt, invoice]}),
    topology=Topology(
        "shop",  # the namespace of the fleet
        queues=[
            "events",
            WorkQueue("urgent", priorities=True),  # a classic queue
            WorkQueue("invoices", exact=True),  # owned by another service: used, never created
        ],
    ),
    consume_from=["urgent"],
)
# --8<-- [end:fleet]

# --8<-- [start:arguments]
events = WorkQueue("events", type="classic", arguments={"x-max-length": 100_000})
# --8<-- [end:arguments]


# --8<-- [start:outcome]
async def place(order: OrderPlaced) -> SendResult:
    try:
        return await app.send(order)
    except SendFailedError as failed:
        for error in failed.result.errors:
            if error.unknown:
                print(error.subscriber, "may have it: send again if a duplicate does no harm")
            else:
                print(f"{error.subscriber}: not stored, {type(error.__cause__).__name__}")
        return failed.result


# --8<-- [end:outcome]


async def main() -> None:
    async with app:
        result = await place(OrderPlaced("1"))
    print(result.sent, "sent")


if __name__ == "__main__":
    logging.disable()  # the outcome is printed
    asyncio.run(main())
