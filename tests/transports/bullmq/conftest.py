"""A server of their own for these tests, and benches that are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from tests.support.node import Node
from tests.support.own_redis import (
    Connected,
    bullmq_url,
    client,
    connected,
    fleet,
    prefix,
    server,
)
from tests.support.redis import OwnServer

from matador.model.topology import DeadLetters, WorkQueue
from matador.testing.compliance.bench import Bench
from matador.transports.bullmq import BullMQTransport

__all__ = ["bullmq_url", "client", "connected", "fleet", "prefix", "server"]

Open: TypeAlias = Callable[..., Awaitable[Bench]]


@pytest_asyncio.fixture
async def node(server: OwnServer, prefix: str) -> AsyncIterator[Node]:
    async with Node(server.port, prefix) as node:
        yield node


@pytest.fixture
def open_bench(bullmq_url: str, connected: Connected) -> Open:
    """Makes benches: connected transports with their topology applied."""

    async def open_(
        *queues: str | WorkQueue,
        dead_letters: DeadLetters | None = None,
        lease: float = 30,
        **options: Any,
    ) -> Bench:
        transport = BullMQTransport(bullmq_url, lease=lease, **options)
        return await connected(transport, *queues, dead_letters=dead_letters)

    return open_
