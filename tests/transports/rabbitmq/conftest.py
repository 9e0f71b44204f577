"""A real server, a namespace of its own for every test, and everything deleted afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw, topologies

from matador.transports.rabbitmq import RabbitMQTransport


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
