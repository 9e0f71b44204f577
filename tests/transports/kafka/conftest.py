"""The Kafka of ``script/brokers``, and a namespace that is tidied up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.kafka import Sweeper

from matador.model.topology import Topology
from matador.transports.kafka import KafkaTransport

Open: TypeAlias = Callable[..., Awaitable[KafkaTransport]]


@pytest.fixture
def url() -> str:
    return broker_url("kafka")


@pytest.fixture(scope="session")
def sweeper() -> Iterator[Sweeper]:
    made = Sweeper(broker_url("kafka"))
    yield made
    made.close()


@pytest.fixture
def topology() -> Topology:
    return Topology(f"k{uuid4().hex[:10]}", queues=["events"])


@pytest_asyncio.fixture
async def open_transport(url: str, topology: Topology, sweeper: Sweeper) -> AsyncIterator[Open]:
    """Makes connected transports with the topology applied."""
    opened: list[KafkaTransport] = []

    async def open_one(*, apply: bool = True, **options: Any) -> KafkaTransport:
        given: dict[str, Any] = {"session": 6, **options}
        transport = KafkaTransport(url, **given)
        opened.append(transport)
        await transport.connect()
        if apply:
            await transport.apply_topology(topology)
        return transport

    yield open_one
    for transport in opened:
        await transport.disconnect()
    sweeper.forget(topology.namespace)
