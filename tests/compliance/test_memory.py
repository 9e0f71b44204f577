"""The in-process transport complies: as it is, with a lease, and with abilities taken away."""

from __future__ import annotations

import pytest
from tests.support.raw_memory import MemoryEntries

from matador.testing import TransportCompliance
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.memory import Ability, MemoryTransport


class MemoryCompliance(TransportCompliance):
    """One object a test: in memory, the object is the broker."""

    quiet = 0.03
    lease: float | None = None
    without: tuple[Ability, ...] = ()
    _transport: MemoryTransport | None = None

    async def make_transport(self) -> Transport:
        if self._transport is None:
            self._transport = MemoryTransport(lease=self.lease, without=self.without)
        return self._transport

    async def make_patient_transport(self) -> Transport:
        if self._transport is None and self.lease is not None:
            self._transport = MemoryTransport(lease=30 * self.lease, without=self.without)
        return await self.make_transport()

    async def raw_entries(self) -> RawEntries:
        transport = await self.make_transport()
        assert isinstance(transport, MemoryTransport)
        return MemoryEntries(transport)


class TestMemory(MemoryCompliance):
    pass


class TestMemoryWithLease(MemoryCompliance):
    lease = 1.0


class TestMemoryWithoutAnything(MemoryCompliance):
    without = (
        "delays",
        "priorities",
        "ordering",
        "browse",
        "purge",
        "depth",
        "pause",
        "replay",
        "once",
        "at-most-once",
        "properties",
        "routing",
    )


@pytest.mark.parametrize(
    "declared", ["delays", "priorities", "browse", "purge", "depth", "pause", "replay", "routing"]
)
def test_what_is_taken_away_is_not_declared(declared: Ability) -> None:
    assert getattr(MemoryTransport().capabilities, declared) is True
    assert getattr(MemoryTransport(without=[declared]).capabilities, declared) is False
