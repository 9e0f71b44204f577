"""Pub/sub: publish by routing key, receive by patterns."""

import asyncio

# --8<-- [start:subscriber]
from dataclasses import dataclass

from matador.pubsub import AckStrategy, MessageContext, Publisher, Subscriber

URL = "memory://"  # or amqp://localhost, redis://localhost, sqlite:///shop.db


@dataclass
class Order:
    id: int
    amount: int


analytics = Subscriber(
    URL,
    exchange="events",
    queue="analytics",
    ack=AckStrategy(max_retries=3, retry_delay=lambda attempt: 0.1 * 2**attempt),
)


@analytics.on("orders.*")
async def count(order: Order, ctx: MessageContext) -> None:
    print(f"{ctx.routing_key}: order {order.id}, attempt {ctx.attempts}")


@analytics.on("orders.created")
def charge(order: Order) -> None:  # sync functions run in threads
    print(f"charged {order.amount}")


# --8<-- [end:subscriber]


# --8<-- [start:broadcast]
cache = Subscriber(URL, exchange="events")  # no queue: every process gets every message


@cache.on("orders.#", "prices.#")
async def forget(message: dict[str, int], ctx: MessageContext) -> None:
    print(f"cache: {ctx.routing_key}")


# --8<-- [end:broadcast]


# --8<-- [start:manual]
batches = Subscriber(
    URL, exchange="events", queue="batches", ack=AckStrategy(mode="manual"), concurrency=100
)


@batches.on("orders.created")
async def collect(order: Order, ctx: MessageContext) -> None:
    if order.amount > 0:
        ctx.ack()  # or later, from any thread
    else:
        ctx.nack(requeue=False)  # becomes a dead letter


# --8<-- [end:manual]


async def main() -> None:
    from matador.testing import wait_for

    async with analytics, cache, batches:
        # --8<-- [start:publisher]
        async with Publisher(URL, exchange="events") as publisher:
            published = await publisher.publish("orders.created", Order(1, 25))
            print(f"stored in {published.queues} queues")
            await publisher.publish_many([("orders.paid", Order(n, 5)) for n in (2, 3)])
        # --8<-- [end:publisher]
        await wait_for(lambda: analytics.metrics().messages_succeeded == 3)
        await wait_for(lambda: cache.metrics().messages_succeeded == 3)


if __name__ == "__main__":
    asyncio.run(main())
