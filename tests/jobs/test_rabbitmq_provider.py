"""RabbitMQ keeps the contract, as far as a broker of messages can."""

from __future__ import annotations

from tests.support.rabbitmq import rabbitmq_url

from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.rabbitmq import RabbitMQTransport


class TestRabbitMQ(JobProviderContract):
    async def make_transport(self) -> Transport:
        return RabbitMQTransport(rabbitmq_url())
