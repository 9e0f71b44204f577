"""Rows of jobs that other programs wrote: nothing stops, and no neighbour suffers."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.jobs.sqlite.conftest import Connect, by_hand
from tests.support.raw_sqlite import SqliteEntries, Text

from matador.jobs import ActiveJob, PermanentJobError, Queue, Worker
from matador.model.job import JOB_STATUSES
from matador.testing import wait_for
from matador.transports.sqlite.database import BRIEF_JOB, READY

ODD: dict[str, dict[str, Any]] = {
    "nothing of a job": {},
    "the id is no UTF-8": {"id": Text(b"\xff")},
    "the id is empty": {"id": ""},
    "headers are no JSON": {"headers": b"{"},
    "headers are a list": {"headers": b"[]"},
    "headers of other types": {
        "headers": b'{"job.id": [1], "job.name": {}, "job.maxAttempts": null, '
        b'"job.createdAt": 9e99, "job.keepCompleted": 5, "job.parent": [], "job.unique": {}}'
    },
    "kept for ever and a day": {
        "headers": b'{"job.id": "x", "job.keepCompleted": "age=1e300,count=1e18"}'
    },
    "times are out of range": {"stored_at": 2**62, "processed_at": -(2**62)},
    "it is finished before it runs": {"finished_at": 2**62, "expires_at": 2**62},
    "progress and result are no JSON": {"progress": b"{", "result": b"{"},
    "it is brief": {"job": BRIEF_JOB},
    "deliveries are as many as can be": {"deliveries": 2**63 - 1},
    "the key is no UTF-8": {"ordering_key": b"\xff"},
    "the limit is no UTF-8": {"limit_key": b"\xff"},
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_row_is_in_nobodys_way(file: Path, connect: Connect, name: str) -> None:
    transport = await connect()
    queue = Queue("q", provider=transport)
    before = await queue.add("good", 1, remove_on_complete=False)
    row = {"state": READY, "id": "odd", "stored_at": 0, "body": b"odd", **ODD[name]}
    entries = SqliteEntries(file)
    entries.insert("q", row)
    await entries.close()
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


async def test_random_rows_are_in_nobodys_way(file: Path, connect: Connect) -> None:
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


@pytest.mark.parametrize("name", ["q", "q.undeliverable"])
async def test_a_queue_of_jobs_cannot_be_deleted_by_hand(
    file: Path, connect: Connect, name: str
) -> None:
    await connect()
    with pytest.raises(sqlite3.IntegrityError, match="or has jobs"):
        by_hand(file, "DELETE FROM queues WHERE name = ?", (name,))
