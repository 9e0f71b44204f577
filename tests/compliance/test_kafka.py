"""The Kafka transport complies, on a server that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.support.kafka import OwnKafka, delete_topics, forget_topics, make_topics

from matador.testing import TransportCompliance
from matador.transports.base import Transport
from matador.transports.kafka import KafkaTransport
from matador.transports.kafka.names import topic_name

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    own = OwnKafka(tmp_path_factory.mktemp("kafka"))
    own.start()
    yield own
    own.kill()


class TestKafka(TransportCompliance):
    patience = 30.0
    quiet = 1.0
    orders_without_keys = False
    body_limit = 900_000
    server: OwnKafka

    @pytest_asyncio.fixture(autouse=True)
    async def _topics(self, _tidy: None, server: OwnKafka) -> AsyncIterator[None]:
        self.server = server
        yield
        await self.tidy_up()
        forget_topics(server.url, self._namespace, f"Owner.{self._namespace}")

    async def make_transport(self) -> Transport:
        return KafkaTransport(self.server.url, session=6)

    async def make_exact_queue(self, name: str) -> None:
        make_topics(self.server.url, topic_name(name))

    async def delete_queue(self, name: str) -> bool:
        delete_topics(self.server.url, topic_name(name))
        return True

    async def restart_broker(self) -> None:
        await asyncio.to_thread(self.server.restart)
