"""A worker of jobs that is paused in the middle of fetching holds nothing back from others."""

from __future__ import annotations

import asyncio
from typing import Any

from matador.jobs import ActiveJob, JobProvider, Queue, Worker
from matador.testing import wait_for
from matador.transports.base import Transport


async def assert_nothing_is_held_while_paused(transport: Transport, name: str) -> None:
    """Pause at one moment after the other. The lease must be longer than ten seconds."""
    seen: list[tuple[Any, int]] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append((job.data, job.attempts))

    rounds, each = 12, 3
    async with Queue(name, provider=JobProvider(transport)) as queue:
        worker = Worker(queue, handle, concurrency=each)
        await worker.start()
        for number in range(rounds):
            await queue.add_many([("one", number * each + n) for n in range(each)])
            for _ in range(number):
                await asyncio.sleep(0)
            await worker.pause()

            async def nothing_is_active() -> bool:
                return (await queue.stats()).active == 0

            await wait_for(nothing_is_active)
            await worker.resume()
        await wait_for(lambda: len(seen) == rounds * each)
        await worker.close()
        assert sorted(seen) == [(number, 0) for number in range(rounds * each)]
        await queue.shutdown(disconnect=True)
