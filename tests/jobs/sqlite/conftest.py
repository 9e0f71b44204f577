"""What the tests of jobs on SQLite share."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from matador.model.job import JobStatus
from matador.model.message import (
    Delivery,
    Message,
)
from matador.transports.sqlite import SqliteTransport

Connect = Callable[..., Awaitable[SqliteTransport]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest_asyncio.fixture
async def connect(file: Path) -> AsyncIterator[Connect]:
    """Opens transports on the test's file, each with the queue of jobs ``q``."""
    opened: list[SqliteTransport] = []

    async def connect(**options: Any) -> SqliteTransport:
        transport = SqliteTransport(file, **options)
        opened.append(transport)
        await transport.connect()
        await transport.open_jobs("q")
        return transport

    yield connect
    for transport in opened:
        await transport.disconnect()


def job(job_id: str, delay: float = 0.0, **headers: str | int) -> Message:
    named = {f"job.{name}": value for name, value in headers.items()}
    return Message(job_id, "q", b'{"_jobData":1}', {"job.id": job_id, **named}, delay)


async def fetch(transport: SqliteTransport, count: int, queue: str = "q") -> list[Delivery]:
    subscription = await transport.subscribe(queue, prefetch=count)
    found: list[Delivery] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await subscription.receive(count - len(found))
    await subscription.close()
    return found


async def ids(transport: SqliteTransport, status: JobStatus) -> list[str]:
    return [one.id for one in await transport.list_jobs("q", status, limit=100)]


def by_hand(file: Path, statement: str, values: Sequence[Any] = ()) -> list[Any]:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=10)) as connection:
        return connection.execute(statement, values).fetchall()
