"""SAQ on Redis, 64 at once."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import harness
import streams
from saq import Queue, Worker
from saq.queue.redis import RedisQueue

URL = sys.argv[2]
logging.disable(logging.CRITICAL)


class Saq:
    def __init__(self) -> None:
        self.worker: Any = None
        self.queue: Any = None

    def make(self) -> Any:
        if self.queue is None:
            self.queue = Queue.from_url(URL, name="bench")
            assert isinstance(self.queue, RedisQueue)
            self.queue._op_sem = asyncio.Semaphore(harness.CALLERS)  # as many as there are callers
        return self.queue

    async def fresh(self, url: str) -> None:
        await streams.flush(URL)

    async def connect(self) -> None:
        await self.make().connect()

    async def send(self, payload: harness.Payload) -> None:
        await self.queue.enqueue("count", payload=payload, ttl=-1)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        async def count(context: Any, *, payload: dict) -> None:
            handle(payload)

        await self.make().connect()
        self.worker = Worker(
            self.queue, functions=[("count", count)], concurrency=harness.CONCURRENCY
        )
        self.running = asyncio.create_task(self.worker.start())
        await asyncio.sleep(0.3)

    async def close(self) -> None:
        await asyncio.sleep(0.3)
        if self.worker is not None:
            await self.worker.stop()
            self.running.cancel()
            await asyncio.wait([self.running])
        await self.queue.disconnect()

    async def left(self) -> int:
        queue = Queue.from_url(URL, name="bench")
        found = await queue.count("incomplete")
        await queue.disconnect()
        return found


if __name__ == "__main__":
    harness.run_async(Saq())
