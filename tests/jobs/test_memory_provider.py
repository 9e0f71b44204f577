"""The in-process provider keeps the contract, with and without an ability to store jobs."""

from __future__ import annotations

import pytest

from matador.jobs import ActiveJob, Queue, Worker
from matador.testing.clock import ManualClock
from matador.testing.jobs import JobProviderContract
from matador.testing.wait import wait_for
from matador.transports.base import Transport
from matador.transports.memory import Ability, MemoryTransport

# Here all share one transport, so that these have no other that could have a short lease.
LEASE_ENDS = ("test_a_worker_that_dies_lets_go_of_its_keys",)


class InMemory(JobProviderContract):
    quiet = 0.1
    delay = 0.3
    without: tuple[Ability, ...] = ()
    _transport: MemoryTransport | None = None
    lease: float

    @pytest.fixture(autouse=True)
    def _lease(self, request: pytest.FixtureRequest) -> None:
        self.lease = 1.0 if request.function.__name__ in LEASE_ENDS else 30.0

    async def make_transport(self) -> Transport:
        if self._transport is None:
            self._transport = MemoryTransport(lease=self.lease, without=self.without)
        return self._transport


class TestMemory(InMemory):
    pass


class TestMessagesOnly(InMemory):
    """As on a broker that stores messages and nothing else."""

    without = ("jobs",)


class TestVeryLittle(InMemory):
    without = ("jobs", "delays", "browse", "purge", "depth")


async def test_completed_jobs_are_kept_for_an_hour() -> None:
    clock = ManualClock()
    queue = Queue("kept", provider=MemoryTransport(clock=clock))
    async with queue, Worker(queue, _add_one):
        first = await queue.add("one", 1)
        forever = await queue.add("one", 1, remove_on_complete=False)
        await wait_for(lambda: _completed(queue, 2))
        clock.advance(1800)
        second = await queue.add("one", 2, job_id="second")
        await wait_for(lambda: _completed(queue, 3))
        clock.advance(1801)
        assert await queue.get(first.id) is None
        found = await queue.get(second.id)
        assert found is not None
        assert (found.status, found.result, found.attempts) == ("completed", 3, 1)
        assert {job.id for job in await queue.list("completed")} == {"second", forever.id}
        clock.advance(1800)
        assert (await queue.stats()).completed == 1
        await queue.add("one", 3, job_id="second")  # its id is free again


def _add_one(job: ActiveJob[int]) -> int:
    return job.data + 1


async def _completed(queue: Queue, number: int) -> bool:
    return (await queue.stats()).completed == number
