"""A server of their own for these tests, queues of jobs on it, and BullMQ on Node beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.node import FLEETS, Node
from tests.support.redis import OwnServer, forget_keys, plain_client

from matador.jobs import JobProvider, Queue, Worker
from matador.transports.bullmq import BullMQTransport

Work: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("bullmq-jobs"))
    own.start()
    yield own
    own.stop()


@pytest_asyncio.fixture
async def client(server: OwnServer) -> AsyncIterator[Any]:
    """A plain client: what anybody else sees of the server."""
    async with plain_client(server.url) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex[:10]}"


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
    await queue.close(disconnect=True)
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


@pytest_asyncio.fixture(params=FLEETS)
async def node(
    server: OwnServer, prefix: str, request: pytest.FixtureRequest
) -> AsyncIterator[Node]:
    """BullMQ on Node, in each version that differs."""
    async with Node(server.port, prefix, request.param) as node:
        yield node
