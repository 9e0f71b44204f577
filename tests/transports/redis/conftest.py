"""A server of their own for these tests, a namespace for each, and transports that are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from tests.support.own_redis import client, prefix, server
from tests.support.redis import OwnServer, forget_keys

from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.testing.compliance.bench import Bench
from matador.transports.redis import RedisListTransport, RedisTransport

__all__ = ["client", "prefix", "server"]

Open: TypeAlias = Callable[..., Any]
OpenEither: TypeAlias = Callable[..., Awaitable["Keyed"]]
OpenList: TypeAlias = Callable[..., Awaitable[Bench]]


class Keyed(Bench):
    """A bench that knows the keys of its queues."""

    transport: Any

    def key(self, queue: str | None = None) -> str:
        return self.transport._key(queue or self.name())


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
