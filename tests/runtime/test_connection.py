"""The connection of a service: who connects and disconnects a transport, and who may share it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport

from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    LifecycleError,
    NotStartedError,
)
from matador.model.message import ConnectionState, Message, TopologyNote
from matador.model.topology import Topology
from matador.policy.recovery import Recovery
from matador.runtime.connection import Connection, connect_within, is_memory
from matador.runtime.deadline import Deadline
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport
from matador.transports.sqlite import SqliteTransport


class User:
    """Sees the states of a connection."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        self.states.append(state.status)

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        raise AssertionError

    def dropped(self, queue: str, number: int) -> None:
        raise AssertionError


async def test_a_transport_that_was_given_is_connected_and_not_disconnected() -> None:
    transport, user = MemoryTransport(), User()
    connection = Connection(transport, "shop")
    assert connection.given is connection.transport is transport
    assert connection.is_known
    assert await connection.open(user) is transport
    assert transport.state.status == "connected"
    await connection.close(user)
    assert transport.state.status == "connected"
    seen = list(user.states)
    await transport.disconnect()
    assert user.states == seen, "it is told nothing after its end"


async def test_one_that_is_owned_is_disconnected_with_its_last_user() -> None:
    transport, first, second = MemoryTransport(), User(), User()
    connection = Connection(transport, "shop", owned=True)
    assert connection.given is None
    for user in (first, second, second):
        await connection.open(user)
    await connection.close(second)
    assert transport.state.status == "connected"
    await connection.close(first)
    assert transport.state.status == "disconnected"
    assert first.states == ["connected", "disconnected"]
    assert "disconnected" not in second.states
    await connection.open(first)
    await connection.close(User(), disconnect=True)
    assert first.states[2:] == ["connected", "disconnected"], "still told of it"


async def test_a_connection_that_cannot_be_opened_has_no_user() -> None:
    transport, user = FaultyTransport(), User()
    transport.connect_errors.append(ConnectionFailedError("refused"))
    connection = Connection(transport, "shop", owned=True)
    with pytest.raises(ConnectionFailedError):
        await connection.open(user)
    await transport.connect()
    assert user.states == []
    await connection.open(user)
    await connection.close(user)
    assert transport.state.status == "disconnected"


async def test_memory_is_shared_within_an_event_loop() -> None:
    first, second = Connection("memory://", "first"), Connection("memory://", "second")
    assert not first.is_known
    assert first.given is None
    with pytest.raises(NotStartedError, match="first has not been started"):
        _ = first.transport
    user, other = User(), User()
    assert await first.open(user) is await second.open(other)
    await first.close(user)
    await second.close(other)
    assert first.transport.state.status == "connected", "others may use it"
    await first.transport.disconnect()
    own = Connection("memory://", "own", owned=True)
    assert own.is_known
    await own.open(user)
    assert own.transport is not first.transport
    await own.close(user)
    assert own.transport.state.status == "disconnected"
    upper = Connection("MEMORY://", "upper")
    assert (await upper.open(user)).name == "memory"


def test_which_urls_are_memory() -> None:
    assert [is_memory(one) for one in ("memory://", "MEMORY://?name=a", "sqlite:///memory:")] == [
        True,
        True,
        False,
    ]


async def test_another_one_is_made_of_a_url_and_not_of_what_is_connected(tmp_path: Any) -> None:
    url = f"SQLite:///{tmp_path / 'a.db'}"
    connection = Connection(url, "shop", recovery=Recovery(reconnect="linear"))
    assert connection.given is None
    other = connection.another()
    assert isinstance(other.transport, SqliteTransport)
    assert other.transport is not connection.transport
    user = User()
    await other.open(user)
    await other.close(user)
    assert other.transport.state.status == "disconnected", "it is its own"

    transport = SqliteTransport(tmp_path / "a.db")
    given = Connection(transport, "shop")
    assert given.another().transport is transport
    await given.open(user)
    with pytest.raises(LifecycleError, match="shop: its transport object is connected already"):
        given.another()
    await transport.disconnect()
    assert given.another().transport is transport
    owned = Connection(transport, "shop", owned=True)
    assert owned.another().given is None, "it is owned, too"

    memory = MemoryTransport()
    await memory.connect()
    assert Connection(memory, "shop").another().transport is memory
    await memory.disconnect()


def test_what_is_neither_a_url_nor_a_transport_is_refused_without_its_secrets() -> None:
    given: Any = {"url": "amqp://user:hunter2@host"}
    with pytest.raises(ConfigurationError, match="shop: give a URL or a transport") as caught:
        Connection(given, "shop")
    assert "hunter2" not in str(caught.value)


async def test_what_a_broker_does_not_support_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes = [TopologyNote("shop.events", "it is not limited"), TopologyNote(None, "no exchanges")]

    class Noting(MemoryTransport):
        async def apply_topology(self, topology: Topology) -> list[TopologyNote]:
            return notes

    connection = Connection(Noting(), "shop")
    for _ in range(2):
        assert await connection.apply(Topology("shop", queues=["events"])) == notes
    said = ["shop: topology: shop.events: it is not limited", "shop: topology: no exchanges"]
    assert caplog.messages == said
    notes.append(TopologyNote("shop.events", "it is new"))
    await connection.apply(Topology("shop", queues=["events"]))
    assert caplog.messages[2:] == ["shop: topology: shop.events: it is new"]


async def test_a_broker_that_does_not_answer_holds_no_end_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(MemoryTransport):
        go = asyncio.Event()

        async def disconnect(self) -> None:
            await self.go.wait()
            await super().disconnect()

    transport, user = Stuck(), User()
    connection = Connection(transport, "shop", owned=True)
    await connection.open(user)
    deadline = Deadline(0, "shop")
    deadline.expect_no_answer()
    await connection.close(user, deadline)
    assert "shop: could not disconnect in time" in caplog.text
    transport.go.set()
    await wait_for(lambda: transport.state.status == "disconnected")


async def test_how_often_a_connection_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    transport = FaultyTransport()
    transport.connect_errors.extend([ConnectionFailedError("refused")] * 2)
    await connect_within(transport, 60)
    assert transport.state.status == "connected"
    assert caplog.text.count("refused; trying again for 60 s") == 2
    await transport.disconnect()
    transport.connect_errors.extend([ConnectionFailedError("refused")] * 2)
    with pytest.raises(ConnectionFailedError):
        await connect_within(transport, 0)
    assert len(transport.connect_errors) == 1
    transport.connect_errors.appendleft(OSError("a bug"))
    with pytest.raises(OSError, match="a bug"):
        await connect_within(transport, 60)
