"""What is kept of jobs that are finished, and how their attempts are counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.sqlite.conftest import Connect, fetch, ids, job

from matador.errors import (
    JobStateError,
    LeaseLostError,
)
from matador.jobs import ActiveJob, Keep, Queue, Worker
from matador.model.message import (
    Complete,
    DeadLetter,
    Release,
    Retry,
)
from matador.testing import wait_for
from matador.transports.sqlite import sweep


async def test_completed_jobs_are_deleted_after_their_time(
    file: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_QUIET", 0.05)
    transport = await connect()
    await transport.add_jobs(
        [
            job("short", keepCompleted="age=0.2"),
            job("long", keepCompleted="age=600"),
            job("odd", keepCompleted="age=1e300,count=1e300"),
            job("failed", keepFailed="age=0.2"),
        ]
    )
    *done, bad = await fetch(transport, 4)
    assert (
        await transport.settle(
            [
                *(Complete(one.receipt) for one in done),
                DeadLetter(bad.receipt, "undeliverable", "r"),
            ]
        )
        == [None] * 4
    )
    assert (await transport.count_jobs("q")).all_failed == 1

    async def remain() -> bool:
        return not await ids(transport, "failed") and len(await ids(transport, "completed")) == 2

    await wait_for(remain, timeout=15)
    assert sorted(await ids(transport, "completed")) == ["long", "odd"]


async def test_only_so_many_finished_jobs_are_kept(connect: Connect) -> None:
    transport = await connect()
    for number in range(6):
        await transport.add_jobs(
            [
                job(f"good-{number}", keepCompleted="count=2"),
                job(f"bad-{number}", keepFailed="count=3"),
            ]
        )
        good, bad = await fetch(transport, 2)
        await transport.settle(
            [Complete(good.receipt), DeadLetter(bad.receipt, "undeliverable", "r")]
        )
    counts = await transport.count_jobs("q")
    assert (counts.completed, counts.failed) == (2, 3)
    assert (counts.all_completed, counts.all_failed) == (6, 6)
    assert await ids(transport, "completed") == ["good-5", "good-4"]
    assert await ids(transport, "failed") == ["bad-5", "bad-4", "bad-3"]


async def test_failed_jobs_are_dead_letters(connect: Connect) -> None:
    transport = await connect()
    await transport.add_jobs([job("a"), job("b")])
    for delivery in await fetch(transport, 2):
        await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "broken")])
    letters = [one async for one in transport.browse("q.undeliverable")]
    assert [(one.id, one.reason) for one in letters] == [("a", "broken"), ("b", "broken")]
    (taken,) = await transport.take("q.undeliverable", [letters[0].position])
    assert taken is not None
    await transport.settle([Retry(taken.receipt, job("a"))])  # as a tool does that sends it again
    assert (await ids(transport, "waiting"), await ids(transport, "failed")) == (["a"], ["b"])
    with pytest.raises(JobStateError):
        await transport.retry_job("q", "a")


async def test_attempts_that_nobody_reported_count(connect: Connect) -> None:
    transport = await connect(lease=0.2)
    await transport.add_jobs([job("a", keepCompleted="all", attempts=2)])
    subscription = await transport.subscribe("q", prefetch=1)
    async with asyncio.timeout(10):
        await subscription.receive(1)
        (record,) = await transport.find_jobs("q", ["a"])
        assert record is not None
        assert (record.status, record.attempts) == ("active", 2)
        (again,) = await subscription.receive(1)  # when the lease of the first is over
    (record,) = await transport.find_jobs("q", ["a"])
    assert record is not None
    assert (record.status, record.attempts, again.receipt.delivery_count) == ("active", 3, 2)
    await transport.settle([Release(again.receipt)])
    async with asyncio.timeout(10):
        (last,) = await subscription.receive(1)
    assert await transport.settle([Complete(last.receipt, b'"done"')]) == [None]
    (record,) = await transport.find_jobs("q", ["a"])
    assert record is not None
    assert (record.status, record.attempts, record.result) == ("completed", 4, b'"done"')
    with pytest.raises(LeaseLostError):
        await transport.set_progress(again.receipt, b"1")


async def test_keeps_are_chosen_by_queue_users(connect: Connect) -> None:
    queue = Queue("q", provider=await connect())
    done: list[str] = []

    async def handle(one: ActiveJob[Any]) -> int:
        done.append(one.id)
        return one.data

    for number in range(3):
        await queue.add("n", number, job_id=str(number), remove_on_complete=Keep(age=60, count=2))
    async with Worker(queue, handle, concurrency=1):
        await wait_for(lambda: len(done) == 3)
    assert [(one.id, one.result) for one in await queue.list("completed")] == [("2", 2), ("1", 1)]


async def test_the_caretaker_bounds_the_completed_jobs_of_a_busy_queue(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = sweep._SURPLUS_JOBS.replace("OFFSET 10000", "OFFSET 2")
    monkeypatch.setattr(sweep, "_SURPLUS_JOBS", most)
    monkeypatch.setattr(sweep, "_INTERVAL", 0.05)
    monkeypatch.setattr(sweep, "_QUIET", 0.05)
    transport = await connect()
    all_ = [f"n-{number}" for number in range(5)]
    own = {"forever": "all", "age": "age=600"}
    special = [job("unique", unique="key")]  # its key takes more than the usual statement
    await transport.add_jobs(
        [*(job(one) for one in all_), *special, *(job(one, keepCompleted=own[one]) for one in own)]
    )
    found = await fetch(transport, 8)
    for one in found:
        await transport.settle([Complete(one.receipt, b"1")])

    async def bounded() -> bool:
        return len(await ids(transport, "completed")) == 4

    await wait_for(bounded, timeout=15)
    assert sorted(await ids(transport, "completed")) == ["age", "forever", "n-4", "unique"]
    record = (await transport.find_jobs("q", ["n-4"]))[0]
    assert record is not None
    assert (record.result, record.attempts) == (b"1", 1)
