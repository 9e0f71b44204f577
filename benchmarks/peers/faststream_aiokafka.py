"""FastStream on Kafka by aiokafka, committed after the handler, one at a time in each partition."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import sys

import harness
import kafka_topics
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

URL, TOPIC, GROUP = sys.argv[2], "bench.faststream", "bench.faststream"


class FastStream:
    def __init__(self) -> None:
        self.broker = KafkaBroker(
            kafka_topics.servers_of(URL), acks="all", enable_idempotence=True, logger=None
        )

    async def fresh(self, url: str) -> None:
        kafka_topics.make(url, TOPIC, GROUP)

    async def connect(self) -> None:
        await self.broker.connect()

    async def send(self, payload: harness.Payload) -> None:
        await self.broker.publish(payload, TOPIC)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        @self.broker.subscriber(
            TOPIC,
            group_id=GROUP,
            auto_offset_reset="earliest",
            ack_policy=AckPolicy.ACK,
            max_workers=kafka_topics.PARTITIONS,
        )
        async def count(payload: dict) -> None:
            handle(payload)

        await self.broker.start()

    async def close(self) -> None:
        await asyncio.sleep(0.2)
        await self.broker.stop()

    async def left(self) -> int:
        return kafka_topics.left(URL, TOPIC, GROUP)


if __name__ == "__main__":
    harness.run_async(FastStream())
