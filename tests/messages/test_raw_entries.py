"""Odd entries written past the transports, under RPC servers, subscribers and channels.

The compliance suite does this with events. The other ways in read more of a message: what it is a
reply to, its routing key, its type.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics
from tests.support.rabbitmq import Raw
from tests.support.raw_kafka import RawKafka
from tests.support.raw_memory import MemoryEntries
from tests.support.raw_rabbitmq import RawRabbitMQ
from tests.support.raw_redis import RawStreams
from tests.support.raw_sqlite import SqliteEntries
from tests.support.redis import forget_keys

from matador.channels import QueueService, QueueSettings, RetrySettings, Settings, channel, consume
from matador.errors import MatadorError
from matador.messages.connection import Connection
from matador.pubsub import Publisher, Subscriber
from matador.rpc import AckStrategy, RpcClient, RpcServer
from matador.testing import wait_for
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Measuring, Transport
from matador.transports.memory import MemoryTransport

BATCHES, BATCH = int(os.environ.get("MATADOR_RAW_BATCHES", "4")), 25
NO_RETRIES = AckStrategy(max_retries=1)


class Place:
    """A broker, and a queue on it."""

    def __init__(self, broker: str, url: str, name: str) -> None:
        self.broker = broker
        self.url = url
        self.name = name
        self.connection = Connection(url, "test")

    @property
    def transport(self) -> Transport:
        return self.connection.transport

    def entries(self) -> RawEntries:
        """What writes into queues that are there already."""
        match self.broker:
            case "memory":
                assert isinstance(self.transport, MemoryTransport)
                return MemoryEntries(self.transport)
            case "sqlite":
                return SqliteEntries(Path(self.url.removeprefix("sqlite:///")))
            case "rabbitmq":
                return RawRabbitMQ(self.url)
            case "redis":
                return RawStreams(self.url.partition("?")[0], prefix=self.name)
            case _:
                return RawKafka(self.url.partition("?")[0])


@pytest_asyncio.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("rabbitmq", marks=[pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]),
        pytest.param("redis", marks=pytest.mark.broker),
        pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.xdist_group("kafka")]),
    ]
)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    broker: str = request.param
    name = f"raw-{uuid4().hex[:12]}"
    match broker:
        case "memory":
            url = f"memory://?name={name}"
        case "sqlite":
            url = f"sqlite:///{tmp_path / 'raw.db'}"
        case "redis":
            url = f"{broker_url('redis')}?prefix={name}"
        case "kafka":
            url = f"{broker_url('kafka')}?partitions=2"
        case _:
            url = broker_url(broker)
    place = Place(broker, url, name)
    await place.connection.open()
    try:
        yield place
    finally:
        await place.connection.close()
        match broker:
            case "redis":
                await forget_keys(url.partition("?")[0], name)
            case "kafka":
                forget_topics(url.partition("?")[0], name)
            case "rabbitmq":
                with Raw(url) as raw:
                    raw.delete([], [f"{name}.made", f"{name}.made.dlq"])
                    raw.channel.exchange_delete(name)
            case _:
                pass


Greet: TypeAlias = Callable[[int], Awaitable[None]]
"""Send a good message."""

Way: TypeAlias = Callable[[Place, list[int]], AbstractAsyncContextManager[Greet]]
"""What consumes ``{name}.made`` and notes the good messages."""


@asynccontextmanager
async def rpc(place: Place, seen: list[int]) -> AsyncGenerator[Greet]:
    queue = f"{place.name}.made"
    server = RpcServer(place.url, queue=queue, concurrency=4, ack=NO_RETRIES)

    @server.handler("GREET")
    async def greet(data: int) -> int:
        seen.append(data)
        return data

    async with server, RpcClient(place.url, queue=queue) as client:

        async def call(number: int) -> None:
            assert await client.call("GREET", number, timeout=30) == number

        yield call


@asynccontextmanager
async def pubsub(place: Place, seen: list[int]) -> AsyncGenerator[Greet]:
    exchange, queue = place.name, f"{place.name}.made"
    subscriber = Subscriber(
        place.url, exchange=exchange, queue=queue, concurrency=4, ack=NO_RETRIES
    )

    @subscriber.on("good.#")
    async def handle(message: int) -> None:
        seen.append(message)

    async with subscriber, Publisher(place.url, exchange=exchange) as publisher:

        async def publish(number: int) -> None:
            await publisher.publish("good.one", number)

        yield publish


@asynccontextmanager
async def channels(place: Place, seen: list[int]) -> AsyncGenerator[Greet]:
    @channel(place.name)
    class Made:
        @consume("made")
        async def made(self, number: int) -> None:
            seen.append(number)

    kind: Any = place.broker
    mode = "stream" if kind == "redis" else None
    queue = QueueSettings(type=kind, url=place.url, mode=mode, prefetch=4)
    settings = Settings(queue, RetrySettings(enabled=False))
    async with QueueService(settings, channels=[Made()]) as service:

        async def send(number: int) -> None:
            await service.send(place.name, "made", number)

        yield send


@pytest.mark.parametrize("way", [rpc, pubsub, channels], ids=lambda way: way.__name__)
async def test_odd_entries_and_their_neighbours(place: Place, way: Way) -> None:
    seen: list[int] = []
    queue = f"{place.name}.made"
    async with way(place, seen) as greet:
        entries = place.entries()
        written: list[str] = []
        number = 1_000_000_000  # none of the odd ones has it
        try:
            for start in range(0, BATCHES * BATCH, BATCH):
                written = [
                    await entries.write(queue, Random(f"{way.__name__}/{one}"))
                    for one in range(start, start + BATCH)
                ]
                for _ in range(3):
                    number += 1
                    await greet(number)
                last = number
                await wait_for(lambda last=last: last in seen, timeout=30)
        except (MatadorError, TimeoutError) as error:
            raise AssertionError(f"{error!r} after {written}") from error
        finally:
            await entries.close()
        good = [one for one in seen if one > 1_000_000_000]
        assert sorted(good) == list(range(1_000_000_001, number + 1))
        transport = place.transport
        assert isinstance(transport, Measuring)

        async def is_empty() -> bool:
            return (await transport.depth(queue)).total == 0

        await wait_for(is_empty, timeout=30)
