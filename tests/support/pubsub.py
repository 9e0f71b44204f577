"""Pub/sub on every broker: a place for one test, with names of its own, tidied up afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics
from tests.support.looking import connected, disconnect
from tests.support.rabbitmq import Raw
from tests.support.redis import forget_keys

from matador.model.message import Complete, Delivery
from matador.pubsub import Publisher, Subscriber
from matador.transports.base import Transport

BROKERS = [
    pytest.param("memory"),
    pytest.param("sqlite"),
    pytest.param("rabbitmq", marks=[pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]),
    pytest.param("redis", marks=pytest.mark.broker),
    pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.xdist_group("kafka")]),
]

pipeline = pytest.mark.parametrize(
    "place",
    ["memory", pytest.param("rabbitmq", marks=BROKERS[2].marks)],
    indirect=True,
)
"""For what is decided without the transport: in memory, and on one broker."""


class Place:
    """A broker, an exchange and queues that no other test uses."""

    def __init__(self, broker: str, url: str) -> None:
        self.broker = broker
        self.url = url
        self.name = f"ps-{uuid4().hex[:12]}"
        self.exchange = f"{self.name}.events"
        self.queues: set[str] = set()
        self._transport: Transport | None = None

    @property
    def unwanted(self) -> int:
        """In how many queues a message is said to be that nobody wants: Kafka cannot tell."""
        return 1 if self.broker == "kafka" else 0

    def queue(self, name: str) -> str:
        """The full name of a queue."""
        full = f"{self.name}.{name}"
        self.queues.add(full)
        return full

    def subscriber(self, queue: str | None = None, **options: Any) -> Subscriber:
        """A subscriber to the exchange."""
        named = None if queue is None else self.queue(queue)
        return Subscriber(self.url, exchange=self.exchange, queue=named, **options)

    def publisher(self, **options: Any) -> Publisher:
        """A publisher to the exchange."""
        given: dict[str, Any] = {"exchange": self.exchange, **options}
        return Publisher(self.url, **given)

    async def transport(self) -> Transport:
        """A transport to look from outside."""
        if self._transport is None:
            self._transport = await connected(self.url)
        return self._transport

    async def take(self, queue: str, count: int = 1) -> list[Delivery]:
        """So many messages of a queue, which are deleted."""
        transport = await self.transport()
        subscription = await transport.subscribe(queue, prefetch=count)
        found: list[Delivery] = []
        try:
            async with asyncio.timeout(15):
                while len(found) < count:
                    found += await subscription.receive(count - len(found))
            await transport.settle([Complete(one.receipt) for one in found])
        finally:
            await subscription.close()
        return found

    async def letters(self, queue: str, count: int = 1) -> list[Delivery]:
        """So many dead letters of a queue, which are deleted."""
        return await self.take(f"{self.queue(queue)}.dlq", count)

    async def close(self) -> None:
        """Delete everything."""
        if self._transport is not None:
            await disconnect(self._transport, self.url)
        if self.broker == "rabbitmq":
            with Raw(self.url) as raw:
                for queue in self.queues:
                    raw.channel.queue_delete(queue)
                    raw.channel.queue_delete(f"{queue}.dlq")
                for exchange in (self.exchange, f"{self.exchange}.2"):
                    raw.channel.exchange_delete(exchange)
        elif self.broker == "redis":
            await forget_keys(self.url.partition("?")[0], self.url.rpartition("=")[2])
        elif self.broker == "kafka":
            await asyncio.to_thread(forget_topics, self.url, self.name)


@asynccontextmanager
async def place_on(broker: str, folder: Path) -> AsyncGenerator[Place]:
    """A place on a broker."""
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{folder / 'pubsub.db'}"}
    url = urls.get(broker) or broker_url(broker)
    if broker == "redis":
        url = f"{url}?prefix=test-{uuid4().hex[:12]}"
    place = Place(broker, url)
    try:
        yield place
    finally:
        await place.close()
