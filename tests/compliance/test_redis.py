"""The Redis transport complies, in each of its modes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.redis import forget_keys

from matador.testing import TransportCompliance
from matador.transports.base import Transport
from matador.transports.redis import RedisTransport

pytestmark = pytest.mark.broker


class RedisCompliance(TransportCompliance):
    """A prefix a test, so that its keys can be found and removed."""

    quiet = 0.05
    url: str
    prefix: str

    @pytest_asyncio.fixture(autouse=True)
    async def _keys(self, _tidy: None) -> AsyncIterator[None]:
        self.url = broker_url("redis")
        self.prefix = f"test-{self._namespace}"
        yield
        await self.tidy_up()
        await forget_keys(self.url, self.prefix)


class TestRedisStreams(RedisCompliance):
    async def make_transport(self) -> Transport:
        return RedisTransport(self.url, lease=1, prefix=self.prefix)
