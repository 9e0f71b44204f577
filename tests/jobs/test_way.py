"""Jobs on the shared pipeline: when they run again, what they resume, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from matador import (
    DontRetry,
    DoRetry,
    Hooks,
    MemoryCheckpointStore,
    StandardRetryPolicy,
)
from matador.errors import ConfigurationError
from matador.jobs import (
    RESULT,
    ActiveJob,
    Fixed,
    JobCompleted,
    JobFailed,
    JobRetrying,
    PermanentJobError,
    Queue,
    Worker,
    chain,
)
from matador.runtime import stores
from matador.runtime.facts import Attempt, Sent
from matador.runtime.hooks import Sending
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport
from matador.transports.sqlite import SqliteTransport

pytestmark = pytest.mark.asyncio


class Outcomes:
    """What a worker tells of its jobs."""

    def __init__(self, worker: Worker) -> None:
        self.completed: list[JobCompleted] = []
        self.failed: list[JobFailed] = []
        self.retrying: list[JobRetrying] = []
        worker.on("completed", self.completed.append)
        worker.on("failed", self.failed.append)
        worker.on("retrying", self.retrying.append)

    @property
    def ended(self) -> int:
        return len(self.completed) + sum(not one.will_retry for one in self.failed)


async def run(queue: Queue, handler: Any, **options: Any) -> Outcomes:
    """Run one job that was added, to its end."""
    worker = Worker(queue, handler, **options)
    outcomes = Outcomes(worker)
    async with worker:
        await wait_for(lambda: outcomes.ended)
    return outcomes


# -- retries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DontRetry("no"), PermanentJobError("no")])
async def test_dont_retry_fails_a_job_at_once(error: Exception) -> None:
    queue = Queue("dont")

    async def handle(job: ActiveJob[Any]) -> None:
        raise error

    job = await queue.add("any", attempts=5, backoff=Fixed(0.001))
    outcomes = await run(queue, handle)
    (failed,) = outcomes.failed
    assert (failed.will_retry, failed.permanent, failed.attempts) == (False, True, 1)
    stored = await queue.get(job.id)
    assert stored is not None
    assert (stored.status, stored.error, stored.attempts) == ("failed", "no", 1)
    await queue.delete()


async def test_do_retry_has_a_delay_of_its_own_and_ends_with_the_attempts() -> None:
    queue = Queue("do")

    async def handle(job: ActiveJob[Any]) -> None:
        raise DoRetry("later", delay=0.003)

    await queue.add("any", attempts=3, backoff=Fixed(600))
    outcomes = await run(queue, handle, idempotent="no")
    assert [one.retry_delay for one in outcomes.failed] == [0.003, 0.003, None]
    assert [one.max_attempts for one in outcomes.retrying] == [3, 3]
    await queue.delete()


async def test_the_policy_of_a_worker_is_for_jobs_that_say_nothing() -> None:
    queue, most = Queue("policy"), dict[str, int]()

    async def handle(job: ActiveJob[Any]) -> None:
        most[job.name] = job.max_attempts
        raise ValueError("no")

    await queue.add("silent")
    await queue.add("says", attempts=2, backoff=Fixed(0.002))
    worker = Worker(queue, handle, retry=StandardRetryPolicy(max_attempts=4, base_delay=0.001))
    outcomes = Outcomes(worker)
    async with worker:
        await wait_for(lambda: outcomes.ended == 2)
    assert most == {"silent": 4, "says": 2}
    delays = {name: [o.retry_delay for o in outcomes.retrying if o.name == name] for name in most}
    assert delays == {"silent": [0.001, 0.002, 0.004], "says": [0.002]}
    await queue.delete()


async def test_a_declared_job_says_itself_whether_it_may_run_again() -> None:
    queue, runs = Queue("declared"), list[str]()

    @queue.job(idempotent="no", backoff=Fixed(0.001))
    async def charge() -> None:
        runs.append("charge")
        raise ValueError("declined")

    @queue.job(backoff=Fixed(0.001), attempts=2)
    async def note() -> None:
        runs.append("note")
        raise ValueError("disk")

    await charge.add()
    await note.add()
    worker = Worker(queue)
    outcomes = Outcomes(worker)
    async with worker:
        await wait_for(lambda: outcomes.ended == 2)
    assert sorted(runs) == ["charge", "note", "note"]
    with pytest.raises(ConfigurationError, match=r"idempotent must be .*got 'maybe'"):
        queue.job(idempotent="maybe")  # type: ignore[call-overload]
    await queue.delete()


# -- resumable jobs --------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_a_resumable_job_resumes_after_its_last_step(executor: Any) -> None:
    queue, ran, steps = Queue("resume"), list[str](), MemoryCheckpointStore()

    def step(name: str) -> str:
        ran.append(name)
        return name

    async def handle(job: ActiveJob[Any]) -> list[str]:
        first = await job.io("first", lambda: step("first"))
        both = await job.all([("a", lambda: step("a")), ("b", lambda: step("b"))])
        if job.attempt == 1:
            raise ValueError("crash")
        return [first, *both, await job.io("last", lambda: step("last"))]

    def sync_handle(job: ActiveJob[Any]) -> list[Any]:
        first: Any = job.io("first", lambda: step("first"))
        both: Any = job.all([("a", lambda: step("a")), ("b", lambda: step("b"))])
        if job.attempt == 1:
            raise ValueError("crash")
        return [first, *both, job.io("last", lambda: step("last"))]

    await queue.add("any", backoff=Fixed(0.001))
    handler = handle if executor == "async" else sync_handle
    outcomes = await run(queue, handler, idempotent="resumable", checkpoints=steps)
    assert ran[:1] + sorted(ran[1:3]) + ran[3:] == ["first", "a", "b", "last"]
    assert outcomes.completed[0].result == ["first", "a", "b", "last"]
    await wait_for(lambda: not len(steps))
    await queue.delete()


async def test_jobs_with_the_same_id_do_not_share_their_steps() -> None:
    one, other, steps = Queue("one"), Queue("other"), MemoryCheckpointStore()

    async def handle(job: ActiveJob[Any]) -> str:
        found = await job.io("step", lambda: job.queue)
        if job.queue == "one":
            raise DontRetry("kept with its steps")
        return found

    for queue in (one, other):
        await queue.add("any", job_id="1")
        outcomes = await run(queue, handle, idempotent="resumable", checkpoints=steps)
        await queue.delete()
    assert outcomes.completed[0].result == "other"


async def test_steps_of_a_job_that_is_not_resumable_just_run() -> None:
    job: ActiveJob[Any] = ActiveJob(
        id="1", name="n", queue="q", data=None, status="active", created_at=_now()
    )
    assert await job.io("key", lambda: 5) == 5
    assert (job.headers, job.lease_lost, job.attempt) == ({}, False, 1)
    with pytest.raises(ConfigurationError, match="cannot store the steps"):
        Worker("q", _module_handler, executor="process", idempotent="resumable")


async def _module_handler(job: ActiveJob[Any]) -> None: ...


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)


# -- duplicates ------------------------------------------------------------------------------------


# -- stores that are unavailable -------------------------------------------------------------------


class Outage:
    """Fails every call until it is over."""

    def __init__(self) -> None:
        self.calls = 0
        self.over = False

    def check(self) -> None:
        self.calls += 1
        if not self.over:
            raise OSError("the store is down")


async def test_results_that_cannot_be_loaded_cost_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("matador.jobs.way._PATIENCE", 0.0)
    monkeypatch.setattr(stores, "_FIRST_PAUSE", 0.001)
    queue, outage, attempts = Queue("outage"), Outage(), list[int]()

    async def handle(job: ActiveJob[Any]) -> int:
        attempts.append(job.attempts)
        return 1

    await chain(queue.step("any", {}), queue.step("any", {"n": RESULT}, attempts=1)).add()
    transport = queue.provider.transport
    assert isinstance(transport, MemoryTransport)
    results = transport.child_results

    async def child_results(queue: str, job_id: str) -> Mapping[str, bytes | None]:
        outage.check()
        return await results(queue, job_id)

    monkeypatch.setattr(transport, "child_results", child_results)
    worker = Worker(queue, handle, concurrency=1)
    outcomes = Outcomes(worker)
    async with worker:
        await wait_for(lambda: outage.calls >= 6)
        outage.over = True
        await wait_for(lambda: len(outcomes.completed) == 2)
    assert set(attempts) == {0}
    assert outcomes.failed == []
    await queue.delete()


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_results_of_a_flow_reach_a_handler_in_a_thread(executor: Any) -> None:
    queue = Queue("flow")

    def handle(job: ActiveJob[Any]) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return job.data["n"] + 1

    flow = chain(
        queue.step("any", {"n": 1}),
        queue.step("any", {"n": RESULT}, remove_on_complete=False),
    )
    handle_of = await flow.add()
    async with Worker(queue, handle, executor=executor):
        assert await handle_of.result(timeout=10) == 3
    await queue.delete()


async def test_results_of_a_flow_that_do_not_fit_fail_its_job_at_once() -> None:
    queue = Queue("misfit")

    async def first(job: ActiveJob[Any]) -> str:
        return "no number"

    async def second(job: ActiveJob[dict[str, int]]) -> None:
        raise AssertionError

    await chain(queue.step("first"), queue.step("second", {"n": RESULT}, attempts=3)).add()
    worker = Worker(queue, {"first": first, "second": second})
    outcomes = Outcomes(worker)
    async with worker:
        await wait_for(lambda: outcomes.ended == 2)
    (failed,) = outcomes.failed
    assert (failed.permanent, failed.will_retry, failed.attempts) == (True, False, 1)
    assert "invalid data: Expected `int`" in str(failed.error)
    await queue.delete()


# -- hooks -----------------------------------------------------------------------------------------


class Noted(Hooks):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.attempts: list[Attempt] = []
        self.states: list[str] = []
        self.sending: list[tuple[Sending, BaseException | None]] = []

    def on_start(self) -> None:
        self.states.append("started")

    async def on_stop(self) -> None:
        self.states.append("stopped")

    def on_sent(self, batch: Sequence[Sent]) -> None:
        self.sent += batch

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self.attempts += batch

    def on_send_enter(self, event: Sending) -> None:
        event.metadata["trace"] = "t1"
        event.metadata["tenant"] = "of the hook"

    def on_send_exit(self, event: Sending, state: Any, error: BaseException | None) -> None:
        self.sending.append((event, error))

    def load_universal_metadata(self) -> dict[str, str]:
        return {"host": "h1", "trace": "t0"}


async def test_hooks_are_told_what_is_added_and_attempted(tmp_path: Path) -> None:
    noted = Noted()
    queue = Queue("emails", provider=SqliteTransport(tmp_path / "jobs.db"), hooks=noted)

    async def handle(job: ActiveJob[Any]) -> str:
        if job.name == "bad":
            raise DontRetry("no mailbox")
        return "sent"

    good = await queue.add("good", {"n": 1}, metadata={"tenant": "mine"}, delay=0.001, priority=3)
    (bad,) = await queue.add_many([("bad", 2)])
    async with Worker(queue, handle) as worker:  # with the hooks of its queue
        await wait_for(lambda: len(noted.attempts) == 2)
        metrics = worker.metrics()
    assert (metrics.messages_succeeded, metrics.messages_failed) == (1, 1)
    assert (metrics.messages_dead_lettered, queue.metrics().messages_sent) == (1, 2)
    assert [(one.id, one.name, one.receiver, one.way) for one in noted.sent] == [
        (good.id, "good", "emails", "job"),
        (bad.id, "bad", "emails", "job"),
    ]
    first = noted.sent[0]
    assert first.data == b'{"n":1}'
    assert first.metadata == {"host": "h1", "trace": "t1", "tenant": "mine"} == good.metadata
    assert first.due_at is not None
    assert (first.options or {})["priority"] == 3
    events = [(e.names, e.count, e.receiver, error) for e, error in noted.sending]
    assert events == [(("good",), 1, "emails", None), (("bad",), 1, "emails", None)]
    attempts = {one.name: one for one in noted.attempts}
    assert (attempts["good"].outcome, attempts["good"].result) == ("success", "sent")
    assert attempts["good"].message.metadata == first.metadata
    assert (attempts["bad"].outcome, attempts["bad"].reason) == ("dead-letter", "no mailbox")
    assert attempts["bad"].message.attempt == 1
    await queue.shutdown(disconnect=True)
    assert noted.states == ["started", "started", "stopped", "stopped"]


async def test_hooks_of_a_worker_are_its_own_and_can_be_added() -> None:
    of_queue, of_worker, added = Noted(), Noted(), Noted()
    async with Queue("own", hooks=[of_queue]) as queue:
        worker = Worker(queue, _module_handler, hooks=[of_worker])
        worker.add_hooks(added)
        assert worker.hooks == (of_worker, added)
        async with worker:
            await queue.add("any")
            await wait_for(lambda: of_worker.attempts and added.attempts)
        assert of_queue.attempts == []
    with pytest.raises(ConfigurationError, match="hooks= takes objects of subclasses of Hooks"):
        Worker("q", _module_handler, hooks=5)  # type: ignore[arg-type]


async def test_an_add_that_fails_ends_its_span_with_the_error() -> None:
    noted = Noted()
    async with Queue("spans", hooks=noted) as queue:
        await queue.add("any", job_id="taken")
        with pytest.raises(Exception, match="taken"):
            await queue.add("any", job_id="taken")
        assert [type(error).__name__ for _, error in noted.sending] == [
            "NoneType",
            "DuplicateJobError",
        ]
        assert len(noted.sent) == 1
        await queue.delete()


async def test_a_listener_that_is_added_while_jobs_run_is_told() -> None:
    told: list[JobCompleted] = []
    async with Queue("late") as queue, Worker(queue, _module_handler) as worker:
        await queue.add("any")
        await wait_for(lambda: worker.metrics().messages_succeeded == 1)
        worker.on("completed", told.append)
        await queue.add("any")
        await wait_for(lambda: told)
