"""A group of transports complies, and still does when one of them has leases."""

from __future__ import annotations

from tests.support.raw_memory import MemoryEntries

from matador.errors import AllTransportsFailedError, QueueNotFoundError
from matador.testing import TransportCompliance, make_message
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.memory import MemoryTransport
from matador.transports.multi import MultiTransport


class TestMultiOfMemory(TransportCompliance):
    quiet = 0.03
    lease: float | None = None
    _transport: MultiTransport | None = None

    async def make_transport(self) -> Transport:
        return self._group(self.lease)

    async def make_patient_transport(self) -> Transport:
        return self._group(self.lease and 30 * self.lease)

    def _group(self, lease: float | None) -> MultiTransport:
        if self._transport is None:
            first = MemoryTransport(name="first", lease=lease)
            self._transport = MultiTransport([first, MemoryTransport(name="second")])
        return self._transport

    async def raw_entries(self) -> RawEntries:
        group = await self.make_transport()
        assert isinstance(group, MultiTransport)
        first = group.transports[0]
        assert isinstance(first, MemoryTransport)
        return MemoryEntries(first)

    async def test_each_message_has_its_outcome_and_the_others_are_stored(self) -> None:
        """As in the suite, but for the name of the error: it lists that of every transport."""
        bench = await self.open()
        unknown = make_message(b"lost?", queue=f"{bench.name()}-unknown")
        outcomes = await bench.transport.send([bench.message("a"), unknown, bench.message("b")])
        assert [outcomes[0], outcomes[2]] == [None, None]
        assert isinstance(outcomes[1], AllTransportsFailedError)
        errors = [(name, type(error)) for name, error in outcomes[1].errors]
        assert errors == [("first", QueueNotFoundError), ("second", QueueNotFoundError)]


class TestMultiWithLease(TestMultiOfMemory):
    lease = 1.0
