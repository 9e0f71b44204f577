"""Raw aio-pika: a quorum queue, confirms, 64 at once."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aio_pika
import harness
import rabbit

URL, QUEUE = sys.argv[2], "bench.aio_pika"


class AioPika:
    def __init__(self) -> None:
        self.connections: list[Any] = []

    async def fresh(self, url: str) -> None:
        rabbit.remove(URL, QUEUE)
        rabbit.declare(URL, QUEUE, quorum=True)

    async def connect(self) -> None:
        connection = await aio_pika.connect(URL)
        self.connections.append(connection)
        self.exchange = (await connection.channel(publisher_confirms=True)).default_exchange

    async def send(self, payload: harness.Payload) -> None:
        message = aio_pika.Message(
            json.dumps(payload).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        await self.exchange.publish(message, QUEUE, mandatory=True)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        connection = await aio_pika.connect(URL)
        self.connections.append(connection)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=harness.CONCURRENCY)
        queue = await channel.get_queue(QUEUE)

        async def on_message(message: Any) -> None:
            handle(json.loads(message.body))
            await message.ack()

        await queue.consume(on_message)

    async def close(self) -> None:
        await asyncio.sleep(0.05)
        for connection in self.connections:
            await connection.close()

    async def left(self) -> int:
        return rabbit.left(URL, QUEUE)


if __name__ == "__main__":
    harness.run_async(AioPika())
