"""A server of their own for these tests, queues of jobs on it, and BullMQ on Node beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from tests.support.own_redis import bullmq_url, client, prefix, server
from tests.support.own_redis import fleet as node

from matador.jobs import JobProvider, Queue, Worker
from matador.transports.bullmq import BullMQTransport

__all__ = ["bullmq_url", "client", "node", "prefix", "server"]

Work: TypeAlias = Callable[..., Any]


@pytest.fixture
def lease() -> float:
    """Longer than a busy machine needs. Tests that wait for its end have one of their own."""
    return 30.0


@pytest.fixture
def transport(bullmq_url: str, lease: float) -> BullMQTransport:
    return BullMQTransport(bullmq_url, lease=lease)


@pytest_asyncio.fixture
async def queue(transport: BullMQTransport) -> AsyncIterator[Queue]:
    queue = Queue("emails", provider=JobProvider(transport))
    await queue.open()
    yield queue
    await queue.shutdown(disconnect=True)


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
