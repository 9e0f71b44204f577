"""The in-process provider keeps the contract, with and without an ability to store jobs."""

from __future__ import annotations

import pytest

from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.memory import Ability, MemoryTransport

# Here all share one transport, so that these have no other that could have a short lease.
LEASE_ENDS = ("test_a_worker_that_dies_lets_go_of_its_keys",)


class InMemory(JobProviderContract):
    quiet = 0.1
    delay = 0.3
    without: tuple[Ability, ...] = ()
    _transport: MemoryTransport | None = None
    lease: float

    @pytest.fixture(autouse=True)
    def _lease(self, request: pytest.FixtureRequest) -> None:
        self.lease = 1.0 if request.function.__name__ in LEASE_ENDS else 30.0

    async def make_transport(self) -> Transport:
        if self._transport is None:
            self._transport = MemoryTransport(lease=self.lease, without=self.without)
        return self._transport


class TestMemory(InMemory):
    pass


class TestMessagesOnly(InMemory):
    """As on a broker that stores messages and nothing else."""

    without = ("jobs",)


class TestVeryLittle(InMemory):
    without = ("jobs", "delays", "browse", "purge", "depth")
