"""The base of transports: observers, connecting once, and what is refused."""

from __future__ import annotations

import asyncio
import logging

import pytest

from matador.errors import NotConnectedError, UnsupportedError
from matador.model.message import ConnectionState, Message
from matador.transports.kit.transport import BaseTransport


class Bare(BaseTransport):
    def __init__(self) -> None:
        super().__init__("bare")
        self.calls: list[str] = []

    async def _open(self) -> None:
        self.calls.append("open")
        await asyncio.sleep(0)
        self._change_state(ConnectionState("connected"))

    async def _close(self) -> None:
        self.calls.append("close")
        await asyncio.sleep(0)
        self._change_state(ConnectionState("disconnected"))

    def change(self, state: ConnectionState) -> None:
        self._change_state(state)

    def use(self) -> None:
        self._require_connected()

    def browse(self) -> None:
        self._require(False, "browse")

    def fall_back(self, message: Message) -> None:
        self._report_fallback(message, "a", "b", ValueError())


class Recorder:
    def __init__(self) -> None:
        self.states: list[str] = []
        self.hops: list[tuple[str, str]] = []

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        self.states.append(f"{transport} {state.status}")

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        self.hops.append((failed, next_))

    def dropped(self, queue: str, number: int) -> None:
        raise AssertionError("nothing may be dropped here")


async def test_connect_and_disconnect_happen_once_however_often_they_are_asked_for() -> None:
    transport = Bare()
    await transport.disconnect()
    await asyncio.gather(transport.connect(), transport.connect())
    await transport.connect()
    await asyncio.gather(transport.disconnect(), transport.disconnect())
    assert transport.calls == ["open", "close"]


async def test_an_observer_is_told_everything_once_until_it_is_removed() -> None:
    transport, recorder = Bare(), Recorder()
    first, second = transport.observe(recorder), transport.observe(recorder)
    await transport.connect()
    assert recorder.states == ["bare connected"]
    first()
    first()  # the second time it does nothing
    await transport.disconnect()
    assert recorder.states == ["bare connected", "bare disconnected"]
    second()
    await transport.connect()
    assert len(recorder.states) == 2


async def test_an_observer_may_leave_while_it_is_told() -> None:
    transport, recorder = Bare(), Recorder()

    class Leaving(Recorder):
        def connection_changed(self, transport: str, state: ConnectionState) -> None:
            leave()

    leave = transport.observe(Leaving())
    transport.observe(recorder)
    await transport.connect()
    assert recorder.states == ["bare connected"]


async def test_fall_backs_are_reported() -> None:
    transport, recorder = Bare(), Recorder()
    transport.observe(recorder)
    transport.fall_back(Message("1", "q", b""))
    assert recorder.hops == [("a", "b")]


async def test_what_needs_a_connection_or_an_ability_says_so() -> None:
    transport = Bare()
    with pytest.raises(NotConnectedError, match="'bare' is disconnected"):
        transport.use()
    with pytest.raises(UnsupportedError, match="'bare' does not support browse"):
        transport.browse()
    await transport.connect()
    transport.use()


def test_an_outage_is_logged_once_for_each_of_its_reasons_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = Bare()
    caplog.set_level(logging.DEBUG, "matador.transport")

    def levels(*states: ConnectionState) -> list[str]:
        caplog.clear()
        for state in states:
            transport.change(state)
        return [record.levelname for record in caplog.records]

    lost = ConnectionState("reconnecting", attempt=1, error=OSError("refused"))
    other = ConnectionState("reconnecting", attempt=1, error=OSError("no route"))
    connecting, connected = ConnectionState("connecting"), ConnectionState("connected")
    assert levels(connecting, connected) == ["INFO", "INFO"]
    assert levels(lost, lost, connecting, lost) == ["WARNING", "DEBUG", "DEBUG", "DEBUG"]
    assert levels(other, connecting, connected) == ["WARNING", "DEBUG", "INFO"]
    assert levels(lost, connected) == ["WARNING", "INFO"]
