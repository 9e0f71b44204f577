"""Pub/sub: to every queue whose pattern matches the routing key."""

import asyncio

from matador.pubsub import Publisher, Subscriber

analytics = Subscriber("sqlite:///shop.db", exchange="shop", queue="analytics")
counted = asyncio.Event()


@analytics.on("orders.*")
async def count_order(order: dict[str, int]) -> None:
    print(f"analytics saw order {order['id']}")
    counted.set()


async def main() -> None:
    async with analytics, Publisher("sqlite:///shop.db", exchange="shop") as publisher:
        await publisher.publish("orders.created", {"id": 1})
        await counted.wait()


if __name__ == "__main__":
    asyncio.run(main())
