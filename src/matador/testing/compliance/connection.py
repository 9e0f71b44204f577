"""Connecting, disconnecting, reconnecting."""

from __future__ import annotations

import asyncio

import pytest

from matador.errors import NotConnectedError, TransportClosedError
from matador.model.message import Complete, ConnectionState, Message
from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.bench import bodies, collect
from matador.testing.wait import wait_for
from matador.transports.base import (
    Browsing,
    Deduplicating,
    Leasing,
    Measuring,
    Purging,
    QueuePausing,
    Replaying,
    Routing,
    Transport,
)


class StateRecorder:
    """A ``TransportObserver`` that records states."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.connected: list[str] = []

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        self.statuses.append(state.status)
        if state.status == "connected":
            self.connected.append(transport)

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        raise AssertionError("nothing may fall back here")

    def dropped(self, queue: str, number: int) -> None:
        raise AssertionError("nothing may be dropped here")


class ConnectionCompliance(ComplianceBase):
    """Connecting, disconnecting, reconnecting."""

    async def test_it_has_a_name(self) -> None:
        assert (await self.make()).name.strip()

    async def test_it_is_a_transport_and_declares_what_it_can(self) -> None:
        transport = await self.make()
        assert isinstance(transport, Transport)
        await transport.connect()
        can = transport.capabilities
        assert can.delivery_modes, "at least one delivery mode"
        assert can.delivery_modes <= {"at-least-once", "at-most-once"}
        assert can.dead_letters in ("native", "manual", "none")
        assert can.lease is None or can.lease > 0

    async def test_declared_abilities_are_there(self) -> None:
        transport = await self.make()
        await transport.connect()
        can = transport.capabilities
        abilities = [
            (can.browse, Browsing),
            (can.purge, Purging),
            (can.depth, Measuring),
            (can.pause, QueuePausing),
            (can.replay, Replaying),
            (can.once, Deduplicating),
            (can.routing, Routing),
            (can.lease is not None, Leasing),
        ]
        missing = [
            ability.__name__
            for declared, ability in abilities
            if declared and not isinstance(transport, ability)
        ]
        assert missing == []

    async def test_it_starts_disconnected(self) -> None:
        transport = await self.make()
        assert transport.state.status == "disconnected"
        with pytest.raises(NotConnectedError) as caught:
            await transport.subscribe("any", prefetch=1)
        assert not isinstance(caught.value, TransportClosedError), "it was never open"

    async def test_connect_and_disconnect_can_be_repeated(self) -> None:
        transport = await self.make()
        await transport.disconnect()
        await transport.connect()
        await transport.connect()
        assert transport.state.status == "connected"
        await transport.disconnect()
        await transport.disconnect()
        assert transport.state.status == "disconnected"

    async def test_observers_are_told_the_state(self) -> None:
        transport, recorder = await self.make(), StateRecorder()
        remove = transport.observe(recorder)
        again = transport.observe(recorder)
        await transport.connect()
        await wait_for(lambda: recorder.statuses[-1:] == ["connected"], message="connected")
        await transport.disconnect()
        await wait_for(lambda: recorder.statuses[-1:] == ["disconnected"], message="disconnected")
        names = recorder.connected
        assert len(set(names)) == len(names), "told once, though added twice"
        remove()
        again()
        again()
        told = len(recorder.statuses)
        await transport.connect()
        assert len(recorder.statuses) == told, "told nothing once it is removed"

    async def test_nothing_works_while_disconnected(self) -> None:
        bench = await self.open()
        await bench.send("a")
        delivery = await bench.receive_one(await bench.subscribe())
        transport = bench.transport
        await transport.disconnect()
        with pytest.raises(TransportClosedError):
            await transport.send([bench.message("b")])
        with pytest.raises(TransportClosedError):
            await transport.subscribe(bench.name(), prefetch=1)
        with pytest.raises(TransportClosedError):
            await transport.settle([Complete(delivery.receipt)])
        with pytest.raises(TransportClosedError):
            await transport.apply_topology(bench.topology)

    async def test_abilities_do_not_work_while_disconnected(self) -> None:
        bench = await self.open()
        can, transport, name = bench.can, bench.transport, bench.name()
        await transport.disconnect()
        if can.browse and isinstance(transport, Browsing):
            with pytest.raises(TransportClosedError):
                await collect(transport.browse(name))
            with pytest.raises(TransportClosedError):
                await transport.take(name, [])
        if can.purge and isinstance(transport, Purging):
            with pytest.raises(TransportClosedError):
                await transport.purge(name)
        if can.depth and isinstance(transport, Measuring):
            with pytest.raises(TransportClosedError):
                await transport.depth(name)
        if can.replay and isinstance(transport, Replaying):
            with pytest.raises(TransportClosedError):
                await transport.read(name)
        if can.lease is not None and isinstance(transport, Leasing):
            with pytest.raises(TransportClosedError):
                await transport.renew([])

    async def test_it_works_again_after_a_reconnect(self) -> None:
        bench = await self.open()
        await bench.transport.disconnect()
        await bench.transport.connect()
        await self.declare(bench.transport, bench.topology)
        await bench.send("after")
        assert bodies(await bench.drain(bench.name(), 1)) == ["after"]

    async def test_it_works_again_after_the_broker_restarted(self) -> None:
        bench = await self.open()
        subscription = await bench.subscribe()
        await bench.send("before")
        await bench.complete([await bench.receive_one(subscription)])
        await self.restart_broker()

        async def sent() -> bool:
            try:
                outcomes = await bench.transport.send([bench.message("after")])
            except NotConnectedError:
                return False
            return outcomes[0] is None

        await wait_for(sent, timeout=self.patience, message="a send after the restart")
        # The same subscription: it must have been restored.
        assert bodies([await bench.receive_one(subscription)]) == ["after"]

    async def test_disconnect_ends_a_waiting_receive(self) -> None:
        bench = await self.open()
        subscription = await bench.subscribe()
        waiting = asyncio.create_task(subscription.receive(1))
        early, _ = await asyncio.wait([waiting], timeout=bench.quiet)
        assert not early
        await bench.transport.disconnect()
        assert not subscription.active
        async with asyncio.timeout(bench.patience):
            assert list(await waiting) == []

    async def test_a_topology_can_be_applied_again_and_changes_no_message(self) -> None:
        bench = await self.open()
        await bench.send("a", "b")
        await bench.transport.apply_topology(bench.topology)
        assert sorted(bodies(await bench.drain(bench.name(), 2))) == ["a", "b"]
