"""arq on Redis, 64 at once. It polls: every half second by default, and so it is measured."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import harness
import streams
from arq import create_pool
from arq.connections import RedisSettings
from arq.constants import default_queue_name
from arq.worker import Worker, func

URL = sys.argv[2]
SETTINGS = RedisSettings.from_dsn(URL)
logging.disable(logging.CRITICAL)


class Arq:
    def __init__(self) -> None:
        self.worker: Any = None
        self.pool: Any = None

    async def fresh(self, url: str) -> None:
        await streams.flush(URL)

    async def connect(self) -> None:
        self.pool = await create_pool(SETTINGS)

    async def send(self, payload: harness.Payload) -> None:
        await self.pool.enqueue_job("count", payload)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        async def count(context: Any, payload: dict) -> None:
            handle(payload)

        self.worker = Worker(
            functions=[func(count, name="count", keep_result=0)],
            redis_settings=SETTINGS,
            max_jobs=harness.CONCURRENCY,
            handle_signals=False,
            keep_result=0,
            log_results=False,
        )
        self.running = asyncio.create_task(self.worker.async_run())
        await asyncio.sleep(0.3)

    async def close(self) -> None:
        await asyncio.sleep(1.2)  # it removes what is done when it polls
        if self.worker is not None:
            self.running.cancel()
            await asyncio.wait([self.running])
            await self.worker.close()
        if self.pool is not None:
            await self.pool.aclose()

    async def left(self) -> int:
        pool = await create_pool(SETTINGS)
        found = await pool.zcard(default_queue_name)
        await pool.aclose()
        return found


if __name__ == "__main__":
    harness.run_async(Arq())
