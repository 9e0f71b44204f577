"""Duplicate events: the second one gets the result of the first."""

import asyncio
from dataclasses import dataclass

from matador import (
    Deduplication,
    Deduplicator,
    Envelope,
    Matador,
    Schema,
    Topology,
    event,
    subscriber,
)


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


# --8<-- [start:once]
# For several processes: Deduplication(ttl=3600, store=RedisDuplicateStore("redis://…"))
once = Deduplicator(Deduplication(ttl=3600))


@subscriber(description="Charge the card.", idempotent="yes")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    order = envelope.data.order_id

    async def pay() -> bytes:
        print("charging", order)
        return b"receipt of " + order.encode()

    handled = await once.run(f"charge:{order}", pay)
    print(handled.result.decode() + (" (again)" if handled.duplicate else ""))


# --8<-- [end:once]


async def main() -> None:
    app = Matador(
        "memory://",
        schema=Schema({OrderPlaced: [charge]}),
        topology=Topology("shop", queues=["events"]),
        consume_from=["events"],
    )
    async with app:
        await app.send_many([OrderPlaced("7"), OrderPlaced("7")])


asyncio.run(main())
