"""Raw redis-py on asyncio with hiredis: a stream, pipelines of 64, acknowledged 64 at a time."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import harness
import redis.asyncio as redis

URL, STREAM, GROUP = sys.argv[2], "bench.redis", "bench"
BATCH = 64


class Redis:
    def __init__(self) -> None:
        self.clients: list[Any] = []
        self.worker: asyncio.Task[None] | None = None

    async def fresh(self, url: str) -> None:
        client = redis.from_url(URL)
        await client.flushdb()
        await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        await client.aclose()

    def open(self) -> Any:
        client = redis.from_url(URL)
        self.clients.append(client)
        return client

    async def connect(self) -> None:
        self.client = self.open()
        await self.client.ping()

    async def send(self, payload: harness.Payload) -> None:
        await self.client.xadd(STREAM, {b"data": json.dumps(payload).encode()})

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        for start in range(0, len(payloads), BATCH):
            pipeline = self.client.pipeline(transaction=False)
            for payload in payloads[start : start + BATCH]:
                pipeline.xadd(STREAM, {b"data": json.dumps(payload).encode()})
            await pipeline.execute()

    async def work(self, handle: harness.Handle) -> None:
        client = self.open()
        await client.ping()

        async def loop() -> None:
            while True:
                found = await client.xreadgroup(
                    GROUP, "worker", {STREAM: ">"}, count=BATCH, block=2000
                )
                for _, entries in found:
                    for _, fields in entries:
                        handle(json.loads(fields[b"data"]))
                    ids = [id_ for id_, _ in entries]
                    pipeline = client.pipeline(transaction=False)
                    pipeline.xack(STREAM, GROUP, *ids)
                    pipeline.xdel(STREAM, *ids)
                    await pipeline.execute()

        self.worker = asyncio.create_task(loop())

    async def close(self) -> None:
        await asyncio.sleep(0.05)
        if self.worker is not None:
            self.worker.cancel()
            await asyncio.wait([self.worker])
        for client in self.clients:
            await client.aclose()

    async def left(self) -> int:
        async with redis.from_url(URL) as client:
            return await client.xlen(STREAM)


if __name__ == "__main__":
    harness.run_async(Redis())
