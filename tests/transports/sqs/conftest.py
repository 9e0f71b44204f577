"""The ElasticMQ of ``script/brokers``, and a namespace that is tidied up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.sqs import CREDENTIALS, forget_queues, sqs_client

from matador.model.topology import Topology
from matador.transports.sqs import SqsTransport

Open: TypeAlias = Callable[..., Awaitable[SqsTransport]]


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return broker_url("sqs")


@pytest.fixture
def topology() -> Topology:
    return Topology(f"s{uuid4().hex[:10]}", queues=["events"])


@pytest_asyncio.fixture
async def open_transport(url: str, topology: Topology) -> AsyncIterator[Open]:
    """Makes connected transports with the topology applied."""
    opened: list[SqsTransport] = []

    async def open_one(*, apply: bool = True, **options: Any) -> SqsTransport:
        given: dict[str, Any] = {"wait": 1, "lease": 5, **options}
        transport = SqsTransport(url, **given)
        opened.append(transport)
        await transport.connect()
        if apply:
            await transport.apply_topology(topology)
        return transport

    yield open_one
    for transport in opened:
        await transport.disconnect()
    await forget_queues(url, topology.namespace)


@pytest_asyncio.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    """A plain client."""
    async with sqs_client(url) as client:
        yield client
