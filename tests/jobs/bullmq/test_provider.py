"""Jobs on BullMQ keep the contract of providers."""

from __future__ import annotations

import pytest

from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.bullmq import BullMQTransport


@pytest.mark.broker
class TestBullMQJobs(JobProviderContract):
    url: str

    @pytest.fixture(autouse=True)
    def _keys(self, bullmq_url: str) -> None:
        self.url = bullmq_url

    async def make_transport(self) -> Transport:
        return self._transport(lease=1)

    async def make_patient_transport(self) -> Transport:
        return self._transport(lease=30)

    def _transport(self, lease: float) -> Transport:
        return BullMQTransport(self.url, lease=lease)
