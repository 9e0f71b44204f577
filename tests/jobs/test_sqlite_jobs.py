"""Jobs in an SQLite file, beyond the contract: several transports, what is kept, odd rows."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from tests.support.raw_sqlite import SqliteEntries

from matador.errors import (
    ConfigurationError,
    DuplicateJobError,
    JobStateError,
    LeaseLostError,
    QueueNotFoundError,
    UniqueJobError,
    UnstorableError,
)
from matador.jobs import RESULT, ActiveJob, Keep, PermanentJobError, Queue, Worker, chain, group
from matador.model.job import JOB_STATUSES, JobSchedule, JobStatus
from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Release,
    Retry,
)
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.sqlite import SqliteTransport, sweep
from matador.transports.sqlite.database import BLOCKED, DELAYED, DONE, IN_FLIGHT, READY

Connect = Callable[..., Awaitable[SqliteTransport]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest_asyncio.fixture
async def connect(file: Path) -> AsyncIterator[Connect]:
    """Opens transports on the test's file, each with the queue of jobs ``q``."""
    opened: list[SqliteTransport] = []

    async def connect(**options: Any) -> SqliteTransport:
        transport = SqliteTransport(file, **options)
        opened.append(transport)
        await transport.connect()
        await transport.open_jobs("q")
        return transport

    yield connect
    for transport in opened:
        await transport.disconnect()


def job(job_id: str, delay: float = 0.0, **headers: str | int) -> Message:
    named = {f"job.{name}": value for name, value in headers.items()}
    return Message(job_id, "q", b'{"_jobData":1}', {"job.id": job_id, **named}, delay)


async def fetch(transport: SqliteTransport, count: int, queue: str = "q") -> list[Delivery]:
    subscription = await transport.subscribe(queue, prefetch=count)
    found: list[Delivery] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await subscription.receive(count - len(found))
    await subscription.close()
    return found


async def ids(transport: SqliteTransport, status: JobStatus) -> list[str]:
    return [one.id for one in await transport.list_jobs("q", status, limit=100)]


def by_hand(file: Path, statement: str, values: Sequence[Any] = ()) -> list[Any]:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=10)) as connection:
        return connection.execute(statement, values).fetchall()


# -- queues ---------------------------------------------------------------------------------------


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


# -- adding ---------------------------------------------------------------------------------------


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


# -- what is kept ---------------------------------------------------------------------------------


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


# -- recurring jobs -------------------------------------------------------------------------------


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
        ("no time", "soon", b'{"key":"k","name":"n"}'),
        ("a number", 1, 5),
    ):
        row = (key, next_at, value)
        by_hand(file, "INSERT INTO schedules SELECT id, ?, ?, ? FROM queues WHERE name='q'", row)
    assert [one.key for one in await transport.list_schedules("q")] == ["good"]
    assert await transport.remove_schedule("q", "no JSON")


# -- chains and groups ----------------------------------------------------------------------------


async def test_a_flow_is_added_as_a_whole_or_not_at_all(connect: Connect) -> None:
    transport = await connect()
    await transport.add_jobs([job("taken")])
    flow = [job("parent", children=2), job("child", parent="parent"), job("taken", parent="parent")]
    assert isinstance(await transport.add_flow("q", flow), DuplicateJobError)
    no_body: Any = None
    unstorable = Message("last", "q", no_body, {"job.parent": "parent"})
    assert isinstance(await transport.add_flow("q", [*flow[:2], unstorable]), UnstorableError)
    assert await transport.find_jobs("q", ["parent", "child"]) == [None, None]
    assert await transport.add_flow("q", flow[:2]) is None


async def test_a_long_chain_fails_and_is_retried_as_a_whole(connect: Connect) -> None:
    transport = await connect()
    length = 1500  # deeper than Python could call itself
    steps = [
        job("0", children=1),
        *(job(str(number), children=1, parent=str(number - 1)) for number in range(1, length)),
        job("first", parent=str(length - 1)),
    ]
    assert await transport.add_flow("q", steps) is None
    (delivery,) = await fetch(transport, 1)
    await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "broken")])
    counts = await transport.count_jobs("q")
    assert (counts.failed, counts.all_failed, counts.waiting) == (length + 1, length + 1, 0)
    (record,) = await transport.find_jobs("q", ["0"])
    assert record is not None
    assert record.error == "job 'first', which it waited for, has failed: broken"
    await transport.retry_job("q", "first")
    counts = await transport.count_jobs("q")
    assert (counts.failed, counts.waiting) == (0, length + 1)
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "first"
    await transport.settle([Complete(delivery.receipt, b"1")])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == str(length - 1)
    assert await transport.child_results("q", str(length - 1)) == {"first": b"1"}


