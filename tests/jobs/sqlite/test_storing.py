"""Queues of jobs in an SQLite file, seen by several transports: pause, ids, keys, schedules."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.jobs.sqlite.conftest import Connect, by_hand, fetch, ids, job

from matador.errors import (
    ConfigurationError,
    DuplicateJobError,
    LeaseLostError,
    QueueNotFoundError,
    UniqueJobError,
)
from matador.model.job import JobSchedule
from matador.model.message import (
    Complete,
    DeadLetter,
    Message,
)
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.sqlite import sweep


async def test_a_queue_of_events_has_no_jobs(connect: Connect) -> None:
    transport = await connect()
    await transport.apply_topology(Topology("t", queues=["events"]))
    for name in ("t.events", "t.events.undeliverable", "q.undeliverable"):
        with pytest.raises(ConfigurationError, match="is not a queue of jobs"):
            await transport.open_jobs(name)
    for call in (transport.count_jobs, transport.pause_jobs, transport.delete_jobs):
        for name in ("t.events", "unknown"):
            with pytest.raises(QueueNotFoundError):
                await call(name)
    (outcome,) = await transport.add_jobs([Message("1", "t.events", b"1")])
    assert isinstance(outcome, QueueNotFoundError)
    with pytest.raises(QueueNotFoundError):
        await transport.add_flow("t.events", [])


async def test_a_pause_holds_in_all_processes_and_its_end_wakes_them(connect: Connect) -> None:
    first, second = await connect(), await connect()
    subscription = await second.subscribe("q", prefetch=1)
    receiving = asyncio.ensure_future(subscription.receive(1))
    await wait_for(lambda: second._connected.watcher._waiting)
    await first.pause_jobs("q")
    await first.add_jobs([job("1"), job("2")])
    third = await connect()
    assert (await third.count_jobs("q")).paused
    other = await third.subscribe("q", prefetch=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(other.receive(1), 0.1)
    assert not receiving.done()
    await first.resume_jobs("q")
    async with asyncio.timeout(10):
        (delivery,) = await receiving
    assert delivery.headers["job.id"] == "1"


async def test_a_deleted_queue_forgets_everything(file: Path, connect: Connect) -> None:
    transport = await connect()
    await transport.add_jobs([job("kept", keepCompleted="all"), job("bad"), job("u", unique="k")])
    kept, bad, unique = await fetch(transport, 3)
    await transport.settle([Complete(kept.receipt), DeadLetter(bad.receipt, "undeliverable", "r")])
    await transport.put_schedule("q", JobSchedule(key="s", name="s", every=1))
    await transport.add_flow("q", [job("p", children=1), job("c", parent="p")])
    await transport.pause_jobs("q")
    await transport.delete_jobs("q")
    counts = await transport.count_jobs("q")
    assert (counts.completed, counts.failed, counts.waiting, counts.active) == (0, 0, 0, 0)
    assert (counts.all_completed, counts.all_failed, counts.paused) == (0, 0, False)
    assert await transport.list_schedules("q") == []
    (outcome,) = await transport.settle([Complete(unique.receipt)])
    assert isinstance(outcome, LeaseLostError)
    assert await transport.add_jobs([job("kept"), job("u", unique="k")]) == [None, None]
    for table in ("job_children", "schedules"):
        assert by_hand(file, f"SELECT count(*) FROM {table}") == [(0,)]


async def test_an_id_is_taken_whatever_became_of_its_job(connect: Connect) -> None:
    transport = await connect()
    assert (
        await transport.add_jobs([job("a", keepCompleted="all"), job("b"), job("c")]) == [None] * 3
    )
    done, bad, _ = await fetch(transport, 3)
    await transport.settle(
        [Complete(done.receipt, b"7"), DeadLetter(bad.receipt, "undeliverable", "r")]
    )
    outcomes = await transport.add_jobs([job("a"), job("b"), job("c"), job("d"), job("d")])
    assert [type(one) for one in outcomes] == [
        *[DuplicateJobError] * 3,
        type(None),
        DuplicateJobError,
    ]


async def test_transports_agree_on_who_adds_an_id(connect: Connect) -> None:
    transports = [await connect() for _ in range(4)]
    outcomes = await asyncio.gather(
        *(
            transport.add_jobs([job(f"same-{number}", unique=f"key-{number}")])
            for number in range(25)
            for transport in transports
        )
    )
    assert len([one for (one,) in outcomes if one is None]) == 25
    assert len(await ids(transports[0], "waiting")) == 25


async def test_unique_keys(file: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = await connect()
    first, second, other = await transport.add_jobs(
        [job("1", unique="k"), job("2", unique="k"), job("3", unique="w", uniqueFor=50)]
    )
    assert (first, other) == (None, None)
    assert isinstance(second, UniqueJobError)
    assert second.job_id == "1"
    await transport.remove_job("q", "1")
    assert await transport.add_jobs([job("4", unique="k")]) == [None]
    (gone,) = [one for one in await fetch(transport, 2) if one.headers["job.id"] == "4"]
    await transport.settle([DeadLetter(gone.receipt, "undeliverable", "r")])
    assert by_hand(file, "SELECT key FROM job_keys") == [("w",)]
    assert await transport.add_jobs([job("5", unique="k")]) == [None]

    async def is_free() -> bool:
        (outcome,) = await transport.add_jobs([job("6", unique="w", uniqueFor=1)])
        return outcome is None

    await wait_for(is_free)
    monkeypatch.setattr(sweep, "_QUIET", 0.01)
    await wait_for(lambda: by_hand(file, "SELECT key FROM job_keys") == [("k",)], timeout=15)


async def test_a_time_of_a_schedule_is_fired_once(connect: Connect) -> None:
    transports = [await connect() for _ in range(4)]
    schedule = JobSchedule(key="s", name="tick", every=1.0, next_at=0.1 + 0.2)
    await transports[0].put_schedule("q", schedule)
    for number in range(10):
        (schedule,) = await transports[number % 4].list_schedules("q")
        next_at = schedule.next_at + 1 / 3
        fired = await asyncio.gather(
            *(
                transport.fire_schedule("q", schedule, next_at, [job(f"tick-{number}-{index}")])
                for index, transport in enumerate(transports)
            )
        )
        assert sorted(fired) == [False, False, False, True]
    assert len(await ids(transports[0], "waiting")) == 10
    assert await transports[0].remove_schedule("q", "s")
    assert not await transports[1].fire_schedule("q", schedule, 99.0, [job("late")])
    assert await transports[0].find_jobs("q", ["late"]) == [None]


async def test_schedules_that_nobody_can_read_are_left_alone(file: Path, connect: Connect) -> None:
    transport = await connect()
    await transport.put_schedule("q", JobSchedule(key="good", name="tick", every=1.0, next_at=5))
    for key, next_at, value in (
        ("no JSON", 1, b"{"),
        ("no schedule", 1, b"[1]"),
        ("nothing", 1, b""),
    ):
        row = (key, next_at, value)
        by_hand(file, "INSERT INTO schedules SELECT id, ?, ?, ? FROM queues WHERE name='q'", row)
    assert [one.key for one in await transport.list_schedules("q")] == ["good"]
    assert await transport.remove_schedule("q", "no JSON")
