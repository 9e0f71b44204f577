"""Rows of jobs that other programs wrote or deleted: nothing stops, and no neighbour suffers."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.jobs.sqlite.conftest import Connect, by_hand, fetch, ids, job
from tests.support.raw_sqlite import SqliteEntries

from matador.errors import (
    DuplicateJobError,
)
from matador.jobs import ActiveJob, PermanentJobError, Queue, Worker
from matador.model.job import JOB_STATUSES
from matador.model.message import (
    DeadLetter,
)
from matador.testing import wait_for
from matador.transports.sqlite import sweep
from matador.transports.sqlite.database import BLOCKED, DELAYED, DONE, IN_FLIGHT, READY

ODD: dict[str, dict[str, Any]] = {
    "nothing of a job": {},
    "the id is a blob": {"id": b"\xff"},
    "the id is a number": {"id": 7},
    "headers are no JSON": {"headers": b"{"},
    "headers are a list": {"headers": b"[]"},
    "headers of other types": {
        "headers": b'{"job.id": [1], "job.name": {}, "job.maxAttempts": null, '
        b'"job.createdAt": 9e99, "job.keepCompleted": 5, "job.parent": [], "job.unique": {}}'
    },
    "kept for ever and a day": {
        "headers": b'{"job.id": "x", "job.keepCompleted": "age=1e300,count=1e18"}'
    },
    "the body is text": {"body": "text"},
    "the body is a number": {"body": 1.5},
    "times are text": {"stored_at": "now", "processed_at": "x", "finished_at": "y"},
    "times are out of range": {"stored_at": 2**62, "processed_at": -(2**62)},
    "progress and result are numbers": {"progress": 5, "result": "text"},
    "the kind of job is unknown": {"job": 77},
    "the kind of job is text": {"job": "yes"},
    "the priority is text": {"priority": "high", "rank": "high"},
    "the deliveries are text": {"deliveries": "many"},
    "it expires some time": {"expires_at": "soon"},
    "it is blocked by nobody, with a key": {"ordering_key": b"\0"},
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_row_is_in_nobodys_way(file: Path, connect: Connect, name: str) -> None:
    transport = await connect()
    queue = Queue("q", provider=transport)
    before = await queue.add("good", 1, remove_on_complete=False)
    row = {"state": READY, "id": "odd", "stored_at": 0, "body": b"odd", **ODD[name]}
    by_hand(
        file,
        f"INSERT INTO messages (queue, {', '.join(row)}) "
        f"VALUES ((SELECT id FROM queues WHERE name = 'q'), {', '.join('?' * len(row))})",
        list(row.values()),
    )
    after = await queue.add("good", 2, remove_on_complete=False)
    for status in JOB_STATUSES:
        await queue.list(status)
    await queue.stats()
    await queue.get(str(row["id"]))
    ran: list[str] = []

    async def handle(one: ActiveJob[Any]) -> None:
        ran.append(one.name)
        if one.name != "good":
            raise PermanentJobError("odd")

    async with Worker(queue, handle, concurrency=1):
        await wait_for(
            lambda: by_hand(file, "SELECT count(*) FROM messages WHERE state IN (0, 2)") == [(1,)]
        )
    assert ran.count("good") == 2
    for good in (before, after):
        found = await queue.get(good.id)
        assert found is not None
        assert found.status == "completed"
    (letter,) = await queue.list("failed")
    assert letter.status == "failed"
    await queue.list("completed")


async def test_states_of_rows_that_nobody_knows(file: Path, connect: Connect) -> None:
    transport = await connect()
    for state, due in (
        (DELAYED, None),
        (IN_FLIGHT, "x"),
        (BLOCKED, None),
        (DONE, "x"),
        (9, None),
        ("ready", b"\0"),
    ):
        by_hand(
            file,
            "INSERT INTO messages (queue, state, due, id, stored_at, body) "
            "VALUES ((SELECT id FROM queues WHERE name = 'q'), ?, ?, 'odd', 0, x'00')",
            (state, due),
        )
    for status in JOB_STATUSES:
        await transport.list_jobs("q", status, limit=10)
    await transport.count_jobs("q")
    assert await transport.add_jobs([job("good")]) == [None]
    found = await fetch(transport, 1)
    assert found[0].headers["job.id"] == "good"


async def test_random_rows_are_in_nobodys_way(
    file: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_INTERVAL", 0.1)  # makes ready what has no state
    queue = Queue("q", provider=await connect())
    entries, random = SqliteEntries(file), Random(12)
    good: list[str] = []
    for number in range(200):
        await entries.write("q", random)
        if number % 10 == 0:
            await entries.write("q.undeliverable", random)
            good.append((await queue.add("good", number, remove_on_complete=False)).id)
    await entries.close()
    errors: list[Any] = []

    async def handle(one: ActiveJob[Any]) -> None:
        if one.name != "good":
            raise PermanentJobError("odd")

    async def is_empty() -> bool:
        for status in JOB_STATUSES:
            await queue.list(status, 500)
        stats = await queue.stats()
        return stats.waiting + stats.delayed + stats.active == 0

    async with Worker(queue, handle) as worker:
        worker.on("error", errors.append)
        await wait_for(is_empty, timeout=30)
    assert errors == []
    found = [await queue.get(job_id) for job_id in good]
    assert [one and one.status for one in found] == ["completed"] * 20
    assert (await queue.stats()).failed == 200 + 20


async def test_a_deleted_queue_of_jobs_is_made_again(file: Path, connect: Connect) -> None:
    transport = await connect()
    await transport.add_jobs([job("a")])
    await transport.pause_jobs("q")
    by_hand(file, "DELETE FROM queues WHERE name = 'q'")
    (outcome,) = await transport.add_jobs([job("a")])
    assert isinstance(outcome, DuplicateJobError)
    assert (await transport.count_jobs("q")).paused


async def test_a_missing_queue_of_dead_letters_is_made_again(file: Path, connect: Connect) -> None:
    transport = await connect()
    await transport.add_jobs([job("a")])
    (delivery,) = await fetch(transport, 1)
    by_hand(file, "DELETE FROM queues WHERE name = 'q.undeliverable'")
    await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "r")])
    assert await ids(transport, "failed") == ["a"]
