"""RabbitMQ keeps the contract, as far as a broker of messages can."""

from __future__ import annotations

import pytest
from tests.jobs.own_headers import check_own_headers
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw

from matador.jobs import ActiveJob, Worker
from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.rabbitmq import RabbitMQTransport


@pytest.mark.broker
@pytest.mark.xdist_group("rabbitmq")
class TestRabbitMQ(JobProviderContract):
    async def make_transport(self) -> Transport:
        return RabbitMQTransport(broker_url("rabbitmq"))

    async def test_headers_of_its_own_travel_with_a_job(self) -> None:
        await check_own_headers(self.queue)

    async def tidy_up(self) -> None:
        name = f"jobs.{self.queue.name}"
        with Raw(broker_url("rabbitmq")) as raw:
            raw.delete([], [name, f"{name}.retry", f"{name}.undeliverable"])


@pytest.mark.broker
@pytest.mark.xdist_group("rabbitmq")
class TestRabbitMQWithPriorities(TestRabbitMQ):
    """In classic queues, as RabbitMQ has no priorities in quorum queues."""

    priorities = True

    async def test_a_worker_that_knows_only_the_address_takes_them_in_order(self) -> None:
        await self.queue.add_many([("one", 1), ("one", 2)])
        await self.queue.add("one", 3, priority=9)
        done: list[int] = []

        async def handle(job: ActiveJob[int]) -> None:
            done.append(job.data)

        url = broker_url("rabbitmq")
        async with Worker(self.queue.name, handle, provider=url, concurrency=1):
            await self._until(lambda: len(done) == 3)
        assert done == [3, 1, 2]
