"""Sending twice and storing once; reading a queue in parts."""

from __future__ import annotations

import pytest

from matador.errors import QueueNotFoundError, TransportClosedError, UnsupportedError
from matador.model.message import Message, Once
from matador.model.topology import WorkQueue
from matador.testing.compliance.base import ComplianceBase, ability
from matador.testing.compliance.bench import Bench, bodies, collect
from matador.transports.base import Browsing, Deduplicating, Replaying, Splitting


class OnceCompliance(ComplianceBase):
    """Deduplicating and splitting. Each test checks the ability, or that it is refused."""

    async def test_what_is_sent_twice_under_its_id_is_stored_once(self) -> None:
        bench = await self.open()
        if (once := await self._once(bench)) is None:
            return
        first = [bench.message(body, id=body) for body in ("a", "b")]
        again = [bench.message(body, id=body) for body in ("b", "c", "c", "a")]
        assert list(await once.send_once(first, Once("replay-1"))) == [None] * 2
        assert list(await once.send_once(again, Once("replay-1"))) == [None] * 4
        assert bodies(await bench.drain(bench.name(), 3)) == ["a", "b", "c"]

    async def test_ids_are_told_apart_within_a_part_of_a_scope_only(self) -> None:
        bench = await self.open()
        if (once := await self._once(bench)) is None:
            return
        for part in (Once("one"), Once("two"), Once("two", 1)):
            await once.send_once([bench.message("a", id="same")], part)
        await bench.send(bench.message("a", id="same"))
        assert await bench.count(bench.name()) in (4, None)
        assert bodies(await bench.drain(bench.name(), 4)) == ["a"] * 4

    async def test_ids_are_known_after_a_reconnect(self) -> None:
        bench = await self.open()
        if (once := await self._once(bench)) is None:
            return
        await once.send_once([bench.message("a", id="a")], Once("replay-1"))
        bench = await self.reopen(bench)
        once = await self._once(bench)
        assert once is not None
        await once.send_once([bench.message("a", id="a")], Once("replay-1"))
        assert bodies(await bench.drain(bench.name(), 1)) == ["a"]

    async def test_one_that_fails_can_be_sent_again(self) -> None:
        bench = await self.open()
        if (once := await self._once(bench)) is None:
            return
        lost = Message("a", f"{bench.name()}-unknown", b"a")
        outcomes = await once.send_once([lost, bench.message("b", id="b")], Once("replay-1"))
        assert [type(outcome) for outcome in outcomes] == [QueueNotFoundError, type(None)]
        await once.send_once([bench.message("a", id="a")], Once("replay-1"))
        assert sorted(bodies(await bench.drain(bench.name(), 2))) == ["a", "b"]

    async def test_nothing_is_stored_in_a_sealed_part(self) -> None:
        bench = await self.open()
        if (once := await self._once(bench)) is None:
            return
        await once.send_once([bench.message("a", id="a")], Once("query", 6))
        await once.send_once([bench.message("b", id="b")], Once("query", 7))
        await once.seal(Once("query", 7))
        await once.seal(Once("query", 6))
        for batch in (6, 7):
            late = [bench.message("late", id="late"), bench.message("a", id="a")]
            assert list(await once.send_once(late, Once("query", batch))) == [None] * 2
        await once.send_once([bench.message("a", id="a")], Once("query", 8))
        assert bodies(await bench.drain(bench.name(), 3)) == ["a", "b", "a"]

    async def test_a_queue_without_a_retention_cannot_be_read_again(self) -> None:
        bench = await self.open()
        transport = bench.transport
        if bench.can.replay:
            assert isinstance(transport, Replaying)
            with pytest.raises(UnsupportedError, match="retention"):
                await transport.read(bench.name())

    async def test_a_queue_is_read_in_parts(self) -> None:
        bench = await self.open(WorkQueue("events", retention=60), "other")
        transport = bench.transport
        if not (isinstance(transport, Splitting) and isinstance(transport, Browsing)):
            return  # read in one piece, then
        name = bench.name()
        assert list(await transport.split(name, 3)) == []
        for number in range(10):
            await bench.send(str(number), bench.message("x", queue="other"))
        seen = await collect(transport.browse(name))
        positions = [stored.position for stored in seen]
        for parts in (1, 2, 3, 10, 50):
            ends = list(await transport.split(name, parts))
            assert 1 <= len(ends) <= parts
            assert ends[-1] == positions[-1]
            assert ends == sorted(set(ends), key=int)
            assert set(ends) <= set(positions)
        ends = await transport.split(name, 2, after=positions[1], until=positions[5])
        assert list(ends) == [positions[3], positions[5]]

    async def _once(self, bench: Bench) -> Deduplicating | None:
        return await ability(
            bench.transport,
            Deduplicating,
            bench.can.once,
            lambda one: one.send_once([], Once("any")),
            lambda one: one.seal(Once("any")),
        )

    async def test_once_does_not_work_while_disconnected(self) -> None:
        bench = await self.open()
        if (once := await self._once(bench)) is None:
            return
        await bench.transport.disconnect()
        with pytest.raises(TransportClosedError):
            await once.send_once([bench.message("a")], Once("any"))
