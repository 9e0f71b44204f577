"""Jobs, RPC, pub/sub and channels, each on the same SQLite file: no server.

`./script/demo` runs it. Its data is in .demo/ways; each run starts afresh.
"""

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from demo import chapter, console

from matador.testing import wait_for

URL = "sqlite:///demo.db"
done: list[str] = []


def say(text: str) -> None:
    done.append(text)
    console.print(text)


# --8<-- [start:jobs]
from matador.jobs import Queue, Worker

emails = Queue("emails", provider=URL)


@emails.job(attempts=5)
async def welcome(to: str, lang: str = "en") -> str:
    return f"sent to {to} in {lang}"


async def run_a_job() -> str:
    async with emails, Worker(emails):
        handle = await welcome.add(to="ada@example.com")  # options: welcome.with_options(delay=10)
        return await handle.result(timeout=5)


# --8<-- [end:jobs]

# --8<-- [start:rpc]
from matador.rpc import RpcClient, RpcServer

server = RpcServer(URL, queue="maths")


@server.handler("ADD")
async def add(numbers: list[int]) -> int:
    return sum(numbers)


async def call_a_function() -> int:
    async with server, RpcClient(URL, queue="maths") as client:
        return await client.call("ADD", [1, 2, 3], timeout=5, result_type=int)


# --8<-- [end:rpc]

# --8<-- [start:pubsub]
from matador.pubsub import Publisher, Subscriber

analytics = Subscriber(URL, exchange="shop", queue="analytics")


@analytics.on("orders.*")
async def count_order(order: dict[str, int]) -> None:
    say(f"analytics saw order {order['id']}")


async def publish_a_message() -> None:
    async with analytics, Publisher(URL, exchange="shop") as publisher:
        await publisher.publish("orders.created", {"id": 1})
        await wait_for(lambda: done)


# --8<-- [end:pubsub]

# --8<-- [start:channels]
from matador.channels import QueueService, QueueSettings, Settings, channel, consume


@dataclass(frozen=True)
class OrderCreated:
    order_id: str


@channel("orders")
class Orders:
    @consume("created")
    async def created(self, order: OrderCreated) -> None:
        say(f"the channel got order {order.order_id}")


async def send_to_a_channel() -> None:
    settings = Settings(QueueSettings(type="sqlite", url=URL))  # or: from a TOML file
    async with QueueService(settings, channels=[Orders]) as service:
        await service.send("orders", "created", OrderCreated("7"))
        await wait_for(lambda: len(done) == 2)


# --8<-- [end:channels]


async def main() -> None:
    chapter("6", "A background job: added, run, and its result")
    console.print(await run_a_job())
    chapter("7", "RPC: a function in another process, called by name")
    console.print(f"ADD [1, 2, 3] = {await call_a_function()}", markup=False)
    chapter("8", "Pub/sub: to everybody whose pattern matches the routing key")
    await publish_a_message()
    chapter("9", "Channels: consumers as methods of a class")
    await send_to_a_channel()


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/ways")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    asyncio.run(main())
