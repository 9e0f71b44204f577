"""RPC: a function in another process, called by name."""

import asyncio

from matador.rpc import RpcClient, RpcServer

server = RpcServer("sqlite:///shop.db", queue="maths")


@server.handler("ADD")
async def add(numbers: list[int]) -> int:
    return sum(numbers)


async def main() -> None:
    async with server, RpcClient("sqlite:///shop.db", queue="maths") as client:
        total = await client.call("ADD", [1, 2, 3], timeout=5, result_type=int)
        print(f"ADD [1, 2, 3] = {total}")


if __name__ == "__main__":
    asyncio.run(main())
