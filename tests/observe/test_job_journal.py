"""Jobs in the journal: what was added and what came of it, with no effect on the jobs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from matador import Envelope, Matador, Schema, event, subscriber
from matador.errors import ConfigurationError
from matador.jobs import (
    RESULT,
    ActiveJob,
    DuplicateJobError,
    Fixed,
    PermanentJobError,
    Queue,
    Worker,
    chain,
)
from matador.observe import Journal
from matador.observe.journal.records import DeliveryRecord, SentRecord, decode_record
from matador.observe.journal.segments import finished, recover
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.testing import wait_for
from matador.transports import MemoryTransport, SqliteTransport


def of_kind(kind: type[Any], folder: Path) -> list[Any]:
    records = [
        decode_record(line) for path in finished(folder) for line in path.read_bytes().splitlines()
    ]
    return [one for one in records if isinstance(one, kind)]


async def handle(job: ActiveJob[Any]) -> str:
    if job.name == "broken":
        raise PermanentJobError("no such address")
    if job.name == "shaky" and job.attempts == 0:
        raise ValueError("not today")
    return "sent"


async def test_jobs_that_are_added_and_attempts_are_recorded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    transport = SqliteTransport(tmp_path / "jobs.db")
    queue = Queue("emails", provider=transport, hooks=[journal])
    async with queue, Worker("emails", handle, provider=transport, hooks=[journal]):
        welcome = await queue.add(
            "welcome",
            {"to": "ada"},
            job_id="w-1",
            attempts=5,
            priority=7,
            backoff=Fixed(2),
            metadata={"tenant": "acme"},
        )
        await queue.add("shaky", backoff=Fixed(0.01))
        await queue.add_many([("broken", None)])
        with pytest.raises(DuplicateJobError):
            await queue.add("broken", None, job_id=(await _failed(queue)).id)
        await _finished(queue)

    sent = {one.event_key: one for one in of_kind(SentRecord, journal.folder)}
    assert len(of_kind(SentRecord, journal.folder)) == 3, "a job that was refused is none"
    first = sent["welcome"]
    assert (first.way, first.subscriber, first.queue) == ("job", "emails", "emails")
    assert (first.id, first.metadata) == ("w-1", {"tenant": "acme"})
    assert msgspec.json.decode(first.data) == {"to": "ada"}
    assert first.created_at == round(welcome.created_at.timestamp() * 1000) * 1000
    assert first.options == {"job.maxAttempts": 5, "job.backoff": "fixed:2000", "priority": 7}

    ends = [
        (one.event_key, one.attempt, one.outcome, one.error_type, one.error)
        for one in of_kind(DeliveryRecord, journal.folder)
    ]
    assert sorted(ends) == [
        ("broken", 1, "dead-letter", "PermanentJobError", "no such address"),
        ("shaky", 1, "retry", "ValueError", "not today"),
        ("shaky", 2, "success", None, None),
        ("welcome", 1, "success", None, None),
    ]
    for one in of_kind(DeliveryRecord, journal.folder):
        assert (one.way, one.subscriber, one.transport) == ("job", "emails", transport.name)
        assert one.created_at == sent[one.event_key].created_at
        assert 0 <= one.wait_ms < 60_000
        assert one.worker


async def _failed(queue: Queue) -> Any:
    async def failed() -> list[Any]:
        return [one async for one in queue.dead_letters.browse()]

    return (await wait_for(failed))[0]


async def _finished(queue: Queue) -> None:
    async def idle() -> bool:
        stats = await queue.stats()
        return stats.waiting + stats.delayed + stats.active == 0

    await wait_for(idle)


async def test_a_delayed_job_has_not_waited_until_it_is_due(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    transport = MemoryTransport()
    queue = Queue("emails", provider=transport, hooks=[journal])
    async with queue, Worker(queue, handle, hooks=[journal]):
        await queue.add("welcome", delay=0.2)
        await _finished(queue)
    (sent,) = of_kind(SentRecord, tmp_path)
    (ran,) = of_kind(DeliveryRecord, tmp_path)
    assert sent.scheduled_for == sent.created_at + 200_000
    assert ran.wait_ms < 200 <= ran.since_created_ms


async def test_refused_jobs_are_recorded_as_not_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    queue = Queue("emails", provider=MemoryTransport(), hooks=[journal])
    async with queue, Worker(queue, {"welcome": handle}, hooks=[journal]):
        await queue.add("unknown", 1)
        await _failed(queue)
    (refused,) = of_kind(DeliveryRecord, tmp_path)
    assert (refused.outcome, refused.ran, refused.attempt) == ("dead-letter", False, 1)
    assert "no handler for jobs named 'unknown'" in (refused.reason or "")


async def test_recurring_jobs_and_chains_are_recorded_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    queue = Queue("emails", provider=MemoryTransport(), hooks=[journal])

    @queue.job
    async def fetch(page: int) -> int:
        return page

    @queue.job
    async def store(page: int) -> None: ...

    async with queue, Worker(queue, hooks=[journal]):
        handle = await chain(fetch.using(page=1), store.using(page=RESULT)).add()
        await queue.schedule("often", "fetch", {"page": 2}, every=3600)

        async def recorded() -> bool:
            await journal.flush()
            return len(of_kind(DeliveryRecord, tmp_path)) == 3

        await wait_for(recorded)
    sent = of_kind(SentRecord, tmp_path)
    assert Counter(one.event_key for one in sent) == {"fetch": 2, "store": 1}
    assert {one.id for one in sent} == {one.id for one in of_kind(DeliveryRecord, tmp_path)}
    assert handle.id in {one.id for one in sent}


@event("order.placed", description="An order was placed.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


async def test_one_journal_serves_an_application_queues_and_workers(tmp_path: Path) -> None:
    @subscriber(description="Adds a job.", idempotent="yes")
    async def mail(envelope: Envelope[OrderPlaced]) -> None:
        await queue.add("welcome", {"order": envelope.data.order_id})

    journal = Journal(tmp_path)
    queue = Queue("emails", provider=MemoryTransport(name="jobs"), hooks=[journal])
    app = Matador(
        MemoryTransport(),
        schema=Schema({OrderPlaced: [mail]}),
        consume_from=["events"],
        hooks=[journal],
    )
    async with app:
        async with queue, Worker(queue, handle, hooks=[journal]):
            await app.send(OrderPlaced("1"))
            await app.wait_idle(5)
            await _finished(queue)
        await app.send(OrderPlaced("2"))  # the journal is open until the last one leaves
        await app.wait_idle(5)
        await queue.shutdown()
    sent = Counter((one.way, one.event_key) for one in of_kind(SentRecord, tmp_path))
    assert sent == {("event", "order.placed"): 2, ("job", "welcome"): 2}
    ended = Counter((one.way, one.outcome) for one in of_kind(DeliveryRecord, tmp_path))
    assert ended == {("event", "success"): 2, ("job", "success"): 1}


async def test_a_journal_that_cannot_be_opened_is_opened_by_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.write_text("a file")
    journal = Journal(folder)
    first = Queue("first", provider=MemoryTransport(), hooks=[journal])
    second = Queue("second", provider=MemoryTransport(), hooks=[journal])
    async with first:
        folder.unlink()
        async with second:
            await second.add("welcome")
    assert [one.subscriber for one in of_kind(SentRecord, folder)] == ["second"]


@pytest.mark.parametrize(
    "make",
    [
        partial(Queue, "emails"),
        partial(Worker, "emails", handle),
        partial(RpcClient, "memory://", queue="q"),
        partial(RpcServer, "memory://", queue="q"),
        partial(Publisher, "memory://", exchange="e"),
        partial(Subscriber, "memory://", exchange="e", queue="q"),
    ],
)
def test_a_folder_is_not_a_journal(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"such as hooks=\[Journal\('journal/'\)\]"):
        make(hooks=["journal/"])


_WORKER = """
import asyncio, sys
from pathlib import Path
from matador.jobs import Queue, Worker
from matador.observe import Journal

