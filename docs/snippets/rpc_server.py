"""A server that tells callers what is wrong, runs payments once, and keeps what failed."""

import asyncio

from matador.rpc import (
    AckStrategy,
    DeadLetterOptions,
    Deduplication,
    RemoteError,
    RpcClient,
    RpcContext,
    RpcServer,
    RpcTimeoutError,
)

URL = "memory://"
logged = asyncio.Event()

# --8<-- [start:server]
server = RpcServer(
    URL,
    queue="payments",
    concurrency=20,
    timeout=10,  # seconds; then the caller gets a TimeoutError
    slow_call=2,  # seconds; then a warning is logged
    hide_errors=True,  # callers do not see the text of unexpected exceptions
    deduplication=Deduplication(ttl=3600),  # a request that arrives twice runs once
    ack=AckStrategy(max_retries=5, retry_delay=0.01),  # for notifications
    dead_letters=DeadLetterOptions(max_length=10_000),  # kept in payments.dlq
)


@server.handler("CHARGE")
async def charge(data: dict[str, int], ctx: RpcContext) -> str:
    if data["amount"] > 1000:
        raise RemoteError("LIMIT", "the amount is too large", {"limit": 1000})
    return f"charged {data['amount']} for {ctx.headers.get('customer', 'nobody')}"


@server.handler("LOG")
async def log(data: str, ctx: RpcContext) -> None:
    if ctx.attempts < 3:
        raise OSError("the disk is full")
    print(f"logged {data} in attempt {ctx.attempts}")
    logged.set()


# --8<-- [end:server]


@server.handler("SLOW")
async def slow() -> None:
    await asyncio.Event().wait()


async def main() -> None:
    async with server, RpcClient(URL, queue="payments") as client:
        # --8<-- [start:calls]
        metadata = {"customer": "ada"}
        print(await client.call("CHARGE", {"amount": 5}, metadata=metadata, message_id="order-7"))
        try:
            await client.call("CHARGE", {"amount": 5000})
        except RemoteError as error:
            print(error.code, error.details)
        try:
            await client.call("SLOW", timeout=0.1)
        except RpcTimeoutError as error:
            print(error)
        await client.notify("LOG", "paid")  # returns once the request is stored
        # --8<-- [end:calls]
        await logged.wait()
        await server.shutdown(timeout=0)


if __name__ == "__main__":
    asyncio.run(main())
