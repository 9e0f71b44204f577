"""Taskiq on Redis streams, acknowledged after the handler."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import harness
import streams
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

URL, STREAM, GROUP = sys.argv[2], "bench.taskiq", "bench"
logging.disable(logging.WARNING)


class Taskiq:
    def __init__(self) -> None:
        self.handle: Any = None
        self.worker: asyncio.Task[None] | None = None
        self.started = False
        self.broker = RedisStreamBroker(
            URL,
            queue_name=STREAM,
            consumer_group_name=GROUP,
            consumer_id="0",
            max_connection_pool_size=2 * harness.CONCURRENCY,
        )

        @self.broker.task(task_name="count")
        async def count(payload: dict) -> None:
            self.handle(payload)

        self.task = count

    async def fresh(self, url: str) -> None:
        await streams.flush(URL)

    async def connect(self) -> None:
        await self.broker.startup()
        self.started = True

    async def send(self, payload: harness.Payload) -> None:
        await self.task.kiq(payload)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        self.handle = handle
        if not self.started:
            await self.connect()
        self.worker = asyncio.create_task(
            run_receiver_task(
                self.broker,
                max_async_tasks=harness.CONCURRENCY,
                ack_time=AcknowledgeType.WHEN_EXECUTED,
            )
        )
        await asyncio.sleep(0.2)

    async def close(self) -> None:
        await asyncio.sleep(0.2)
        if self.worker is not None:
            self.worker.cancel()
            await asyncio.wait([self.worker])
        await self.broker.shutdown()

    async def left(self) -> int:
        return await streams.left(URL, STREAM, GROUP)


if __name__ == "__main__":
    harness.run_async(Taskiq())
