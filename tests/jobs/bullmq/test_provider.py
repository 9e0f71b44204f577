"""Jobs on BullMQ keep the contract of providers."""

from __future__ import annotations

import pytest
from tests.support.redis import OwnServer, forget_keys

from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.bullmq import BullMQTransport


@pytest.mark.broker
class TestBullMQJobs(JobProviderContract):
    server: OwnServer
    prefix: str

    @pytest.fixture(autouse=True)
    def _keys(self, server: OwnServer, prefix: str) -> None:
        self.server, self.prefix = server, prefix

    async def make_transport(self) -> Transport:
        return self._transport(lease=1)

    async def make_patient_transport(self) -> Transport:
        return self._transport(lease=30)

    def _transport(self, lease: float) -> Transport:
        url = f"bullmq://127.0.0.1:{self.server.port}/0?prefix={self.prefix}"
        return BullMQTransport(url, lease=lease)

    async def tidy_up(self) -> None:
        await forget_keys(self.server.url, self.prefix)
