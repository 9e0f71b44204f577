"""Channels: consumers as methods of a class, with settings from a file."""

import asyncio
from dataclasses import dataclass

from matador.channels import QueueService, QueueSettings, Settings, channel, consume


@dataclass(frozen=True)
class OrderCreated:
    order_id: str


packed = asyncio.Event()


@channel("orders")
class Orders:
    @consume("created")
    async def created(self, order: OrderCreated) -> None:
        print(f"the channel got order {order.order_id}")
        packed.set()


settings = Settings(QueueSettings(type="sqlite", url="sqlite:///shop.db"))
service = QueueService(settings, channels=[Orders])  # or QueueService.from_config("matador.toml")


async def main() -> None:
    async with service:
        await service.send("orders", "created", OrderCreated("7"))
        await packed.wait()


if __name__ == "__main__":
    asyncio.run(main())
