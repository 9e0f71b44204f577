"""A real server, a namespace of its own for every test, and everything deleted afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest
from chaos.servers import Server
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw, ctl, topologies

from matador.transports.rabbitmq import RabbitMQTransport


class OwnServer(Server):
    """A server that may be filled, restarted and asked with its own tool."""

    def ctl(self, *arguments: str) -> None:
        ctl(self, *arguments)

    def url(self, user: str = "guest", password: str = "guest") -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/"


_SETTINGS = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 1000}]}]."


@pytest.fixture(scope="package")
def server() -> Iterator[OwnServer]:
    """One for all tests that need one; they run in one process (``TOGETHER``)."""
    broker_url("rabbitmq")  # skips where there is none
    server = OwnServer("rabbitmq", {"MATADOR_RABBITMQ_PLUGINS": "rabbitmq_management"})
    server.folder.mkdir(parents=True)
    (server.folder / "advanced.config").write_text(_SETTINGS)
    server.start()
    yield server
    server.discard()


@pytest.fixture
def url() -> str:
    """The server's address."""
    return broker_url("rabbitmq")


@pytest.fixture
def namespace() -> str:
    """Used by no other test."""
    return f"r{uuid4().hex[:10]}"


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    """The server, without Matador."""
    with Raw(url) as connection:
        yield connection


@pytest.fixture
async def make(url: str, raw: Raw) -> AsyncIterator[Callable[..., RabbitMQTransport]]:
    """Makes transports, with options of the URL; tidies up behind them."""
    made: list[RabbitMQTransport] = []

    def make(options: str = "", **given: object) -> RabbitMQTransport:
        separator = "?" if options else ""
        transport = RabbitMQTransport(f"{url}{separator}{options}", **given)  # type: ignore[arg-type] - as the test says
        made.append(transport)
        return transport

    yield make
    for transport in made:
        await transport.disconnect()
    raw.delete(topologies(made))


@pytest.fixture
async def transport(make: Callable[..., RabbitMQTransport]) -> RabbitMQTransport:
    """Connected."""
    transport = make()
    await transport.connect()
    return transport
