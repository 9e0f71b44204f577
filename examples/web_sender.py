"""Send events from a web process: the application in shop.py, without its worker."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from shop import OrderPlaced, app

# --8<-- [start:producer]
producer = app.producer()  # the same application, but it only sends


@asynccontextmanager
async def lifespan(server: object) -> AsyncGenerator[None]:
    async with producer:  # connects when the server starts, disconnects when it stops
        yield


async def place_order(order_id: str, amount: int) -> str:  # a request handler
    result = await producer.send(OrderPlaced(order_id, amount))
    return f"order {order_id}: {result.sent} messages stored"


# --8<-- [end:producer]


async def main() -> None:
    async with lifespan(None):  # a web framework does this for you
        print(await place_order("3", 7))


if __name__ == "__main__":
    asyncio.run(main())
