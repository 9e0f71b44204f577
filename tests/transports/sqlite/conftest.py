"""What the tests of the SQLite transport share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from matador.model.message import Message
from matador.model.topology import Topology
from matador.transports.sqlite import SqliteTransport

Open = Callable[..., Awaitable[SqliteTransport]]
Make = Callable[..., Message]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest_asyncio.fixture
async def connect(file: Path) -> AsyncIterator[Open]:
    """Opens transports on the test's file, with one queue ``t.q`` unless another topology is given.

    They are disconnected after the test.
    """
    opened: list[SqliteTransport] = []

    async def connect(topology: Topology | None = None, **options: Any) -> SqliteTransport:
        transport = SqliteTransport(file, **options)
        opened.append(transport)
        await transport.connect()
        await transport.apply_topology(topology or Topology("t", queues=["q"]))
        return transport

    yield connect
    for transport in opened:
        await transport.disconnect()


@pytest.fixture
def make() -> Make:
    """Makes messages for ``t.q``, numbered from 1."""
    numbers = count(1)

    def make(body: str = "", queue: str = "t.q", **fields: Any) -> Message:
        number = next(numbers)
        return Message(str(number), queue, (body or str(number)).encode(), **fields)

    return make
