"""The RabbitMQ transport complies, against a real server."""

from __future__ import annotations

import pytest
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw, connections, cut, topologies
from tests.support.raw_rabbitmq import RawRabbitMQ

from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.testing import TransportCompliance
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.rabbitmq import RabbitMQTransport


@pytest.mark.broker
@pytest.mark.xdist_group("rabbitmq")
class TestRabbitMQ(TransportCompliance):
    """Each test in a namespace of its own, which is deleted afterwards."""

    sees_only_ready = True
    releases_keep_their_place = False
    honors_arguments = True
    quiet = 0.05
    url: str
    exact: list[str]

    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        self.url = broker_url("rabbitmq")
        self.exact = []

    async def make_transport(self) -> Transport:
        return RabbitMQTransport(self.url)

    async def make_exact_queue(self, name: str) -> None:
        self.exact.append(name)
        with Raw(self.url) as raw:
            raw.declare_queue(name)

    async def raw_entries(self) -> RawEntries:
        return RawRabbitMQ(self.url)

    async def delete_queue(self, name: str) -> bool:
        with Raw(self.url) as raw:
            raw.channel.queue_delete(name)
        return True

    async def restart_broker(self) -> None:
        """What a transport sees of it. Other tests use the server too; ``chaos/`` restarts one."""
        for transport in self._opened:
            assert isinstance(transport, RabbitMQTransport)
            if transport.state.status == "connected":
                for connection in connections(transport):
                    cut(connection)

    async def tidy_up(self) -> None:
        await super().tidy_up()
        with Raw(self.url) as raw:
            raw.delete(topologies(self._opened), self.exact)


class TestClassicQueues(TestRabbitMQ):
    """Queues with priorities are classic ones, which count deliveries in another way."""

    load = 2_000

    async def make_transport(self) -> Transport:
        return RabbitMQTransport(f"{self.url}?delays=levels")

    def topology(
        self,
        *queues: str | WorkQueue,
        dead_letters: DeadLetters | None = None,
        namespace: str = "",
    ) -> Topology:
        given = super().topology(*queues, dead_letters=dead_letters, namespace=namespace)
        classic = [
            WorkQueue(
                one.name,
                priorities=True,
                retention=one.retention,
                exact=one.exact,
                type=one.type,
                arguments=one.arguments,
            )
            for one in given.queues
        ]
        return Topology(given.namespace, queues=classic, dead_letters=dead_letters)
