"""A server of their own for these tests, a namespace for each, and transports that are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.redis import OwnServer, forget_keys, plain_client

from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.testing.compliance.bench import Bench
from matador.transports.redis import RedisListTransport, RedisTransport

Open: TypeAlias = Callable[..., Any]
OpenEither: TypeAlias = Callable[..., Awaitable["Keyed"]]
OpenList: TypeAlias = Callable[..., Awaitable[Bench]]


class Keyed(Bench):
    """A bench that knows the keys of its queues."""

    transport: Any

    def key(self, queue: str | None = None) -> str:
        return self.transport._key(queue or self.name())


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


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex[:10]}"


@pytest_asyncio.fixture
async def open_bench(server: OwnServer, prefix: str) -> AsyncIterator[Open]:
    """Makes benches: connected transports with their topology applied."""
    opened: list[RedisTransport] = []

    async def open_(
        *queues: str | WorkQueue,
        dead_letters: DeadLetters | None = None,
        url: str = server.url,
        **options: Any,
    ) -> Bench:
        options.setdefault("lease", 30)
        transport = RedisTransport(url, prefix=prefix, **options)
        opened.append(transport)
        await transport.connect()
        topology = Topology("shop", queues=queues or ["events"], dead_letters=dead_letters)
        notes = await transport.apply_topology(topology)
        return Keyed(transport, topology, notes, patience=30, quiet=0.1)

    yield open_
    for transport in opened:
        await transport.disconnect()
    await forget_keys(server.url, prefix)


@pytest_asyncio.fixture
async def open_list(server: OwnServer, prefix: str) -> AsyncIterator[OpenList]:
    opened: list[RedisListTransport] = []

    async def open_(dead_letters: DeadLetters | None = None, lease: float = 30) -> Bench:
        transport = RedisListTransport(server.url, prefix=prefix, lease=lease)
        opened.append(transport)
        await transport.connect()
        topology = Topology("shop", queues=["events", "slow"], dead_letters=dead_letters)
        notes = await transport.apply_topology(topology)
        return Bench(transport, topology, notes, patience=30, quiet=0.1)

    yield open_
    for transport in opened:
        await transport.disconnect()
    await forget_keys(server.url, f"{prefix}-list")


@pytest_asyncio.fixture(params=["streams", "lists"])
async def open_either(
    request: pytest.FixtureRequest, server: OwnServer, prefix: str
) -> AsyncIterator[OpenEither]:
    """Makes benches of either kind that stores something."""
    kind = RedisTransport if request.param == "streams" else RedisListTransport
    opened: list[RedisTransport | RedisListTransport] = []

    async def open_(*, dead_letters: DeadLetters | None = None, **options: Any) -> Keyed:
        options.setdefault("lease", 30)
        transport = kind(server.url, prefix=prefix, **options)
        opened.append(transport)
        await transport.connect()
        topology = Topology("shop", queues=["events", "slow"], dead_letters=dead_letters)
        notes = await transport.apply_topology(topology)
        return Keyed(transport, topology, notes, patience=30, quiet=0.3)

    yield open_
    for transport in opened:
        await transport.disconnect()
    await forget_keys(server.url, prefix)
    await forget_keys(server.url, f"{prefix}-list")
