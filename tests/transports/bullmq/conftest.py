"""A server of their own for these tests, and benches that are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.node import FLEETS, Node
from tests.support.redis import OwnServer, forget_keys, plain_client

from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.testing.compliance.bench import Bench
from matador.transports.bullmq import BullMQTransport

Open: TypeAlias = Callable[..., Awaitable[Bench]]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("bullmq"))
    own.start()
    yield own
    own.stop()


@pytest_asyncio.fixture
async def client(server: OwnServer) -> AsyncIterator[Any]:
    """A plain client: what anybody else sees of the server."""
    async with plain_client(server.url) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex[:10]}"


@pytest_asyncio.fixture
async def node(server: OwnServer, prefix: str) -> AsyncIterator[Node]:
    async with Node(server.port, prefix) as node:
        yield node


@pytest_asyncio.fixture(params=FLEETS)
async def fleet(
    server: OwnServer, prefix: str, request: pytest.FixtureRequest
) -> AsyncIterator[Node]:
    """BullMQ on Node, in each version that differs."""
    async with Node(server.port, prefix, request.param) as node:
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
