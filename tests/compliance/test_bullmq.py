"""The BullMQ transport complies, on a server that is really restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.support.raw_bullmq import RawBullMQ
from tests.support.redis import OwnServer, forget_keys, plain_client

from matador.testing import TransportCompliance
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.bullmq import BullMQTransport
from matador.transports.bullmq.wire import letters_of

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("bullmq"))
    own.start()
    yield own
    own.stop()


class TestBullMQ(TransportCompliance):
    quiet = 0.05
    load = 2_000
    server: OwnServer
    prefix: str

    @pytest_asyncio.fixture(autouse=True)
    async def _keys(self, _tidy: None, server: OwnServer) -> AsyncIterator[None]:
        self.server = server
        self.prefix = f"test-{self._namespace}"
        yield
        await self.tidy_up()
        await forget_keys(server.url, self.prefix)

    async def make_transport(self) -> Transport:
        url = f"bullmq://127.0.0.1:{self.server.port}/0"
        return BullMQTransport(url, lease=2, prefix=self.prefix)

    async def make_patient_transport(self) -> Transport:
        url = f"bullmq://127.0.0.1:{self.server.port}/0"
        return BullMQTransport(url, lease=30, prefix=self.prefix)

    async def raw_entries(self) -> RawEntries:
        return RawBullMQ(self.server.url, self.prefix)

    async def delete_queue(self, name: str) -> bool:
        letters = letters_of(name)
        assert letters is not None
        async with plain_client(self.server.url) as client:
            key = f"{self.prefix}:{letters[0]}"
            await client.delete(f"{key}:failed", f"{key}:meta")
        return True

    async def restart_broker(self) -> None:
        await asyncio.to_thread(self.server.restart)
