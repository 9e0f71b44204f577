"""aio-pika's RPC pattern, with JSON and a durable queue."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import sys
from typing import Any

import aio_pika
import rabbit
import rpc_harness
from aio_pika.patterns import JsonRPC

URL, COMMAND = sys.argv[2], "bench.rpc.aio_pika"


async def add(*, data: dict[str, Any]) -> int:
    return data["amount"] + 1


class AioPikaRpc:
    async def _open(self) -> None:
        self.connection = await aio_pika.connect(URL)
        self.channel = await self.connection.channel()
        await self.channel.set_qos(prefetch_count=100)
        self.rpc = await JsonRPC.create(self.channel)

    async def serve(self) -> None:
        rabbit.remove(URL, COMMAND)
        await self._open()
        await self.rpc.register(COMMAND, add, durable=True)

    async def connect(self) -> None:
        await self._open()

    async def call(self, payload: dict[str, Any]) -> Any:
        return await self.rpc.call(COMMAND, {"data": payload}, expiration=30)

    async def close(self) -> None:
        await self.connection.close()


if __name__ == "__main__":
    rpc_harness.run(AioPikaRpc())
