"""A script without an event loop: it adds a job, calls a function and publishes a message."""

import asyncio
import threading

from matador.jobs import Queue, Worker
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer

URL = "sqlite:///blocking.db"
emails = Queue("emails", provider=URL)
client = RpcClient(URL, queue="maths")
publisher = Publisher(URL, exchange="shop")

server = RpcServer(URL, queue="maths")
analytics = Subscriber(URL, exchange="shop", queue="analytics")
counted = threading.Event()


@emails.job(attempts=5)
def send_welcome(to: str, lang: str = "en") -> str:
    return f"sent to {to} in {lang}"


@server.handler("ADD")
async def add(numbers: list[int]) -> int:
    return sum(numbers)


@analytics.on("orders.*")
def count(order: dict[str, int]) -> None:
    counted.set()


def script() -> None:
    # --8<-- [start:jobs]
    handle = send_welcome.sync().add(to="ada@example.com")  # connects on first use
    print(handle.result(timeout=30))
    print(emails.sync().stats().completed, "completed")
    # --8<-- [end:jobs]

    # --8<-- [start:rpc]
    with client.sync() as maths:  # disconnects at the end of the block
        print(maths.call("ADD", [1, 2, 3], timeout=30, result_type=int))
        maths.notify("ADD", [4, 5])
    # --8<-- [end:rpc]

    # --8<-- [start:pubsub]
    published = publisher.sync().publish("orders.created", {"id": 1})
    print("stored in", published.queues, "queue")
    # --8<-- [end:pubsub]
    counted.wait(30)


async def main() -> None:
    async with Worker(emails), server, analytics:  # usually in another process
        await asyncio.to_thread(script)


if __name__ == "__main__":
    asyncio.run(main())
