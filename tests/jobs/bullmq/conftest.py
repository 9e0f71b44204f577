"""A server of their own for these tests, queues of jobs on it, and BullMQ on Node beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from tests.support.own_redis import client, prefix, server
from tests.support.own_redis import fleet as node
from tests.support.redis import OwnServer, forget_keys

from matador.jobs import JobProvider, Queue, Worker
from matador.transports.bullmq import BullMQTransport

__all__ = ["client", "node", "prefix", "server"]

Work: TypeAlias = Callable[..., Any]


@pytest.fixture
def lease() -> float:
    """Longer than a busy machine needs. Tests that wait for its end have one of their own."""
    return 30.0


@pytest.fixture
def transport(server: OwnServer, prefix: str, lease: float) -> BullMQTransport:
    url = f"bullmq://127.0.0.1:{server.port}/0?prefix={prefix}"
    return BullMQTransport(url, lease=lease)


@pytest_asyncio.fixture
async def queue(server: OwnServer, prefix: str, transport: BullMQTransport) -> AsyncIterator[Queue]:
    queue = Queue("emails", provider=JobProvider(transport))
    await queue.open()
    yield queue
    await queue.shutdown(disconnect=True)
    await forget_keys(server.url, prefix)


@pytest_asyncio.fixture
async def work(queue: Queue) -> AsyncIterator[Work]:
    """Starts workers of ours."""
    workers: list[Worker] = []

    async def start(handler: Any, **options: Any) -> Worker:
        worker = Worker(queue, handler, **options)
        workers.append(worker)
        await worker.start()
        return worker

    yield start
    for worker in workers:
        await worker.close(finish_active=False)
