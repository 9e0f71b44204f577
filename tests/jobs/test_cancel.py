"""Jobs that are canceled while they run: through other connections, in threads and in processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.jobs import busy

from matador.errors import JobCanceledError, JobFailedError, JobsUnsupportedError
from matador.jobs import ActiveJob, DeclaredJob, Queue, Worker
from matador.jobs.provider import JobProvider
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport

pytestmark = pytest.mark.asyncio


async def _is_active(queue: Queue, job_id: str) -> bool:
    job = await queue.get(job_id)
    return job is not None and job.status == "active"


async def test_a_thread_learns_of_it_and_its_result_is_ignored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    told: list[Any] = []
    noticed = threading.Event()

    def handle(job: ActiveJob[Any]) -> str:
        while not job.lease_lost:
            noticed.wait(0.01)
        noticed.set()
        return "too late"

    worker = Worker("threads", handle, provider=url)
    worker.on("failed", told.append)
    async with Queue("threads", provider=url) as queue, worker:
        job = await queue.add("one")
        await wait_for(lambda: _is_active(queue, job.id))
        assert await queue.cancel(job.id, "enough")
        await wait_for(lambda: told)
        assert noticed.is_set()
        assert isinstance(told[0].error, JobCanceledError)
        assert str(told[0].error) == f"job {job.id!r} was canceled: enough"
        with pytest.raises(JobFailedError, match="canceled: enough"):
            await queue.handle(job.id).result(timeout=5)
        assert worker.health().processing == 0


async def test_a_function_that_goes_on_all_the_same_changes_nothing() -> None:
    told: list[Any] = []

    async def stubborn(job: ActiveJob[Any]) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(0)
        return "done after all"

    async def fail(job: ActiveJob[Any]) -> None:
        raise ValueError("broken")

    queue = Queue("stubborn")
    worker = Worker(queue, {"stubborn": stubborn, "fail": fail}, concurrency=1)
    worker.on("failed", told.append)
    worker.on("error", told.append)
    async with queue, worker:
        job = await queue.add("stubborn")
        await wait_for(lambda: _is_active(queue, job.id))
        assert await queue.cancel(job.id)
        await wait_for(lambda: told)
        assert isinstance(told[0].error, JobCanceledError)
        for number in range(3):  # the slot works on, and what fails is kept
            await queue.add("fail", number, attempts=1)
        await wait_for(lambda: len(told) == 4)
        assert await queue.dead_letters.count() == 4
        await queue.delete()


async def test_a_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    queue = Queue("processes")
    async with queue, Worker(queue, busy.handle, executor="process"):
        job = await queue.add("any", {"hang": str(path)})
        await wait_for(lambda: path.exists() and path.read_text(), timeout=60)
        pid = int(path.read_text())
        assert await queue.cancel(job.id)
        await wait_for(lambda: not Path(f"/proc/{pid}").exists(), timeout=60)
        assert os.getpid() != pid
        assert (await queue.handle(job.id).job()).error == "canceled"


async def test_a_declared_job_has_typed_handles() -> None:
    queue = Queue("declared")

    @queue.job
    async def double(number: int) -> float:
        return number * 2

    assert isinstance(double, DeclaredJob)
    async with queue, Worker(queue):
        added = await double.add(number=2)
        assert await double.handle(added.id).result(timeout=30) == 4.0
        assert await queue.handle(added.id).result(timeout=30) == 4.0
        assert (await queue.handle(added.id).job()).name == "double"
    await queue.delete()


async def test_an_error_names_the_providers_that_can() -> None:
    queue = Queue("plain", provider=JobProvider(MemoryTransport(without=["jobs"])))
    job = await queue.add("one")
    handle = queue.handle(job.id)
    for call in (handle.cancel(), handle.job(), queue.remove(job.id), queue.pause()):
        with pytest.raises(JobsUnsupportedError, match=r"cannot .*; memory, sqlite and redis can"):
            await call
    with pytest.raises(JobsUnsupportedError, match="keeps no results; memory, sqlite and redis do"):
        await handle.result(timeout=5)
    await queue.shutdown(disconnect=True)
