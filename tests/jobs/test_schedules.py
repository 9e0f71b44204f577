"""The scheduler of a worker goes on, whatever its provider raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matador.jobs import ActiveJob, JobProvider, Queue, Worker
from matador.model.job import JobSchedule
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport


class Stumbling(MemoryTransport):
    """Raises what no provider should, the first time that its schedules are read."""

    stumbles = 1

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        if self.stumbles:
            self.stumbles -= 1
            raise ValueError("stumbled")
        return await super().list_schedules(queue)


async def test_an_unknown_error_does_not_end_schedules() -> None:
    queue = Queue("q", provider=JobProvider(Stumbling()))
    seen: list[ActiveJob[Any]] = []
    errors: list[Any] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(job)

    worker = Worker(queue, handle, error_backoff=0.01)
    worker.on("error", errors.append)
    async with queue, worker:
        await wait_for(lambda: errors)
        await queue.schedule("tick", "tick", every=0.05)
        await wait_for(lambda: len(seen) >= 2)
    assert [str(event.error) for event in errors] == ["stumbled"]
    await queue.close(disconnect=True)
