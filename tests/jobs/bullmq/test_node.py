"""Workers, producers and schedulers of BullMQ on Node share one queue of jobs with ours."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.node import Node

from matador.jobs import ActiveJob, Fixed, PermanentJobError, Queue, RateLimit
from matador.model.job_limits import JobLimits
from matador.testing.wait import wait_for
from matador.transports.bullmq import BullMQTransport

if TYPE_CHECKING:
    from tests.jobs.bullmq.conftest import Work

pytestmark = pytest.mark.broker

QUEUE = "emails"


class Seen:
    """A handler that notes jobs, and returns what it is told."""

    def __init__(self, result: Any = None) -> None:
        self.jobs: list[ActiveJob[Any]] = []
        self._result = result

    async def __call__(self, job: ActiveJob[Any]) -> Any:
        self.jobs.append(job)
        return self._result

    async def wait(self, count: int) -> list[ActiveJob[Any]]:
        await wait_for(lambda: len(self.jobs) >= count, timeout=15)
        return self.jobs


async def until_status(queue: Queue, job_id: str, status: str) -> None:
    async def is_there() -> bool:
        job = await queue.get(job_id)
        return job is not None and job.status == status

    await wait_for(is_there, timeout=15)


async def test_node_runs_jobs_of_ours_and_we_see_the_result(queue: Queue, node: Node) -> None:
    await queue.add("welcome", {"to": "ada"}, job_id="j-1", remove_on_complete=False)
    await node.ask("work", QUEUE, result={"sent": True})
    job = await node.next("job")
    assert (job["id"], job["name"]) == ("j-1", "welcome")
    assert job["data"] == {"_jobData": {"to": "ada"}}
    await until_status(queue, "j-1", "completed")
    found = await queue.get("j-1")
    assert found is not None
    assert (found.result, found.attempts) == ({"sent": True}, 1)


async def test_what_node_fails_is_retried_and_counted_on_our_side(
    queue: Queue, node: Node, work: Work
) -> None:
    await queue.add("one", 1, job_id="j-1", backoff=Fixed(0.3), attempts=3)
    await node.ask("work", QUEUE, failures=1)
    await node.next("job")
    await node.ask("stop", QUEUE)
    seen = Seen()
    await work(seen)
    (job,) = await seen.wait(1)
    assert (job.attempts, job.max_attempts, job.error) == (1, 3, "Node says no")


async def test_we_run_jobs_of_node_and_node_sees_the_result(
    queue: Queue, node: Node, work: Work
) -> None:
    options = {"jobId": "n-1", "attempts": 2}
    await node.ask("add", QUEUE, name="plain", data={"a": 1}, options=options)
    wrapped = {"_jobData": [1], "_metadata": {"m": 1}}
    await node.ask("add", QUEUE, name="wrapped", data=wrapped, options={"priority": 3})
    seen = Seen({"done": 1})
    await work(seen, concurrency=1)
    plain, other = await seen.wait(2)
    assert (plain.id, plain.name, plain.data) == ("n-1", "plain", {"a": 1})
    assert (plain.max_attempts, plain.metadata) == (2, {})
    assert (other.name, other.data, other.metadata) == ("wrapped", [1], {"m": 1})
    await until_status(queue, "n-1", "completed")
    job = await node.ask("fields", QUEUE, id="n-1")
    assert (job["state"], job["finished"], job["attemptsMade"]) == ("completed", {"done": 1}, 1)
    assert await node.ask("metrics", QUEUE, kind="completed") == 2


async def test_failed_jobs_are_the_same_on_both_sides(queue: Queue, node: Node, work: Work) -> None:
    async def handle(job: ActiveJob[Any]) -> None:
        raise PermanentJobError("never")

    await queue.add("one", {"a": 1}, job_id="j-1")
    worker = await work(handle)
    await until_status(queue, "j-1", "failed")
    await worker.close()
    job = await node.ask("fields", QUEUE, id="j-1")
    assert (job["state"], job["failedReason"], job["attemptsMade"]) == ("failed", '"never"', 1)
    assert "PermanentJobError: never" in json.loads(job["stacktrace"])[0]
    assert (await node.ask("counts", QUEUE))["failed"] == 1
    await node.ask("retry", QUEUE, id="j-1")
    assert (await queue.stats()).waiting == 1
    await node.ask("work", QUEUE, failures=3)
    await node.next("job")

    await until_status(queue, "j-1", "delayed")
    await node.ask("stop", QUEUE)
    found = await queue.get("j-1")
    assert found is not None
    assert (found.attempts, found.error) == (2, "Node says no")


async def test_priorities_and_delays_are_in_order_on_both_sides(queue: Queue, node: Node) -> None:
    for priority in (None, 1, 9):
        await queue.add(f"p-{priority}", priority, priority=priority)
    await queue.add("later", 1, delay=0.5)
    await node.ask("work", QUEUE)
    assert [(await node.next("job"))["name"] for _ in range(4)] == ["p-9", "p-1", "p-None", "later"]


async def test_a_pause_of_either_side_holds_both(queue: Queue, node: Node, work: Work) -> None:
    seen = Seen()
    await queue.pause()
    await node.ask("add", QUEUE, name="theirs", data={})
    await queue.add("ours", 1)
    await work(seen)
    assert (await queue.stats()).waiting == 2
    await node.ask("resume", QUEUE)
    assert {job.name for job in await seen.wait(2)} == {"ours", "theirs"}
    await node.ask("pause", QUEUE)
    await queue.add("ours", 2)
    await node.ask("add", QUEUE, name="theirs", data={})
    assert (await queue.stats()).paused
    assert (await queue.stats()).waiting == 2
    await queue.resume()
    assert len(await seen.wait(4)) == 4


async def test_schedules_are_kept_alive_by_either_side(
    queue: Queue, node: Node, work: Work
) -> None:
    await queue.schedule("ours", "tick", {"n": 1}, every=0.3, attempts=4)
    await node.ask(
        "schedule", QUEUE, id="theirs", repeat={"every": 300}, template={"name": "tock", "data": {}}
    )
    (ours,) = [one for one in await node.ask("schedulers", QUEUE) if one["key"] == "ours"]
    assert (ours["name"], ours["every"]) == ("tick", 300)
    assert {one.key: one.every for one in await queue.schedules()} == {"ours": 0.3, "theirs": 0.3}
    await node.ask("work", QUEUE)
    names = [(await node.next("job"))["name"] for _ in range(6)]
    assert names.count("tick") >= 2
    assert names.count("tock") >= 2
    await node.ask("stop", QUEUE)
    seen = Seen()
    await work(seen)
    await wait_for(lambda: {job.name for job in seen.jobs[2:]} == {"tick", "tock"}, timeout=15)
    assert {job.max_attempts for job in seen.jobs if job.name == "tick"} == {4}
    assert await queue.unschedule("theirs")
    assert [one["key"] for one in await node.ask("schedulers", QUEUE)] == ["ours"]


async def test_a_flow_of_node_runs_on_our_side(queue: Queue, node: Node, work: Work) -> None:
    await node.ask(
        "flow",
        QUEUE,
        parent={"name": "parent", "data": {}, "opts": {"jobId": "p-1"}},
        children=[{"name": "child", "data": {"n": n}} for n in range(2)],
    )
    found = await queue.get("p-1")
    assert found is not None
    assert found.status == "waiting"
    seen = Seen("done")
    await work(seen)
    assert [job.name for job in await seen.wait(3)] == ["child", "child", "parent"]
    await until_status(queue, "p-1", "completed")
    assert set((await node.ask("children", QUEUE, id="p-1")).values()) == {"done"}


async def test_node_and_we_share_a_rate_limit(queue: Queue, node: Node, work: Work) -> None:
    most, window, count = 4, 1.0, 14
    await queue.add_many([("one", number) for number in range(count)])
    times: list[float] = []
    ours: list[str] = []
    loop = asyncio.get_running_loop()

    async def handle(job: ActiveJob[Any]) -> None:
        times.append(loop.time())
        ours.append(job.id)

    began = loop.time()
    await node.ask("work", QUEUE, limiter={"max": most, "duration": round(window * 1000)})
    await work(handle, concurrency=1, rate_limit=RateLimit(most, per=window))
    theirs: list[str] = []

    async def listen() -> None:
        while True:
            job = await node.next("job")
            times.append(loop.time())
            theirs.append(job["id"])

    listening = asyncio.create_task(listen())
    await wait_for(lambda: len(times) == count, timeout=20)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert len({*ours, *theirs}) == count
    # Whoever runs a job: no window has more than its share.
    for number, when in enumerate(sorted(times)):
        assert when - began >= number // most * window - 0.02


async def test_we_wait_while_node_uses_up_the_rate_limit(
    queue: Queue, node: Node, transport: BullMQTransport
) -> None:
    await queue.add_many([("one", number) for number in range(3)])
    await node.ask("work", QUEUE, limiter={"max": 2, "duration": 600_000})
    for _ in range(2):
        await node.next("job")
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    subscription.set_limits(JobLimits(RateLimit(2, per=600)))
    receiving = asyncio.create_task(subscription.receive(1))
    await wait_for(lambda: subscription.limited, timeout=15)
    assert not receiving.done()
    subscription.set_limits(JobLimits(RateLimit(3, per=600)))
    async with asyncio.timeout(15):
        assert len(await receiving) == 1
