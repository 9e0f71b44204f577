"""What is odd: jobs without ids, deliveries without an outcome, providers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from matador.errors import NotConnectedError, TimeoutError
from matador.jobs import ActiveJob, Fixed, JobProvider, Queue, Worker
from matador.jobs.worker import JobSubscription
from matador.model.message import Delivery, Message
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport

pytestmark = pytest.mark.asyncio


async def test_a_job_without_an_id_is_retried_and_kept_under_one() -> None:
    transport = MemoryTransport()
    queue = Queue("nameless", provider=JobProvider(transport))
    await queue.open()
    headers: dict[str, str | int] = {"job.maxAttempts": 2, "job.backoff": "fixed:1"}
    await transport.send([Message("", "nameless", b'{"a": 1}', headers)])
    ids: list[str] = []

    async def handle(job: ActiveJob[Any]) -> None:
        ids.append(job.id)
        raise ValueError("no")

    async with Worker(queue, handle):
        await wait_for(lambda: len(ids) == 2)
        await wait_for(lambda: _count(queue, 1))
    first, second = ids
    assert first == second
    assert first.startswith("unnamed-")
    (letter,) = await queue.dead_letters()
    assert (letter.id, letter.data, letter.name) == (first, {"a": 1}, "job")
    await queue.close(disconnect=True)


async def _count(queue: Queue, failed: int) -> bool:
    return (await queue.stats()).failed == failed


async def test_a_job_that_kills_its_workers_is_failed_in_the_end() -> None:
    transport = MemoryTransport()
    queue = Queue("poison", provider=JobProvider(transport))
    await queue.add("bad", 1, attempts=100)
    for _ in range(5):  # taken, and never settled
        subscription = await transport.subscribe("poison", prefetch=1)
        await subscription.receive(1)
        await transport.disconnect()
        await transport.connect()
    ran: list[str] = []
    told: list[Any] = []

    async def handle(job: ActiveJob[Any]) -> None:
        ran.append(job.id)

    worker = Worker(queue, handle)
    worker.on("failed", told.append)
    async with worker:
        await queue.add("good", 2)
        await wait_for(lambda: told and ran)
    (failed,) = told
    assert "its worker died, or lost it, in each of 5 attempts" in str(failed.error)
    assert (failed.name, failed.attempts, len(ran)) == ("bad", 5, 1)
    await queue.close(disconnect=True)


class Failing:
    """A subscription that fails as often as it is told to."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.queue = "failing"
        self.active = True
        self.calls = 0

    async def receive(self, limit: int) -> Sequence[Delivery]:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        self.active = False
        return ()

    async def close(self) -> None:
        self.active = False


@pytest.mark.parametrize("poll_interval", [None, 0.01])
async def test_errors_of_receiving_are_told_and_waited_out(poll_interval: float | None) -> None:
    told: list[Exception] = []
    errors: list[Exception] = [NotConnectedError("gone"), TimeoutError("slow"), OSError("odd")]
    inner = Failing(list(errors))
    subscription = JobSubscription(
        inner,
        batch_size=None,
        poll_interval=poll_interval,
        error_backoff=0.001,
        failed=told.append,
        drained=lambda: None,
    )
    assert await asyncio.wait_for(subscription.receive(5), 5) == ()
    assert (told, inner.calls) == (errors, 4)


async def test_a_result_that_cannot_be_written_is_a_failed_attempt() -> None:
    queue, told = Queue("results"), list[Any]()

    async def handle(job: ActiveJob[Any]) -> object:
        return object() if job.attempts == 0 else "fine"

    worker = Worker(queue, handle)
    worker.on("failed", told.append)
    worker.on("completed", told.append)
    async with worker:
        await queue.add("any", backoff=Fixed(0.001))
        await wait_for(lambda: len(told) == 2)
    assert "what the handler returned cannot be written as JSON" in str(told[0].error)
    assert told[1].result == "fine"
