"""Whatever others write into a queue of jobs, good jobs get through, and the queue can be read."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.raw_bullmq import RawBullMQ
from tests.support.redis import OwnServer

from matador.jobs import ActiveJob, JobProvider, Queue, RateLimit, Worker
from matador.model.job import JOB_STATUSES
from matador.testing.wait import wait_for
from matador.transports.bullmq import BullMQTransport

if TYPE_CHECKING:
    from tests.jobs.bullmq.conftest import Work

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("seed", range(3))
async def test_odd_jobs_stop_no_worker(
    queue: Queue, server: OwnServer, prefix: str, work: Work, seed: int
) -> None:
    random, raw = Random(seed), RawBullMQ(server.url, prefix)
    done: set[int] = set()
    number = 80

    async def handle(job: ActiveJob[Any]) -> str:
        if job.name != "good":
            raise ValueError("odd")
        if job.attempts == 0 and job.data % 10 == 0:
            raise ValueError("once")
        done.add(job.data)
        return "done"

    for good in range(number):
        await queue.add("good", good, attempts=2, provider_options={"backoff": 0})
        for _ in range(2):
            await raw.write(queue.name, random)
    await raw.close()
    for status in JOB_STATUSES:
        for job in await queue.list(status):
            await queue.get(job.id)
    worker = await work(handle, concurrency=20)
    await wait_for(lambda: len(done) == number, timeout=45)

    async def is_empty() -> bool:
        stats = await queue.stats()
        return stats.waiting + stats.active == 0

    await wait_for(is_empty, timeout=45)
    assert worker.is_running
    for status in JOB_STATUSES:
        await queue.list(status)
    await queue.delete()
    assert (await queue.stats()).failed == 0


async def test_fields_that_are_missing_have_bullmqs_defaults(
    queue: Queue, client: Any, prefix: str, work: Work
) -> None:
    seen: list[ActiveJob[Any]] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(job)

    await client.hset(f"{prefix}:emails:x-1", "data", b"[1]")
    await client.lpush(f"{prefix}:emails:wait", "x-1")
    await work(handle)
    await queue.add("wakes it up", 1)
    await wait_for(lambda: len(seen) == 2, timeout=15)
    (job,) = [one for one in seen if one.id == "x-1"]
    assert (job.name, job.data, job.attempts, job.max_attempts) == ("job", [1], 0, 1)


@pytest.mark.parametrize("odd", ["text", "list", "without an end", "infinite"])
async def test_an_odd_rate_limit_starts_again(
    queue: Queue, client: Any, prefix: str, work: Work, odd: str
) -> None:
    key, seen = f"{prefix}:emails:limiter", list[str]()
    if odd == "list":
        await client.lpush(key, "x")
    else:
        value = {"text": "many", "without an end": "1000000", "infinite": "inf"}[odd]
        await client.set(key, value)

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(job.id)

    await queue.add_many([("one", number) for number in range(5)])
    await work(handle, rate_limit=RateLimit(3, per=600))
    await wait_for(lambda: len(seen) == 3, timeout=15)
    assert 0 < await client.pttl(key) <= 600_000
    assert int(await client.get(key)) == 3


async def test_a_result_that_the_server_can_never_store_fails_its_job_alone(
    server: OwnServer, client: Any, prefix: str
) -> None:
    """The server drops a connection that sends so much: all workers would try again for ever."""
    await client.config_set("proto-max-bulk-len", 1 << 20)
    transport = BullMQTransport(f"bullmq://127.0.0.1:{server.port}/0?prefix={prefix}", lease=1)
    queue = Queue("large", provider=JobProvider(transport))
    done: list[str] = []

    async def handle(job: ActiveJob[Any]) -> str:
        if job.name == "large":
            await job.update_progress("x" * (1 << 20))
            return "x" * (1 << 20)
        done.append(job.name)
        return "x" * 1000

    try:
        jobs = [("large", 1), ("first", 1), ("second", 1)]
        ids = [one.id for one in await queue.add_many(jobs)]
        async with Worker(queue, handle, concurrency=3) as worker:
            await wait_for(lambda: len(done) == 2, timeout=15)

            async def has_failed() -> bool:
                return (await queue.stats()).failed == 1

            await wait_for(has_failed, timeout=15)
            assert worker.is_running
        failed = await queue.get(ids[0])
        assert failed is not None
        assert failed.attempts == 1
        assert "its result of 1,048,578 bytes cannot be stored" in str(failed.error)
        assert transport.state.status == "connected"
    finally:
        await client.config_set("proto-max-bulk-len", 512 << 20)
        await queue.shutdown(disconnect=True)