async def main(folder):
    journal = Journal(folder / "journal", rotate_age=0.05)
    queue = Queue("numbers", provider=f"sqlite:///{folder / 'jobs.db'}", hooks=[journal])
    async def handle(job):
        print("ran", job.data, flush=True)
    async with queue, Worker(queue, handle, concurrency=4, hooks=[journal]):
        for n in range(1_000_000):
            await queue.add("count", n)
            if n % 20 == 19:
                await journal.flush()
                print("added", n, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_process_that_is_killed_loses_no_record_of_jobs_it_had_flushed(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(_WORKER)
    added, ran = -1, set[int]()
    with subprocess.Popen(
        [sys.executable, script, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            what, number = line.split()
            if what == "ran":
                ran.add(int(number))
            else:
                added = int(number)
            if added >= 200 and len(ran) >= 100:
                process.send_signal(signal.SIGKILL)
                break
    folder = tmp_path / "journal"
    recover(folder)
    numbers = [msgspec.json.decode(one.data) for one in of_kind(SentRecord, folder)]
    assert numbers == sorted(set(numbers))
    assert set(range(added + 1)) <= set(numbers)
    handled = Counter(one.id for one in of_kind(DeliveryRecord, folder))
    assert handled.keys() <= {one.id for one in of_kind(SentRecord, folder)}
    assert max(handled.values()) == 1
    assert all(one.way == "job" for one in of_kind(DeliveryRecord, folder))


_FORGETFUL = """
import asyncio, sys
from matador.jobs import Queue
from matador.observe import Journal

folder = sys.argv[1]
journal = Journal(f"{folder}/journal")
queue = Queue("emails", provider=f"sqlite:///{folder}/jobs.db", hooks=[journal])

async def add(n):
    await queue.add("welcome", n)

for n in range(3):
    asyncio.run(add(n))  # and nobody closes the queue
"""


def test_a_queue_that_nobody_closes_is_recorded_when_the_program_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORGETFUL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent = of_kind(SentRecord, tmp_path / "journal")
    # The queue ends with each loop, and the journal with it: each record has a segment of its own.
    assert sorted(msgspec.json.decode(one.data) for one in sent) == [0, 1, 2]
