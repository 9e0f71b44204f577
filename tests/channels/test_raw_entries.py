"""Odd entries written past the transport, for two consumers, on brokers with forms of their own.

``tests/messages/test_raw_entries.py`` does the same on the others, under every way in.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.raw_redis import RawLists, RawPubSub
from tests.support.raw_sqs import RawSqs
from tests.support.redis import forget_keys
from tests.support.sqs import CREDENTIALS, forget_queues

from matador.channels import QueueService, QueueSettings, RetrySettings, Settings, channel, consume
from matador.testing import wait_for
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Measuring

BATCHES, BATCH = int(os.environ.get("MATADOR_RAW_BATCHES", "3")), 20

pytestmark = pytest.mark.broker


@dataclass
class Place:
    """A broker, the settings for it, and what writes past the transport."""

    settings: QueueSettings
    entries: RawEntries
    name: str


@pytest_asyncio.fixture(
    params=["list", "pubsub", pytest.param("sqs", marks=pytest.mark.xdist_group("sqs"))]
)
async def place(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    kind, name = request.param, f"raw-{uuid4().hex[:12]}"
    entries: RawEntries
    if kind == "sqs":
        for variable, value in CREDENTIALS.items():
            monkeypatch.setenv(variable, value)
        url = broker_url("sqs")
        settings, entries = QueueSettings(type="sqs", url=url, prefetch=4), RawSqs(url)
    else:
        url = broker_url("redis")
        settings = QueueSettings(type="redis", url=f"{url}?prefix={name}", mode=kind, prefetch=4)
        entries = (RawLists if kind == "list" else RawPubSub)(url, prefix=name)
    yield Place(settings, entries, name)
    await entries.close()
    if kind == "sqs":
        await forget_queues(url, name)
    else:
        await forget_keys(url, f"{name}-list")


async def test_odd_entries_and_their_neighbours(place: Place) -> None:
    seen: list[int] = []

    @channel(place.name)
    class Two:
        @consume("numbers")
        async def number(self, number: int) -> None:
            seen.append(number)

        @consume("anything")
        def anything(self, data: Any) -> None:
            if isinstance(data, int):
                seen.append(data)

    names = ("numbers", "anything")
    settings = Settings(place.settings, RetrySettings(enabled=False))
    async with QueueService(settings, channels=[Two]) as service:
        good = 1_000_000_000  # none of the odd ones has it
        for batch in range(BATCHES):
            for one in range(BATCH):
                for name in names:
                    await place.entries.write(
                        f"{place.name}.{name}", Random(f"{name}/{batch}/{one}")
                    )
            for name in names:
                good += 1
                await service.send(place.name, name, good)
        await wait_for(lambda: {*range(1_000_000_001, good + 1)} <= {*seen}, timeout=60)
        written = BATCHES * BATCH * len(names) + BATCHES * len(names)
        await wait_for(lambda: service.metrics().messages_received >= written, timeout=60)
        assert service.health_check().status == "healthy"
        transport = service._connection.transport
        if isinstance(transport, Measuring):

            async def is_empty() -> bool:
                depths = [await transport.depth(f"{place.name}.{name}") for name in names]
                return sum(depth.total for depth in depths) == 0

            await wait_for(is_empty, timeout=60)
        counted = service._counters

        def each_has_one_outcome() -> bool:
            ended = counted.succeeded + counted.dead_lettered + counted.discarded + counted.expired
            return ended == counted.received

        await wait_for(each_has_one_outcome)
    assert sorted(one for one in seen if 1_000_000_000 < one < 2_000_000_000) == [
        *range(1_000_000_001, good + 1)
    ]
