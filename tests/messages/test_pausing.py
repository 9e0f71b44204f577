"""A pause holds whoever receives from the queue: servers of commands and subscribers, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.redis import forget_keys

from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer, RpcTimeoutError
from matador.testing import wait_for
from matador.transports.base import Measuring, QueuePausing
from matador.transports.urls import transport_from_url


@pytest_asyncio.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.broker)])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/calls.db"
        return
    server, prefix = broker_url("redis"), f"pause-{uuid4().hex[:8]}"
    yield f"{server}?prefix={prefix}"
    await forget_keys(server, prefix)


class Operator:
    """Another process, as far as the broker can tell."""

    def __init__(self, url: str) -> None:
        self.transport: Any = transport_from_url(url)

    async def __aenter__(self) -> Any:
        await self.transport.connect()
        assert isinstance(self.transport, QueuePausing)
        assert isinstance(self.transport, Measuring)
        return self.transport

    async def __aexit__(self, *_: object) -> None:
        await self.transport.disconnect()


async def test_a_paused_server_answers_after_the_pause(url: str) -> None:
    server = RpcServer(url, queue="maths")

    @server.handler("ADD")
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    async with server, RpcClient(url, queue="maths") as client, Operator(url) as operator:
        assert await client.call("ADD", [1, 2], timeout=10) == 3
        await operator.pause_queue("maths")
        with pytest.raises(RpcTimeoutError):
            await client.call("ADD", [3, 4], timeout=0.2)
        waiting = asyncio.create_task(client.call("ADD", [5, 6], timeout=20))
        await wait_for(lambda: _holds(operator, "maths", 1))
        assert server.health().status == "healthy"
        assert not waiting.done()
        await operator.resume_queue("maths")
        assert await waiting == 11


async def test_a_paused_subscriber_gets_everything_after_the_pause(url: str) -> None:
    got: list[int] = []
    subscriber = Subscriber(url, exchange="events", queue="analytics")

    @subscriber.on("orders.*")
    async def count(order: int) -> None:
        got.append(order)

    publisher = Publisher(url, exchange="events")
    async with subscriber, publisher, Operator(url) as operator:
        await operator.pause_queue("analytics")
        for order in (1, 2, 3):
            await publisher.publish("orders.created", order)
        await wait_for(lambda: _holds(operator, "analytics", 3))
        assert got == []
        await operator.resume_queue("analytics")
        await wait_for(lambda: sorted(got) == [1, 2, 3])


async def _holds(transport: Any, queue: str, number: int) -> bool:
    return (await transport.depth(queue)).ready >= number
