"""Jobs that are added again keep their options, and are added once where the provider can tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url

from matador.errors import JobError, LifecycleError
from matador.jobs import ActiveJob, Fixed, PermanentJobError, Queue, Worker
from matador.jobs.provider import MessageJobs
from matador.jobs.wire import StoredJob, stored_message
from matador.model.message import Once
from matador.runtime.facts import Attempt, Sent
from matador.runtime.hooks import Hooks
from matador.testing import wait_for
from matador.transports import SqliteTransport

ONCE = Once("replay:1", 0)


class Noted(Hooks):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.attempts: list[Attempt] = []

    def on_sent(self, batch: Sequence[Sent]) -> None:
        self.sent += batch

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self.attempts += batch


def stored(number: int, **options: str) -> StoredJob:
    return StoredJob(
        id=f"again-{number}",
        name="welcome",
        data=b'{"number": %d}' % number,
        metadata={"matador.replay-id": "1"},
        options={"job.maxAttempts": "7", "job.backoff": "fixed:2000", **options},
    )


@pytest_asyncio.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=[pytest.mark.broker, pytest.mark.xdist_group("redis")]),
        pytest.param("rabbitmq", marks=[pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]),
    ]
)
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Queue]:
    kind = request.param
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if kind == "sqlite" else broker_url(kind)
    async with Queue(f"stored-{uuid4().hex[:8]}", provider=url, hooks=Noted()) as queue:
        yield queue
        await queue.delete()


def noted(queue: Queue) -> Noted:
    (hook,) = queue.hooks
    assert isinstance(hook, Noted)
    return hook


async def test_jobs_are_added_again_with_their_options(queue: Queue) -> None:
    jobs = [stored(number) for number in range(3)]
    assert await queue.add_stored(jobs, ONCE) == [None] * 3
    seen: list[ActiveJob[Any]] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(job)

    async with Worker(queue, handle):
        await wait_for(lambda: len(noted(queue).attempts) == 3, timeout=30)
    assert sorted(job.data["number"] for job in seen) == [0, 1, 2]
    assert {job.max_attempts for job in seen} == {7}
    assert {job.metadata["matador.replay-id"] for job in seen} == {"1"}
    assert {one.id for one in noted(queue).sent} == {one.id for one in jobs}
    assert {one.outcome for one in noted(queue).attempts} == {"success"}


async def test_a_job_that_waits_is_not_added_twice(queue: Queue) -> None:
    jobs = [stored(number) for number in range(3)]
    for _ in range(2):
        assert await queue.add_stored(jobs, ONCE) == [None] * 3
    if queue.capabilities.unique_ids:
        assert (await queue.stats()).waiting == 3


async def test_where_the_transport_knows_a_job_that_is_gone_is_not_added_again(
    tmp_path: Path,
) -> None:
    async with Queue("emails", provider=f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        await queue.add_stored([stored(1)], ONCE)
        await queue.remove("again-1")
        await queue.add_stored([stored(1), stored(2)], ONCE)
        assert [job.id for job in await queue.list("waiting")] == ["again-2"]


async def test_many_failed_jobs_are_retried_at_once(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> None:
        raise PermanentJobError("no mailbox")

    jobs = await queue.add_many([("welcome", number) for number in range(4)], backoff=Fixed(9))
    async with Worker(queue, handle):
        await wait_for(lambda: len(noted(queue).attempts) == 4, timeout=30)
    store = queue.provider.store
    if not isinstance(store, MessageJobs):
        found = await queue.get_many([jobs[0].id, "nobody"])
        assert [one and one.status for one in found] == ["failed", None]
        return
    name = await store.open_jobs(queue.name)
    wanted = {jobs[0].id, jobs[2].id, "nobody"}
    assert await store.retry_jobs(name, wanted) == {jobs[0].id: None, jobs[2].id: None}
    left = {job.id for job in await queue.list("failed")}
    assert left == {jobs[1].id, jobs[3].id}


def test_odd_options_do_no_harm() -> None:
    message = stored_message("q", stored(1, priority="high", **{"job.maxAttempts": "many"}), 1.0)
    assert message.headers["job.maxAttempts"] == 1
    assert message.priority is None
    own = stored_message(
        "q", stored(1, **{"job.providerOptions": '{"lifo":1}', "job.unique": "k"}), 1.0
    )
    assert own.headers["job.providerOptions"] == '{"lifo":1}'
    assert "job.unique" not in own.headers


async def test_a_job_that_cannot_be_stored_is_said(tmp_path: Path) -> None:
    async with Queue("emails", provider=f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        await queue.delete()
        bad = StoredJob(id="\udcff", name="n", data=b"1", metadata={}, options={})
        first, second = await queue.add_stored([bad, stored(1)], Once("replay:2", 0))
        assert isinstance(first, JobError)
        assert second is None


async def test_a_queue_whose_transport_is_in_use_cannot_be_used_elsewhere(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "jobs.db")
    queue = Queue("emails", provider=transport)
    assert queue.another().name == "emails"
    async with queue:
        with pytest.raises(LifecycleError, match="give a URL"):
            queue.another()
        await queue.shutdown(disconnect=True)
