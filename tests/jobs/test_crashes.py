"""Flows and schedules, and workers that are killed: real processes, real signals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.job_program import QUEUE, hear, job_program
from tests.support.redis import OwnServer, forget_keys

from matador.jobs import RESULT, ActiveJob, Queue, Worker, chain

PROVIDERS = [pytest.param("sqlite"), pytest.param("bullmq", marks=pytest.mark.broker)]


@pytest_asyncio.fixture(params=PROVIDERS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db?lease=1"
        return
    server = OwnServer(tmp_path)
    server.start()
    prefix = f"test-{uuid4().hex[:10]}"
    yield f"bullmq://127.0.0.1:{server.port}/0?prefix={prefix}&lease=1"
    await forget_keys(server.url, prefix)
    server.stop()


async def test_a_chain_survives_kills_in_its_steps_and_between_them(url: str) -> None:
    async with Queue(QUEUE, provider=url) as queue:
        step = queue.step
        handle = await chain(
            step("add", {"n": 1}),
            step("add", {"n": RESULT}),
            step("add", {"n": RESULT}),
            step("add", {"n": RESULT}),
        ).add()
        for kind in ("die-in-a-step", "die-after-a-step", "die-in-a-step", "die-after-a-step"):
            async with job_program(url, kind) as process, asyncio.timeout(20):
                assert await process.wait() == -9
        stats = await queue.stats()
        assert (stats.failed, stats.completed, stats.waiting + stats.active) == (0, 2, 2)

        async def add(one: ActiveJob[Any]) -> int:
            return one.data["n"] + 1

        async with Worker(QUEUE, add, provider=url):
            assert await handle.result(timeout=15) == 5
        assert (await queue.stats()).waiting == 0


async def test_each_time_of_a_schedule_comes_once_in_three_processes(url: str) -> None:
    async with Queue(QUEUE, provider=url) as queue, AsyncExitStack() as running:
        programs = [await running.enter_async_context(job_program(url, "say")) for _ in range(3)]
        for program in programs:
            assert await hear(program) == "ready"
        for key in ("a", "b"):
            await queue.schedule(key, "tick", {"n": 1}, every=0.1)
        heard: list[str] = []
        victims = iter(programs[:2])

        async def listen(program: asyncio.subprocess.Process) -> None:
            assert program.stdout is not None
            async for line in program.stdout:
                heard.append(line.decode().strip())
                if len(heard) in (15, 30) and (victim := next(victims, None)) is not None:
                    victim.kill()  # perhaps in the middle of firing
                if len(heard) >= 60:
                    break

        async with asyncio.timeout(40):
            listening = [asyncio.create_task(listen(program)) for program in programs]
            await asyncio.gather(*listening)
        assert len(set(heard[:15])) == 15  # an id names its schedule and its time
        again = len(heard) - len(set(heard))
        assert again <= 2 * 4  # what the killed ones were in runs again, and nothing else
        for key in ("a", "b"):
            assert await queue.unschedule(key)
