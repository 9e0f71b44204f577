"""The RabbitMQ transport complies, against a real server."""

from __future__ import annotations

import pytest
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw, connections, cut, topologies

from matador.testing import TransportCompliance
from matador.transports.base import Transport
from matador.transports.rabbitmq import RabbitMQTransport


@pytest.mark.broker
class TestRabbitMQ(TransportCompliance):
    """Each test in a namespace of its own, which is deleted afterwards."""

    sees_only_ready = True
    releases_keep_their_place = False
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
