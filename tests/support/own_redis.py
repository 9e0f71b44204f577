"""Fixtures of tests with a Redis of their own. A ``conftest.py`` imports those that it needs."""

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
from matador.transports.base import Transport

Connected: TypeAlias = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("redis"))
    own.start()
    yield own
    own.stop()


@pytest_asyncio.fixture
async def client(server: OwnServer) -> AsyncIterator[Any]:
    """A plain client: what anybody else sees of the server."""
    async with plain_client(server.url) as client:
        yield client


@pytest_asyncio.fixture
async def prefix(server: OwnServer) -> AsyncIterator[str]:
    """What the keys of a test begin with. They are deleted after the test."""
    prefix = f"test-{uuid4().hex[:10]}"
    yield prefix
    await forget_keys(server.url, prefix)
    await forget_keys(server.url, f"{prefix}-list")


@pytest.fixture
def bullmq_url(server: OwnServer, prefix: str) -> str:
    return f"bullmq://127.0.0.1:{server.port}/0?prefix={prefix}"


@pytest_asyncio.fixture
async def connected(prefix: str) -> AsyncIterator[Connected]:
    """Makes benches of transports: connects them, and disconnects them before keys are deleted."""
    opened: list[Transport] = []

    async def connect(
        transport: Transport,
        *queues: str | WorkQueue,
        dead_letters: DeadLetters | None = None,
        bench: type[Bench] = Bench,
        quiet: float = 0.1,
    ) -> Bench:
        opened.append(transport)
        await transport.connect()
        topology = Topology("shop", queues=queues or ["events"], dead_letters=dead_letters)
        notes = await transport.apply_topology(topology)
        return bench(transport, topology, notes, patience=30, quiet=quiet)

    yield connect
    for transport in opened:
        await transport.disconnect()


@pytest_asyncio.fixture(params=FLEETS)
async def fleet(
    server: OwnServer, prefix: str, request: pytest.FixtureRequest
) -> AsyncIterator[Node]:
    """BullMQ on Node, in each version that differs."""
    async with Node(server.port, prefix, request.param) as node:
        yield node
