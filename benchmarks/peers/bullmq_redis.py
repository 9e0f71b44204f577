"""bullmq for Python: jobs added in bulk, 64 handled at once, removed when they are done.

With ``callers`` as the last argument 64 callers add them, one each at a time.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import sys
from typing import Any

import harness
import streams
from bullmq import Queue, Worker

URL, QUEUE = sys.argv[2], "bench"
BULK = 500
DONE = {"removeOnComplete": True}


class BullMQ:
    def __init__(self) -> None:
        self.worker: Any = None
        self.queue: Any = None

    async def fresh(self, url: str) -> None:
        await streams.flush(URL)

    async def connect(self) -> None:
        self.queue = Queue(QUEUE, {"connection": URL})

    async def send(self, payload: harness.Payload) -> None:
        await self.queue.add("count", payload, DONE)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        if "callers" in sys.argv[4:]:
            await harness.by_callers(self.send, payloads)
            return
        for start in range(0, len(payloads), BULK):
            await self.queue.addBulk(
                [
                    {"name": "count", "data": payload, "opts": DONE}
                    for payload in payloads[start : start + BULK]
                ]
            )

    async def work(self, handle: harness.Handle) -> None:
        async def count(job: Any, token: str) -> None:
            handle(job.data)

        processor: Any = count

        self.worker = Worker(
            QUEUE, processor, {"connection": URL, "concurrency": harness.CONCURRENCY}
        )
        await asyncio.sleep(0.3)

    async def close(self) -> None:
        await asyncio.sleep(0.3)
        if self.worker is not None:
            await self.worker.close(True)
        if self.queue is not None:
            await self.queue.close()

    async def left(self) -> int:
        queue = Queue(QUEUE, {"connection": URL})
        counts = await queue.getJobCounts("wait", "active", "delayed", "failed", "completed")
        await queue.close()
        return sum(counts.values())


if __name__ == "__main__":
    harness.run_async(BullMQ())
