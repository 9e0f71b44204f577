"""Channels: consumers as methods of a class, and a service with settings from a file."""

import asyncio
import pathlib

# --8<-- [start:declare]
from dataclasses import dataclass

from matador.channels import MessageContext, QueueService, channel, consume


@dataclass(frozen=True)
class OrderCreated:
    order_id: str
    amount: int


@channel("orders")
class Orders:
    @consume("created")
    async def created(self, order: OrderCreated, ctx: MessageContext) -> None:
        if order.amount < 0:
            raise ValueError("a negative amount")
        print(f"order {order.order_id} in attempt {ctx.attempts}")

    @consume("price-list")
    def new_prices(self, prices: dict[str, int]) -> None:
        print(f"{len(prices)} new prices")


# --8<-- [end:declare]

from matador.testing import wait_for

FILE = pathlib.Path(__file__).parents[2] / "examples" / "matador.toml"

# --8<-- [start:parameters]
from matador.channels import Envelope
from matador.transports.base import Transport


@channel("audit")
class Audit:
    @consume("created")
    async def created(
        self,
        envelope: Envelope[OrderCreated],  # id, data and docket
        ctx: MessageContext,  # attempts, headers, correlation id
        connection: Transport,
        service: QueueService,
    ) -> None:
        print(f"{envelope.data.order_id} over {connection.name}")
        await service.send("orders", "created", envelope.data)


# --8<-- [end:parameters]


# --8<-- [start:batch]
from matador import WorkQueue
from matador.channels import DeadLetterOptions


@consume(
    "counted",
    channel="orders",
    batch_size=500,
    dead_letters=DeadLetterOptions(max_length=10_000),
    queue=WorkQueue("counted", max_length=1_000_000),
)
async def store(orders: list[OrderCreated]) -> None:
    print(f"{len(orders)} orders in one transaction")


# --8<-- [end:batch]


async def main() -> None:
    # --8<-- [start:service]
    service = QueueService.from_config(FILE, channels=[Orders, Audit])
    async with service:
        await service.send("orders", "created", OrderCreated("1", 5))  # to one consumer
        await service.publish("orders", "price-list", {"pen": 2})  # to every running service
        # --8<-- [end:service]
        await service.send("audit", "created", OrderCreated("2", 7))
        await service.send("orders", "created", OrderCreated("3", -1))
        await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
        # --8<-- [start:health]
        health, metrics = service.health_check(), service.metrics()
        print(health.status, health.connection_state, health.last_error)
        print(metrics.messages_sent, metrics.messages_retried, metrics.messages_dead_lettered)
        # --8<-- [end:health]


if __name__ == "__main__":
    asyncio.run(main())
