"""The Redis transport complies, in each of its modes, on a server that is really restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.support.raw_redis import RawLists, RawPubSub, RawStreams
from tests.support.redis import OwnServer, forget_keys, plain_client

from matador.testing import TransportCompliance
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.redis import (
    RedisListTransport,
    RedisPubSubTransport,
    RedisTransport,
)

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("redis"))
    own.start()
    yield own
    own.stop()


class RedisCompliance(TransportCompliance):
    """A prefix a test, so that its keys can be found and removed."""

    quiet = 0.05
    server: OwnServer
    prefix: str

    @pytest_asyncio.fixture(autouse=True)
    async def _keys(self, _tidy: None, server: OwnServer) -> AsyncIterator[None]:
        self.server = server
        self.prefix = f"test-{self._namespace}"
        yield
        await self.tidy_up()
        await forget_keys(server.url, self.prefix)
        await forget_keys(server.url, f"{self.prefix}-list")

    async def restart_broker(self) -> None:
        await asyncio.to_thread(self.server.restart)

    async def delete_queue(self, name: str) -> bool:
        async with plain_client(self.server.url) as client:
            keys = [key async for key in client.scan_iter(match=f"{self.prefix}*{name}*")]
            await client.unlink("", *keys)
        return True


class TestRedisStreams(RedisCompliance):
    async def make_transport(self) -> Transport:
        return RedisTransport(self.server.url, lease=1, prefix=self.prefix)

    async def make_patient_transport(self) -> Transport:
        return RedisTransport(self.server.url, lease=30, prefix=self.prefix)

    async def raw_entries(self) -> RawEntries:
        return RawStreams(self.server.url, prefix=self.prefix)


class TestRedisLists(RedisCompliance):
    async def make_transport(self) -> Transport:
        return RedisListTransport(self.server.url, lease=1, prefix=self.prefix)

    async def make_patient_transport(self) -> Transport:
        return RedisListTransport(self.server.url, lease=30, prefix=self.prefix)

    async def raw_entries(self) -> RawEntries:
        return RawLists(self.server.url, prefix=self.prefix)


class TestRedisPubSub(RedisCompliance):
    listens_first = True

    async def make_transport(self) -> Transport:
        return RedisPubSubTransport(self.server.url, prefix=self.prefix)

    async def raw_entries(self) -> RawEntries:
        return RawPubSub(self.server.url, prefix=self.prefix)
