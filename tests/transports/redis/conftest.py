"""A server of their own for these tests, a namespace for each, and transports that are closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from tests.support.own_redis import Connected, client, connected, prefix, server
from tests.support.redis import OwnServer

from matador.model.topology import DeadLetters, WorkQueue
from matador.testing.compliance.bench import Bench
from matador.transports.redis import RedisListTransport, RedisTransport

__all__ = ["client", "connected", "prefix", "server"]

Open: TypeAlias = Callable[..., Any]
OpenEither: TypeAlias = Callable[..., Awaitable["Keyed"]]
OpenList: TypeAlias = Callable[..., Awaitable[Bench]]


class Keyed(Bench):
    """A bench that knows the keys of its queues."""

    transport: Any

    def key(self, queue: str | None = None) -> str:
        return self.transport._key(queue or self.name())


@pytest.fixture
def open_bench(server: OwnServer, prefix: str, connected: Connected) -> Open:
    """Makes benches: connected transports with their topology applied."""

    async def open_(
        *queues: str | WorkQueue,
        dead_letters: DeadLetters | None = None,
        url: str = server.url,
        lease: float = 30,
        **options: Any,
    ) -> Bench:
        transport = RedisTransport(url, prefix=prefix, lease=lease, **options)
        return await connected(transport, *queues, dead_letters=dead_letters, bench=Keyed)

    return open_


@pytest.fixture
def open_list(server: OwnServer, prefix: str, connected: Connected) -> OpenList:
    async def open_(dead_letters: DeadLetters | None = None, lease: float = 30) -> Bench:
        transport = RedisListTransport(server.url, prefix=prefix, lease=lease)
        return await connected(transport, "events", "slow", dead_letters=dead_letters)

    return open_


@pytest.fixture(params=[RedisTransport, RedisListTransport], ids=["streams", "lists"])
def open_either(
    request: pytest.FixtureRequest, server: OwnServer, prefix: str, connected: Connected
) -> OpenEither:
    """Makes benches of either kind that stores something."""

    async def open_(
        *, dead_letters: DeadLetters | None = None, lease: float = 30, **options: Any
    ) -> Keyed:
        transport = request.param(server.url, prefix=prefix, lease=lease, **options)
        return await connected(
            transport, "events", "slow", dead_letters=dead_letters, bench=Keyed, quiet=0.3
        )

    return open_
