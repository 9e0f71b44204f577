"""A file with one object of each way in. Each of them fails while there is a file ``broken``.

Tests copy it into a folder, and run ``matador worker`` and ``matador dashboard`` on it.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matador import DontRetry, Envelope, Matador, Schema, Topology, event, subscriber
from matador.channels import QueueService, channel, consume
from matador.channels.settings import QueueSettings, Settings
from matador.jobs import Queue
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer

URL, NAME = os.environ["EVERY_URL"], os.environ["EVERY_NAME"]
KIND: Any = {"amqp": "rabbitmq"}.get(scheme := URL.partition(":")[0], scheme)


def work(what: str) -> None:
    """Fail for as long as something is broken."""
    if Path("broken").exists():
        raise DontRetry(f"<img src=x onerror=alert(1)> {what} is out of order")


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int = 1


@subscriber(description="Charge the card.", idempotent="yes")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    work("the bank")


app = Matador(
    URL,
    schema=Schema({OrderPlaced: [charge]}),
    topology=Topology(NAME, queues=["events"]),
    consume_from=["events"],
)

emails = Queue(f"{NAME}-emails", provider=URL)


@emails.job(attempts=1)
async def welcome(to: str) -> None:
    work("the mail server")


server = RpcServer(URL, queue=f"{NAME}-maths")


@server.handler("ADD")
async def add(request: dict[str, int]) -> int:
    work("arithmetic")
    return request["a"] + request["b"]


analytics = Subscriber(URL, exchange=f"{NAME}-shop", queue=f"{NAME}-analytics")


@analytics.on("orders.*")
async def count_orders(message: dict[str, int]) -> None:
    work("the abacus")


@channel(f"{NAME}-parcels")
class Parcels:
    @consume("created")
    async def created(self, parcel: dict[str, int]) -> None:
        work("the van")


MODE: Any = "stream" if KIND == "redis" else None
SETTINGS = Settings(QueueSettings(type=KIND, url=URL, mode=MODE))
service = QueueService(SETTINGS, channels=[Parcels])
SERVICES = (app, emails, server, analytics, service)
QUEUES = ("events", emails.name, server.queue, analytics.queue, f"{NAME}-parcels.created")
"""The names of their queues in the dashboard."""


async def send() -> None:
    """Send one message to each."""
    async with (
        app.producer() as shop,
        Queue(emails.name, provider=URL) as jobs,
        RpcClient(URL, queue=server.queue) as client,
        Publisher(URL, exchange=f"{NAME}-shop") as publisher,
        QueueService(SETTINGS) as sender,
    ):
        await shop.send(OrderPlaced("1"))
        await jobs.add("welcome", {"to": "ada@example.com"}, attempts=1)
        await client.notify("ADD", {"a": 1, "b": 2})
        await publisher.publish("orders.created", {"id": 1})
        await sender.send(f"{NAME}-parcels", "created", {"id": 1})


if __name__ == "__main__":
    asyncio.run(send())
