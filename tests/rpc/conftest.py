"""A queue of its own for each test, on each broker that carries calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics
from tests.support.rabbitmq import Raw
from tests.support.redis import forget_keys

from matador.rpc import RpcClient, RpcServer

REAL = [
    pytest.param("rabbitmq", marks=pytest.mark.broker),
    pytest.param("redis", marks=pytest.mark.broker),
    pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.xdist_group("kafka")]),
]
BROKERS = ["memory", "sqlite", *REAL]

pipeline = pytest.mark.parametrize("place", ["memory", REAL[0]], indirect=True)
"""For what is decided without the transport: in memory, and on one broker."""


@dataclass
class Place:
    """Where the calls of a test go."""

    name: str
    url: str
    queue: str

    def server(self, **options: Any) -> RpcServer:
        return RpcServer(self.url, queue=self.queue, **options)

    def client(self, **options: Any) -> RpcClient:
        return RpcClient(self.url, queue=self.queue, **options)


@pytest_asyncio.fixture(params=BROKERS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    queue = f"test-rpc-{uuid4().hex[:12]}"
    match request.param:
        case "memory":
            yield Place("memory", "memory://", queue)
        case "sqlite":
            yield Place("sqlite", f"sqlite:///{tmp_path}/calls.db?busy_timeout=100", queue)
        case "rabbitmq":
            url = broker_url("rabbitmq")
            yield Place("rabbitmq", url, queue)
            await asyncio.to_thread(_delete, url, queue)
        case "kafka":
            url = broker_url("kafka")
            yield Place("kafka", f"{url}?partitions=4", queue)
            await asyncio.to_thread(forget_topics, url, queue)
        case _:
            url = broker_url("redis")
            yield Place("redis", f"{url}?prefix={queue}", queue)
            await forget_keys(url, queue)


def _delete(url: str, queue: str) -> None:
    with Raw(url) as raw:
        raw.delete([], [queue, f"{queue}.dlq"])
        raw.channel.exchange_delete(f"{queue}.dlx")
