"""The dead letters of an RPC server: counted, shown and redriven after the fault is repaired."""

from __future__ import annotations

import asyncio

from matador import DontRetry
from matador.rpc import RpcClient, RpcServer
from matador.runtime.dead_letters import Selection
from matador.testing import wait_for

server = RpcServer("memory://", queue="mail")
broken = True
mailed: list[str] = []


@server.handler("WELCOME")
async def welcome(address: str) -> None:
    if broken:
        raise DontRetry("the mail server is away")
    mailed.append(address)


async def main() -> None:
    global broken
    async with server, RpcClient("memory://", queue="mail") as client:
        await client.notify("WELCOME", "ada@example.com")
        await wait_for(server.dead_letters.count)
        # --8<-- [start:dead-letters]
        letters = server.dead_letters
        print(await letters.count(), "failed")
        async for letter in letters.browse(Selection(name="WELCOME")):
            print(letter.name, letter.payload, letter.attempts, letter.error)
        broken = False
        moved = await letters.redrive(Selection(error_type="DontRetry"))
        print(moved.done, "redriven")
        # --8<-- [end:dead-letters]
        await wait_for(lambda: mailed == ["ada@example.com"])


if __name__ == "__main__":
    asyncio.run(main())
