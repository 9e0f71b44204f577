"""A network that swallows everything, and says nothing about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from tests.support.own_time import OwnTime

from matador.errors import ConnectionFailedError
from matador.model.message import ConnectionState, Message
from matador.testing import wait_for
from matador.transports.rabbitmq import RabbitMQTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]


class Network:
    """Passes bytes on until it goes silent: connections stay open, and nothing arrives."""

    def __init__(self, url: str) -> None:
        given = urlsplit(url)
        self._target = (given.hostname or "localhost", given.port or 5672)
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.silent = False
        self.port = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers += [writer, back]
        self._tasks += [
            asyncio.create_task(self._pass_on(reader, back)),
            asyncio.create_task(self._pass_on(there, writer)),
        ]

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.silent:
                writer.write(data)


@pytest.fixture
async def network(url: str) -> AsyncIterator[Network]:
    network = Network(url)
    await network.open()
    yield network
    await network.close()


class Watcher:
    """Remembers that the connection was found to be lost."""

    def __init__(self) -> None:
        self.lost = False

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        self.lost = self.lost or state.status == "reconnecting"

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        raise AssertionError("nothing may fall back here")

    def dropped(self, queue: str, number: int) -> None:
        raise AssertionError("nothing may be dropped here")


async def test_a_half_open_connection_is_noticed_within_two_heartbeats(network: Network) -> None:
    transport = RabbitMQTransport(
        f"amqp://guest:guest@127.0.0.1:{network.port}/?heartbeat=1&connect_timeout=3"
    )
    watcher = Watcher()
    transport.observe(watcher)
    await transport.connect()
    network.silent = True
    async with OwnTime() as own:
        await wait_for(lambda: watcher.lost, message="noticed")
    assert own.seconds < 4, "pika alone takes up to 12 s"
    network.silent = False
    await wait_for(lambda: transport.state.status == "connected", message="back")
    await transport.disconnect()


async def test_a_send_into_the_silence_ends(network: Network) -> None:
    transport = RabbitMQTransport(
        f"amqp://guest:guest@127.0.0.1:{network.port}/?heartbeat=60&send_timeout=0.3"
    )
    await transport.connect()
    network.silent = True
    async with OwnTime() as own:
        (outcome,) = await transport.send([Message("m", "nowhere", b"x")])
        assert "may be stored" in str(outcome)
        assert own.seconds < 2
        await transport.disconnect()
    assert own.seconds < 10, "nor does it take for ever to leave"


async def test_connecting_to_silence_fails(network: Network) -> None:
    network.silent = True
    transport = RabbitMQTransport(f"amqp://127.0.0.1:{network.port}/?connect_timeout=0.2")
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1"):
        await transport.connect()
