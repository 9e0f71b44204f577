"""Matador's RPC as a contestant, in processes of its own, as its peers are.

python -m benchmarks.rpc_contestant one|many URL NUMBER
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.peers import rpc_harness
from matador.rpc import RpcClient, RpcServer

QUEUE = "bench.rpc.matador"


class Ours:
    def __init__(self, url: str) -> None:
        self._server = RpcServer(url, queue=QUEUE, concurrency=100)
        self._client = RpcClient(url, queue=QUEUE)

    async def serve(self) -> None:
        @self._server.handler("ADD")
        async def add(data: dict[str, Any]) -> int:
            return int(data["amount"]) + 1

        await self._server.start()

    async def connect(self) -> None:
        await self._client.start()

    async def call(self, payload: dict[str, Any]) -> Any:
        return await self._client.call("ADD", payload)

    async def close(self) -> None:
        await self._client.shutdown()
        await self._server.shutdown()


if __name__ == "__main__":
    rpc_harness.run(Ours(sys.argv[2]), ["-m", "benchmarks.rpc_contestant"])
