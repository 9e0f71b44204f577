"""A queue on Redis with a retention period, and checkpoints."""

import asyncio
import os
from dataclasses import dataclass
from typing import cast

from matador import (
    Context,
    Envelope,
    Matador,
    RedisCheckpointStore,
    Schema,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.testing import wait_for
from matador.transports.redis import RedisTransport

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
charged: list[str] = []


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@subscriber(description="Charge the card.", idempotent="resumable")
async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    async def pay() -> str:
        return f"payment of order {envelope.data.order_id}"

    charged.append(await ctx.io("pay", pay))


# --8<-- [start:app]
app = Matador(
    URL,
    schema=Schema({OrderPlaced: [charge]}),
    topology=Topology("shop", queues=[WorkQueue("events", retention=7 * 86400)]),
    checkpoints=RedisCheckpointStore(URL, ttl=14 * 86400),
    consume_from=["events"],
)
# --8<-- [end:app]


# --8<-- [start:read]
async def read_again(transport: RedisTransport) -> list[str]:
    """The ids of all messages of the last week, handled or not."""
    found: list[str] = []
    position: str | None = None
    while page := await transport.read("shop.events", after=position, limit=500):
        found += [stored.id for stored in page]
        position = page[-1].position
    return found


# --8<-- [end:read]


async def main() -> None:
    async with app:
        for number in range(3):
            await app.send(OrderPlaced(str(number)))
        await wait_for(lambda: len(charged) == 3)
        print(len(await read_again(cast("RedisTransport", app.transport))), "can be read again")


if __name__ == "__main__":
    asyncio.run(main())
