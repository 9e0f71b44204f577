"""FastStream on RabbitMQ: a quorum queue, confirms, acknowledged after the handler."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import sys

import harness
import rabbit
from faststream import AckPolicy
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue

URL, QUEUE = sys.argv[2], "bench.faststream"
QUORUM = RabbitQueue(QUEUE, durable=True, queue_type=QueueType.QUORUM)


class FastStream:
    def __init__(self) -> None:
        self.broker = RabbitBroker(
            URL, logger=None, default_channel=Channel(prefetch_count=harness.CONCURRENCY)
        )

    async def fresh(self, url: str) -> None:
        rabbit.remove(URL, QUEUE)
        rabbit.declare(URL, QUEUE, quorum=True)

    async def connect(self) -> None:
        await self.broker.connect()

    async def send(self, payload: harness.Payload) -> None:
        await self.broker.publish(payload, QUORUM, persist=True, mandatory=True)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        @self.broker.subscriber(QUORUM, ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def count(payload: dict) -> None:
            handle(payload)

        await self.broker.start()

    async def close(self) -> None:
        await asyncio.sleep(0.05)
        await self.broker.stop()

    async def left(self) -> int:
        return rabbit.left(URL, QUEUE)


if __name__ == "__main__":
    harness.run_async(FastStream())
