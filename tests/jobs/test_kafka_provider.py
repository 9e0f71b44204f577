"""Kafka keeps the contract, as far as a log of messages can."""

from __future__ import annotations

import pytest
from tests.jobs.own_headers import check_own_headers
from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics

from matador.errors import InvalidJobError
from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.kafka import KafkaTransport


@pytest.mark.broker
@pytest.mark.xdist_group("kafka")
class TestKafka(JobProviderContract):
    quiet = 1.0
    delay = 2.0
    patience = 60.0

    async def make_transport(self) -> Transport:
        return KafkaTransport(broker_url("kafka"))

    async def test_headers_of_its_own_travel_with_a_job(self) -> None:
        await check_own_headers(self.queue)

    async def test_the_key_of_a_job_travels_with_it(self) -> None:
        await self.queue.add("one", provider_options={"ordering_key": "ada"})
        (delivery,) = await self._fetch(await self._subscribe(), 1)
        assert delivery.receipt.ordering_key == "ada"
        with pytest.raises(InvalidJobError, match="'ordering_key' must be text, got 5"):
            await self.queue.add("one", provider_options={"ordering_key": 5})

    async def tidy_up(self) -> None:
        forget_topics(broker_url("kafka"), f"jobs.{self.queue.name}")

    async def _has_workers(self, number: int) -> bool:
        """All workers of a process are one member of the group."""
        return (await self.queue.health()).active_workers == min(number, 1)
