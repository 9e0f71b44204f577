"""FastStream on Redis streams, with a consumer group, acknowledged after the handler."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import sys

import harness
import streams
from faststream import AckPolicy
from faststream.redis import RedisBroker, StreamSub

URL, STREAM, GROUP = sys.argv[2], "bench.faststream", "bench"


class FastStream:
    def __init__(self) -> None:
        self.broker = RedisBroker(URL, logger=None)

    async def fresh(self, url: str) -> None:
        await streams.flush(URL)

    async def connect(self) -> None:
        await self.broker.connect()

    async def send(self, payload: harness.Payload) -> None:
        await self.broker.publish(payload, stream=STREAM)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        subscription = StreamSub(
            STREAM, group=GROUP, consumer="worker", last_id="0", max_records=harness.CONCURRENCY
        )

        @self.broker.subscriber(
            stream=subscription,
            ack_policy=AckPolicy.REJECT_ON_ERROR,
            max_workers=harness.CONCURRENCY,
        )
        async def count(payload: dict) -> None:
            handle(payload)

        await self.broker.start()

    async def close(self) -> None:
        await asyncio.sleep(0.2)
        await self.broker.stop()

    async def left(self) -> int:
        return await streams.left(URL, STREAM, GROUP)


if __name__ == "__main__":
    harness.run_async(FastStream())
