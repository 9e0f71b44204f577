"""The Kafka transport complies, on a server that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.support.kafka import OwnKafka, Sweeper, delete_topics, make_topics
from tests.support.raw_kafka import RawKafka

from matador.model.topology import WorkQueue
from matador.testing import TransportCompliance
from matador.testing.compliance.bench import bodies
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.kafka import KafkaTransport
from matador.transports.kafka.topics import topic_name

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    own = OwnKafka(tmp_path_factory.mktemp("kafka"))
    own.start()
    yield own
    own.kill()


@pytest.fixture(scope="module")
def sweeper(server: OwnKafka) -> Sweeper:
    return Sweeper(server.url)  # what it has not deleted ends with the server


@pytest.mark.xdist_group("kafka-compliance")
class TestKafka(TransportCompliance):
    """On a server of its own: it may run beside the tests on the shared one."""

    patience = 30.0
    quiet = 1.0
    orders_without_keys = False
    counts_queues = False
    delay_step = 2.0  # all are due at once where joining the group takes longer
    body_limit = 900_000
    server: OwnKafka

    @pytest_asyncio.fixture(autouse=True)
    async def _topics(self, _tidy: None, server: OwnKafka, sweeper: Sweeper) -> AsyncIterator[None]:
        self.server = server
        yield
        await self.tidy_up()
        sweeper.forget(self._namespace, f"Owner.{self._namespace}")

    async def make_transport(self) -> Transport:
        return KafkaTransport(self.server.url, session=6)

    async def make_exact_queue(self, name: str) -> None:
        make_topics(self.server.url, topic_name(name))

    async def delete_queue(self, name: str) -> bool:
        delete_topics(self.server.url, topic_name(name))
        return True

    async def restart_broker(self) -> None:
        await asyncio.to_thread(self.server.restart)

    async def raw_entries(self) -> RawEntries:
        return RawKafka(self.server.url)

    async def test_what_is_finished_can_be_read_again(self) -> None:
        """As in the suite, but without an order: these messages are in several partitions."""
        bench = await self.open(WorkQueue("events", retention=60))
        transport = bench.transport
        assert isinstance(transport, KafkaTransport)
        await bench.send("a", "b", "c")
        subscription = await bench.subscribe(prefetch=1)
        finished = [await bench.receive_one(subscription) for _ in range(2)]
        await bench.complete(finished)
        await subscription.close()
        for _ in range(2):
            read = await transport.read(bench.name())
            done = [one for one in read if one.state == "done"]
            assert sorted(bodies(read)) == ["a", "b", "c"]
            assert sorted(bodies(done)) == sorted(bodies(finished))
            behind = await transport.read(bench.name(), after=read[0].position, limit=1)
            assert bodies(behind) == bodies(read[1:2])
            assert await transport.read(bench.name(), after=read[-1].position) == []
        (left,) = await bench.drain(bench.name(), 1)
        assert left.body not in [one.body for one in finished], "and not delivered again"
        assert await bench.count(bench.name()) == 0
