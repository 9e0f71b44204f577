"""Fixtures of tests with a Redis of their own. A ``conftest.py`` imports those that it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.node import FLEETS, Node
from tests.support.redis import OwnServer, plain_client


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("redis"))
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


@pytest_asyncio.fixture(params=FLEETS)
async def fleet(
    server: OwnServer, prefix: str, request: pytest.FixtureRequest
) -> AsyncIterator[Node]:
    """BullMQ on Node, in each version that differs."""
    async with Node(server.port, prefix, request.param) as node:
        yield node
