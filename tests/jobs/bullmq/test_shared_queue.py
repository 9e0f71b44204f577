"""A queue of jobs with workers of one side only, and with what the other side does to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.jobs.bullmq.test_node import QUEUE, Seen, until_status
from tests.support.node import Node

from matador.jobs import ActiveJob, PermanentJobError, Queue
from matador.testing.wait import wait_for
from matador.transports.bullmq import BullMQTransport

if TYPE_CHECKING:
    from tests.jobs.bullmq.conftest import Work

pytestmark = pytest.mark.broker

SOON = {"lockDuration": 1000, "stalledInterval": 300, "maxStalledCount": 5}
"""Options of a Node worker that notices dead workers as soon as ours do in these tests."""


async def test_a_scheduler_of_node_fires_when_only_our_workers_live(
    queue: Queue, node: Node, work: Work
) -> None:
    template = {"name": "tock", "data": {"n": 1}, "opts": {"attempts": 4}}
    await node.ask("schedule", QUEUE, id="theirs", repeat={"every": 200}, template=template)
    seen = Seen()
    await work(seen)
    jobs = await seen.wait(4)
    assert {(job.name, job.max_attempts) for job in jobs} == {("tock", 4)}
    assert jobs[-1].data == {"n": 1}
    assert len({job.id for job in jobs}) == len(jobs)


async def test_a_schedule_of_ours_fires_when_only_node_workers_live(
    queue: Queue, node: Node
) -> None:
    await queue.schedule("ours", "tick", {"n": 1}, every=0.2)
    await node.ask("work", QUEUE)
    jobs = [await node.next("job") for _ in range(4)]
    assert {job["name"] for job in jobs} == {"tick"}
    assert jobs[-1]["data"] == {"_jobData": {"n": 1}}
    assert len({job["id"] for job in jobs}) == len(jobs)


async def test_either_side_ends_a_schedule_of_the_other(
    queue: Queue, node: Node, work: Work
) -> None:
    await queue.schedule("ours", "tick", 1, every=0.2)
    template: dict[str, Any] = {"name": "tock", "data": {}}
    await node.ask("schedule", QUEUE, id="theirs", repeat={"every": 200}, template=template)
    seen = Seen()
    await work(seen)
    await seen.wait(4)
    assert await node.ask("unschedule", QUEUE, id="ours")
    assert [one.key for one in await queue.schedules()] == ["theirs"]
    assert await queue.unschedule("theirs")
    assert await node.ask("schedulers", QUEUE) == []

    async def nothing_is_left() -> bool:
        stats = await queue.stats()
        return stats.waiting + stats.delayed + stats.active == 0

    await wait_for(nothing_is_left, timeout=15)


@pytest.mark.parametrize("side", ["ours", "node"])
async def test_priorities_of_both_sides_are_one_order(
    queue: Queue, node: Node, work: Work, side: str
) -> None:
    await queue.pause()
    await queue.add("ours-1", 1, priority=1)
    await node.ask("add", QUEUE, name="node-5", data={}, options={"priority": 5})
    await queue.add("ours-none", 1)
    await queue.add("ours-9", 1, priority=9)
    await node.ask("add", QUEUE, name="node-none", data={})
    await node.ask("add", QUEUE, name="node-3", data={}, options={"priority": 3})
    await queue.resume()
    if side == "ours":
        seen = Seen()
        await work(seen, concurrency=1)
        names = [job.name for job in await seen.wait(6)]
    else:
        await node.ask("work", QUEUE)
        names = [(await node.next("job"))["name"] for _ in range(6)]
    assert names == ["node-none", "node-3", "node-5", "ours-9", "ours-1", "ours-none"]


async def test_a_delayed_job_of_node_runs_here_in_time(
    queue: Queue, node: Node, work: Work
) -> None:
    seen = Seen()
    await work(seen)
    added = time.time()
    await node.ask("add", QUEUE, name="later", data={}, options={"delay": 500, "jobId": "n-1"})
    found = await queue.get("n-1")
    assert found is not None
    assert found.status == "delayed"
    assert found.scheduled_for is not None
    assert found.scheduled_for.timestamp() >= added + 0.499
    await seen.wait(1)
    assert time.time() - added >= 0.499


async def test_what_node_has_failed_for_good_is_retried_and_removed_from_here(
    queue: Queue, node: Node, work: Work
) -> None:
    for id_ in ("n-1", "n-2"):
        await node.ask("add", QUEUE, name="dead", data={}, options={"jobId": id_, "attempts": 1})
    await node.ask("work", QUEUE, failures=2)
    for id_ in ("n-1", "n-2"):
        await until_status(queue, id_, "failed")
    await node.ask("stop", QUEUE)
    letters = {job.id: (job.error, job.attempts) for job in await queue.list("failed")}
    assert letters == {"n-1": ("Node says no", 1), "n-2": ("Node says no", 1)}
    await queue.remove("n-2")
    assert await node.ask("job", QUEUE, id="n-2") is None
    await queue.retry("n-1")
    assert (await node.ask("job", QUEUE, id="n-1"))["state"] == "waiting"
    seen = Seen("done")
    await work(seen)
    await seen.wait(1)
    await until_status(queue, "n-1", "completed")
    assert (await node.ask("counts", QUEUE))["failed"] == 0


async def test_what_failed_here_is_retried_and_removed_from_node(
    queue: Queue, node: Node, work: Work
) -> None:
    repaired = False

    async def handle(job: ActiveJob[Any]) -> str:
        if not repaired:
            raise PermanentJobError("not yet")
        return "done"

    for id_ in ("j-1", "j-2"):
        await queue.add("one", 1, job_id=id_, remove_on_complete=False)
    await work(handle)
    for id_ in ("j-1", "j-2"):
        await until_status(queue, id_, "failed")
    await node.ask("remove", QUEUE, id="j-2")
    assert await queue.get("j-2") is None
    repaired = True
    await node.ask("retry", QUEUE, id="j-1")
    await until_status(queue, "j-1", "completed")
    assert (await node.ask("counts", QUEUE))["failed"] == 0


@pytest.mark.parametrize("lease", [1.0])
async def test_a_job_of_a_node_worker_that_was_killed_runs_here(
    queue: Queue, node: Node, work: Work
) -> None:
    await queue.add("one", 1, job_id="j-1", remove_on_complete=False)
    await node.ask("work", QUEUE, hang=True, options=SOON)
    await node.next("job")
    await node.kill()
    seen = Seen("done")
    await work(seen)
    (job,) = await seen.wait(1)
    assert (job.id, job.attempts) == ("j-1", 1)
    await until_status(queue, "j-1", "completed")


@pytest.mark.parametrize("lease", [1.0])
async def test_a_job_that_we_lost_runs_on_node(
    queue: Queue, node: Node, transport: BullMQTransport
) -> None:
    await queue.add("one", 1, job_id="j-1", remove_on_complete=False)
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    (delivery,) = await subscription.receive(1)
    assert delivery.headers["job.id"] == "j-1"  # and nobody renews its lock
    await node.ask("work", QUEUE, options=SOON)
    assert (await node.next("job"))["id"] == "j-1"
    await until_status(queue, "j-1", "completed")
    await subscription.close()
