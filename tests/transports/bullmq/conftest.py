"""A server of their own for these tests, and benches that are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest_asyncio
from tests.support.node import Node
from tests.support.own_redis import client, fleet, prefix, server
from tests.support.redis import OwnServer, forget_keys

from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.testing.compliance.bench import Bench
from matador.transports.bullmq import BullMQTransport

__all__ = ["client", "fleet", "prefix", "server"]

Open: TypeAlias = Callable[..., Awaitable[Bench]]


@pytest_asyncio.fixture
async def node(server: OwnServer, prefix: str) -> AsyncIterator[Node]:
    async with Node(server.port, prefix) as node:
        yield node


@pytest_asyncio.fixture
async def open_bench(server: OwnServer, prefix: str) -> AsyncIterator[Open]:
    """Makes benches: connected transports with their topology applied."""
    opened: list[BullMQTransport] = []

    async def open_(
        *queues: str | WorkQueue, dead_letters: DeadLetters | None = None, **options: Any
    ) -> Bench:
        options.setdefault("lease", 30)
        url = f"bullmq://127.0.0.1:{server.port}/0?prefix={prefix}"
        transport = BullMQTransport(url, **options)
        opened.append(transport)
        await transport.connect()
        topology = Topology("shop", queues=queues or ["events"], dead_letters=dead_letters)
        notes = await transport.apply_topology(topology)
        return Bench(transport, topology, notes, patience=30, quiet=0.1)

    yield open_
    for transport in opened:
        await transport.disconnect()
    await forget_keys(server.url, prefix)
