"""A command: handled by a server, called by a client."""

import asyncio
from dataclasses import dataclass

from matador.rpc import RemoteError, RpcClient, RpcContext, RpcServer

URL = "memory://"  # or sqlite:///calls.db, amqp://localhost, redis://localhost


@dataclass
class Add:
    a: int
    b: int


server = RpcServer(URL, queue="maths")


@server.handler("ADD")
async def add(request: Add, ctx: RpcContext) -> int:
    return request.a + request.b


@server.handler("DIVIDE")
def divide(request: Add) -> float:
    return request.a / request.b


async def main() -> None:
    async with server, RpcClient(URL, queue="maths") as client:
        total = await client.call("ADD", Add(1, 2), timeout=5, result_type=int)
        print(total)
        try:
            await client.call("DIVIDE", Add(1, 0))
        except RemoteError as error:
            print(error.code, error.remote_message)


if __name__ == "__main__":
    asyncio.run(main())
