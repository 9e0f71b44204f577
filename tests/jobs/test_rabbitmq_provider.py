"""RabbitMQ keeps the contract, as far as a broker of messages can."""

from __future__ import annotations

import pytest
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw

from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.rabbitmq import RabbitMQTransport


@pytest.mark.broker
@pytest.mark.xdist_group("rabbitmq")
class TestRabbitMQ(JobProviderContract):
    async def make_transport(self) -> Transport:
        return RabbitMQTransport(broker_url("rabbitmq"))

    async def tidy_up(self) -> None:
        name = f"jobs.{self.queue.name}"
        with Raw(broker_url("rabbitmq")) as raw:
            raw.delete([], [name, f"{name}.retry", f"{name}.undeliverable"])
