"""What is odd: jobs without ids, deliveries without an outcome, providers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from matador.errors import JobFailedError, NotConnectedError, TimeoutError
from matador.jobs import ActiveJob, Fixed, JobProvider, Queue, Worker
from matador.jobs.worker import JobSubscription
from matador.model.message import Delivery, Message
from matador.runtime.context import Context
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
    (letter,) = await queue.list("failed")
    assert (letter.id, letter.data, letter.name) == (first, {"a": 1}, "job")
    await queue.shutdown(disconnect=True)


async def _count(queue: Queue, failed: int) -> bool:
    return (await queue.stats()).failed == failed


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
        inner=inner,
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


@dataclass
class Welcome:
    to: str


untyped: Any = eval("lambda job: job.data['to']")


async def payload(data: Welcome) -> Any:
    return data.to


async def payload_and_context(ctx: Context, data: Welcome) -> Any:
    return [data.to, ctx.attempt, ctx.lease_lost]


async def payload_and_job(data: Welcome, job: ActiveJob[Any]) -> Any:
    return [data.to, job.name, job.attempt]


def context_and_typed_job(ctx: Context, job: ActiveJob[Welcome]) -> Any:
    return [job.data.to, ctx.io("key", lambda: "once")]


async def context_alone(ctx: Context) -> Any:
    return [ctx.correlation_id, dict(ctx.metadata)]


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (payload, "ada"),
        (payload_and_context, ["ada", 1, False]),
        (payload_and_job, ["ada", "one", 1]),
        (context_and_typed_job, ["ada", "once"]),
        (context_alone, ["c-1", {"tenant": "t"}]),
        (untyped, "ada"),
    ],
)
async def test_parameters_are_filled_by_their_types(handler: Any, result: Any) -> None:
    async with Queue("annotated") as queue, Worker(queue, handler):
        job = await queue.add("one", {"to": "ada"}, metadata={"tenant": "t"}, correlation_id="c-1")
        assert await queue.handle(job.id).result(timeout=30) == result
        if handler is not context_alone and not isinstance(result, str):
            wrong = await queue.add("one", {"too": "ada"}, attempts=5)
            with pytest.raises(JobFailedError, match="invalid data: Object missing required field"):
                await queue.handle(wrong.id).result(timeout=30)
        await queue.delete()


@pytest.mark.parametrize("shares_queue", [True, False])
async def test_a_handler_adds_jobs_with_its_correlation_id(shares_queue: bool) -> None:
    ids: list[Any] = []

    async def handle(job: ActiveJob[Any]) -> None:
        ids.append(job.correlation_id)
        if job.name == "first":
            added = await job.send("second", {"n": 1}, delay=0.001)
            assert added.name == "second"

    async with Queue("sending") as queue, Worker(queue if shares_queue else "sending", handle):
        await queue.add("first", correlation_id="trace-1")
        await wait_for(lambda: len(ids) == 2)
    assert ids == ["trace-1", "trace-1"]
