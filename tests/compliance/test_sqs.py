"""The SQS transport complies, with standard and with FIFO queues, on a server that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.support.raw_sqs import RawSqs
from tests.support.sqs import CREDENTIALS, OwnElasticMQ, forget_queues, sqs_client

from matador.model.message import QueueDepth
from matador.testing import TransportCompliance
from matador.testing.compliance.bench import bodies
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.sqs import SqsTransport
from matador.transports.sqs.names import sqs_name

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("sqs")]

# Tests in which a consumer gives back what another receives at once: see `forgetful_server`.
GIVE_BACK_TO_OTHERS = (
    "test_many_consumers_handle_each_message_once",
    "test_one_key_is_handled_in_order_and_one_at_a_time",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnElasticMQ]:
    own = OwnElasticMQ(tmp_path_factory.mktemp("sqs"))
    own.start()
    yield own
    own.kill()


@pytest.fixture(scope="module")
def forgetful_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnElasticMQ]:
    """Keeps messages in memory. ElasticMQ 1.7 hangs now and then if it stores a message while it
    changes it: one that is given back, and received again at once by another consumer."""
    own = OwnElasticMQ(tmp_path_factory.mktemp("sqs-memory"), stores=False)
    own.start()
    yield own
    own.kill()


class TestSqs(TransportCompliance):
    releases_keep_their_place = False
    retries_keep_their_place = False
    orders_without_keys = False
    delay_step = 1.0
    body_limit = 128 * 1024
    load = 2_000
    fifo = False
    server: OwnElasticMQ
    request: pytest.FixtureRequest

    @pytest_asyncio.fixture(autouse=True)
    async def _queues(
        self,
        _tidy: None,
        server: OwnElasticMQ,
        monkeypatch: pytest.MonkeyPatch,
        request: pytest.FixtureRequest,
    ) -> AsyncIterator[None]:
        self.server, self.request = server, request
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        yield
        await self.tidy_up()
        await forget_queues(server.url, self._namespace)
        await forget_queues(server.url, f"Owner__{self._namespace}")

    async def make_transport(self) -> Transport:
        return SqsTransport(self.server.url, lease=3, wait=1, fifo=self.fifo)

    async def make_patient_transport(self) -> Transport:
        server = self.server
        if self.request.function.__name__ in GIVE_BACK_TO_OTHERS:
            server = self.request.getfixturevalue("forgetful_server")
        return SqsTransport(server.url, lease=30, wait=1, fifo=self.fifo)

    async def raw_entries(self) -> RawEntries:
        return RawSqs(self.server.url, fifo=self.fifo)

    async def delete_queue(self, name: str) -> bool:
        async with sqs_client(self.server.url) as client:
            found = await client.get_queue_url(QueueName=sqs_name(name, fifo=self.fifo))
            await client.delete_queue(QueueUrl=found["QueueUrl"])
        return True

    async def restart_broker(self) -> None:
        await asyncio.to_thread(self.server.restart)


class TestSqsFifo(TestSqs):
    releases_keep_their_place = True
    fifo = True

    async def test_depth_counts_each_state(self) -> None:
        """As in the suite, but for delays: SQS cannot tell a message that receivers delay."""
        bench = await self.open()
        transport = bench.transport
        assert isinstance(transport, SqsTransport)
        await bench.send("held", "a", "b")
        held = await bench.receive_one(await bench.subscribe(prefetch=1))
        assert await transport.depth(bench.name()) == QueueDepth(ready=2, in_flight=1)
        await bench.complete([held])
        assert await transport.depth(bench.name()) == QueueDepth(ready=2)
        assert bodies([held])[0] in ("held", "a", "b")  # without a key there is no order