async def test_who_waits_for_a_removed_job_fails(connect: Connect) -> None:
    transport = await connect()
    await transport.add_flow("q", [job("p", children=1), job("c", parent="p")])
    await transport.remove_job("q", "c")
    (record,) = await transport.find_jobs("q", ["p"])
    assert record is not None
    assert (record.status, "it was removed" in str(record.error)) == ("failed", True)
    await transport.retry_job("q", "p")
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "p"


async def test_a_child_that_a_tool_sends_again_is_waited_for_again(connect: Connect) -> None:
    transport = await connect()
    await transport.add_flow("q", [job("p", children=1), job("c", parent="p")])
    (delivery,) = await fetch(transport, 1)
    await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "broken")])
    letters = {one.id: one.position async for one in transport.browse("q.undeliverable")}
    assert sorted(letters) == ["c", "p"]
    parent, child = await transport.take("q.undeliverable", [letters["p"], letters["c"]])
    assert parent is not None
    assert child is not None
    await transport.settle([Retry(parent.receipt, job("p", children=1))])
    await transport.settle([Retry(child.receipt, job("c", parent="p"))])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "c"  # the parent waits
    await transport.settle([Complete(delivery.receipt, b"5")])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "p"
    assert await transport.child_results("q", "p") == {"c": b"5"}


async def test_only_the_children_of_a_job_decide_about_it(connect: Connect) -> None:
    transport = await connect()
    await transport.add_flow("q", [job("p", children=1), job("c", parent="p")])
    await transport.add_jobs([job("bad", parent="p"), job("good", parent="p")])
    found = {one.headers["job.id"]: one.receipt for one in await fetch(transport, 3)}
    await transport.settle(
        [DeadLetter(found["bad"], "undeliverable", "r"), Complete(found["good"], b"1")]
    )
    (record,) = await transport.find_jobs("q", ["p"])
    assert record is not None
    assert record.status == "waiting"
    await transport.settle([Complete(found["c"], b"2")])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "p"
    assert await transport.child_results("q", "p") == {"c": b"2"}


async def test_results_go_with_the_job_that_waited_for_them(
    file: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_QUIET", 0.05)
    transport = await connect()
    for name, keep in (("b", "count=1"), ("c", "count=1"), ("a", "age=0.1"), ("d", "count=0")):
        parent = job(name, children=1, keepFailed=keep)
        await transport.add_flow("q", [parent, job(f"{name}0", parent=name)])
        (child,) = await fetch(transport, 1)
        await transport.settle([Complete(child.receipt, b"1")])
        (delivery,) = await fetch(transport, 1)
        await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "r")])
    await wait_for(lambda: by_hand(file, "SELECT parent FROM job_children") == [("c",)], timeout=15)
    assert await ids(transport, "failed") == ["c"]


async def test_nothing_is_left_of_a_flow_that_is_done(file: Path, connect: Connect) -> None:
    queue = Queue("q", provider=await connect())
    flow = group(
        chain(queue.step("one", {"n": 1}), queue.step("one", {"n": RESULT})),
        queue.step("one", {"n": 2}),
        then=queue.step("all", {"n": RESULT}),
    )

    async def handle(one: ActiveJob[Any]) -> Any:
        return one.data["n"]

    await flow.add()
    async with Worker(queue, handle):
        await wait_for(
            lambda: by_hand(file, "SELECT all_completed FROM queues WHERE name = 'q'") == [(4,)]
        )
    assert by_hand(file, "SELECT count(*) FROM messages") == [(0,)]
    assert by_hand(file, "SELECT count(*) FROM job_children") == [(0,)]


# -- rows that other programs wrote ---------------------------------------------------------------

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
    (letter,) = await queue.dead_letters()
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
