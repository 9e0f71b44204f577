"""Workers on SQLite that are killed: real processes, real signals. Nothing is lost or stuck."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from matador.jobs import ActiveJob, Queue, Worker
from matador.testing import wait_for
from matador.transports.sqlite import SqliteTransport

PRELUDE = """
import asyncio, sys
from matador.jobs import Queue, Worker
from matador.transports.sqlite import SqliteTransport

def say(text):
    print(text, flush=True)

{body}

async def run():
    queue = Queue("q", provider=SqliteTransport(sys.argv[1], lease=1.0))
    worker = Worker(queue, handle, concurrency=4)
    async with worker:
        say("ready")
        await asyncio.Event().wait()

asyncio.run(run())
"""
HANG = """
async def handle(job):
    say(f"{job.id} {job.attempts}")
    await asyncio.Event().wait()
"""
WORK = """
async def handle(job):
    await asyncio.sleep(0.01)
"""

Start = Callable[[str], Awaitable[Process]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest_asyncio.fixture
async def start(file: Path) -> AsyncIterator[Start]:
    """Starts a worker in a process of its own; it is killed after the test."""
    started: list[Process] = []

    async def start(body: str) -> Process:
        code = PRELUDE.format(body=body)
        command = (sys.executable, "-c", code, str(file))
        started.append(await asyncio.create_subprocess_exec(*command, stdout=PIPE))
        return started[-1]

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest_asyncio.fixture
async def queue(file: Path) -> AsyncIterator[Queue]:
    queue = Queue("q", provider=SqliteTransport(file, lease=1.0))
    async with queue:
        yield queue
    await queue.shutdown(disconnect=True)


async def hear(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


async def test_a_killed_worker_leaves_nothing_active(queue: Queue, start: Start) -> None:
    job = await queue.add("one", 1, remove_on_complete=False)
    process = await start(HANG)
    assert [await hear(process), await hear(process)] == ["ready", f"{job.id} 0"]
    assert (await queue.stats()).active == 1
    process.kill()
    await process.wait()
    attempts: list[int] = []

    async def handle(one: ActiveJob[Any]) -> str:
        attempts.append(one.attempts)
        return "done"

    async def is_completed() -> bool:
        found = await queue.get(job.id)
        return found is not None and found.status == "completed"

    async with Worker(queue, handle):
        await wait_for(is_completed, timeout=15)
    found = await queue.get(job.id)
    assert found is not None
    assert (attempts, found.attempts, found.result) == ([1], 2, "done")
    stats = await queue.stats()
    assert (stats.waiting, stats.active, stats.completed) == (0, 0, 1)


async def test_no_job_is_lost_when_workers_are_killed(queue: Queue, start: Start) -> None:
    total = 500
    await queue.add_many([("one", number) for number in range(total)])
    workers = [await start(WORK) for _ in range(3)]

    async def completed() -> int:
        found = (await queue.health()).completed
        assert found is not None
        return found

    for kill in range(4):
        victim = workers[kill % 3]
        assert await hear(victim) == "ready"
        await wait_for(lambda: _more(completed, 80 * (kill + 1)), timeout=30)  # noqa: B023
        victim.kill()
        await victim.wait()
        workers[kill % 3] = await start(WORK)

    await wait_for(lambda: _more(completed, total), timeout=60)
    stats = await queue.stats()
    assert (stats.waiting, stats.delayed, stats.active, stats.failed) == (0, 0, 0, 0)
    assert await completed() == total


async def _more(count: Callable[[], Awaitable[int]], than: int) -> bool:
    return await count() >= than
