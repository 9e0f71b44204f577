"""The in-process provider keeps the contract, with and without an ability to store jobs."""

from __future__ import annotations

from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.memory import Ability, MemoryTransport


class InMemory(JobProviderContract):
    quiet = 0.1
    delay = 0.3
    without: tuple[Ability, ...] = ()
    _transport: MemoryTransport | None = None

    async def make_transport(self) -> Transport:
        if self._transport is None:
            self._transport = MemoryTransport(lease=1.0, without=self.without)
        return self._transport


class TestMemory(InMemory):
    pass


class TestMessagesOnly(InMemory):
    """As on a broker that stores messages and nothing else."""

    without = ("jobs",)


class TestVeryLittle(InMemory):
    without = ("jobs", "delays", "browse", "purge", "depth")
