"""Jobs in the lake: beside events in its tables and reports, added again, and redriven."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from tests.spark.journal_files import delivery, sent
from tests.spark.rows import ingest

from matador import Schema, event
from matador.errors import ConfigurationError
from matador.jobs import ActiveJob, Fixed, Job, PermanentJobError, Queue, Worker
from matador.loading import load_target
from matador.observe import Journal
from matador.observe.journal.records import REPLAY_ID, REPLAY_OF
from matador.spark.lake import Lake
from matador.testing import wait_for
from matador.transports import MemoryTransport

_SOURCE = """
from pathlib import Path
from matador.jobs import Queue
from matador.observe import Journal

FOLDER = Path({folder!r})
queue = Queue(
    "emails", provider=f"sqlite:///{{FOLDER / 'jobs.db'}}", hooks=[Journal(FOLDER / "journal")]
)
"""


@event("welcome", description="An event with the name of a job.")
@dataclass(frozen=True)
class Welcome:
    number: int


@dataclass(frozen=True)
class Office:
    """A queue of emails whose jobs have run, and a lake that knows of them."""

    folder: Path
    lake: Lake

    @property
    def reference(self) -> str:
        return f"{self.folder / 'emails_office.py'}:queue"

    @property
    def queue(self) -> Queue:
        return Queue(
            "emails",
            provider=f"sqlite:///{self.folder / 'jobs.db'}",
            hooks=[Journal(self.folder / "journal")],
        )

    def jobs(self, *states: str) -> list[Job[Any]]:
        async def look() -> list[Job[Any]]:
            async with self.queue as queue:
                found: Any = [await queue.list(one, 10_000) for one in states or ("waiting",)]  # pyright: ignore[reportArgumentType]
                return [job for some in found for job in some]

        return asyncio.run(look())

    def clear(self) -> None:
        async def remove() -> None:
            async with self.queue as queue:
                for job in await queue.list("waiting", 10_000):
                    await queue.remove(job.id)

        asyncio.run(remove())


async def handle(job: ActiveJob[Any]) -> None:
    if job.name == "bounce" and job.data["number"] % 5 == 0:
        raise PermanentJobError(f"nobody lives at number {job.data['number']}")


async def work(queue: Queue) -> None:
    async with queue:
        await queue.add_many([("welcome", {"number": n, "to": f"u{n}"}) for n in range(20)])
        await queue.add_many(
            [("bounce", {"number": n}) for n in range(10)],
            attempts=7,
            backoff=Fixed(3),
            metadata={"tenant": "acme"},
        )
        async with Worker(queue, handle):

            async def done() -> bool:
                stats = await queue.stats()
                return stats.waiting + stats.active == 0

            await wait_for(done, timeout=30)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Office:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "emails_office.py").write_text(_SOURCE.format(folder=str(folder)))
    office = Office(folder, Lake(folder / "lake", schema=Schema({Welcome: []}), spark=spark))
    asyncio.run(work(office.queue))
    result = office.lake.ingest(folder / "journal")
    assert (result.events, result.deliveries, result.quarantined) == (30, 30, 0)
    return office


@pytest.fixture
def office(made: Office) -> Office:
    made.clear()
    return made


def test_jobs_are_rows_with_their_name_and_queue(office: Office) -> None:
    lake = office.lake
    rows = lake.sql(
        "SELECT way, event_key, subscriber, outcome, count(*) AS n FROM deliveries "
        "WHERE replay_id IS NULL GROUP BY ALL ORDER BY event_key, outcome"
    ).collect()
    assert [tuple(row) for row in rows] == [
        ("job", "bounce", "emails", "dead-letter", 2),
        ("job", "bounce", "emails", "success", 8),
        ("job", "welcome", "emails", "success", 20),
    ]
    assert lake.events(Welcome).count() == 0, "a job is no event, whatever its name"
    row = lake.events().where("event_key = 'bounce'").first()
    assert row is not None
    assert row.options == {"job.maxAttempts": "7", "job.backoff": "fixed:3000"}


def test_a_report_shows_job_queues_beside_subscribers(office: Office, tmp_path: Path) -> None:
    report = office.lake.report()
    output = io.StringIO()
    report.show(Console(width=200, file=output))
    text = output.getvalue()
    assert "bounce (job)" in text
    assert "welcome (job)" in text
    page = report.html(tmp_path / "report.html").read_text()
    assert "emails<small>bounce (job)</small>" in page
    assert report.findings.reconciliation.adds_up
    found = {(one.way, one.event_key): one.count for one in report.findings.subscribers}
    assert found["job", "welcome"] == 20


def test_ids_are_unique_in_their_queues_only(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", spark=spark)
    job: dict[str, Any] = {"id": "7", "way": "job", "event": "sync"}
    of: dict[str, Any] = {"id": "7", "way": "job", "event_key": "sync"}
    ingest(
        lake,
        [
            sent(1, id="7"),
            sent(1, **job, subscriber="emails"),
            sent(1, **job, subscriber="texts"),
            sent(2, **job, subscriber="texts"),  # added again when the first was gone
            sent(2, **job, subscriber="texts"),
            delivery(1, id="7"),
            delivery(1, **of, subscriber="emails", outcome="dead-letter"),
            delivery(1, **of, subscriber="texts"),
            delivery(2, **of, subscriber="texts"),
        ],
    )
    assert lake.events().count() == 4
    assert lake.deliveries().count() == 4
    found = lake.reconcile()
    lines = {(one.way, one.subscriber): (one.sent, one.handled) for one in found.lines}
    assert lines == {
        ("event", "charge"): (1, 1),
        ("job", "emails"): (1, 0),
        ("job", "texts"): (2, 2),
    }
    assert found.adds_up
    assert [one.problem for one in found.odd] == []


def test_jobs_are_chosen_by_name_and_predicate(office: Office) -> None:
    lake, queue = office.lake, office.queue
    dry = lake.replay(queue, name="welcome", where="data.number >= 15", dry_run=True)
    assert [(one.event_key, one.subscriber, one.count) for one in dry.counts] == [
        ("welcome", "emails", 5)
    ]
    assert lake.replay(queue, where="data.to = 'u3'", dry_run=True).total == 1
    assert office.jobs() == []
    with pytest.raises(ConfigurationError, match="invalid predicate"):
        lake.replay(queue, where="data.nothing = 1", dry_run=True)
    wrongs: list[dict[str, Any]] = [{"event": "welcome"}, {"subscriber": "emails"}, {"to": "all"}]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match="is for events"):
            lake.replay(queue, **wrong, dry_run=True)


def test_jobs_are_added_again_once_and_marked_as_replays(office: Office) -> None:
    lake = office.lake
    seen: list[tuple[int, int]] = []
    where = "data.number % 5 != 0"  # those that have not failed
    options: dict[str, Any] = {"name": "bounce", "where": where, "replay_id": "again"}
    first = lake.replay(
        office.queue, **options, progress=lambda done, all_: seen.append((done, all_))
    )
    assert (first.sent, first.failed, seen[-1]) == (8, 0, (8, 8))
    originals = {row.id: row for row in lake.events().where("replay_id IS NULL").collect()}
    jobs = office.jobs()
    assert len(jobs) == 8
    for job in jobs:
        original = originals[job.metadata[REPLAY_OF]]
        assert (job.name, job.max_attempts) == ("bounce", 7)
        assert job.metadata[REPLAY_ID] == "again"
        assert job.metadata["tenant"] == "acme"
        assert job.id != original.id
        assert str(job.data["number"]) in original.data_json
    office.clear()  # as if they had run: a job that is gone is not added again
    assert lake.replay(office.queue, **options).resumed
    assert lake.replay(office.reference, replay_id="again").sent == 8
    assert office.jobs() == []
    with pytest.raises(ConfigurationError, match="was started with"):
        lake.replay(office.queue, name="welcome", replay_id="again")
    lake.ingest(office.folder / "journal")
    replayed = lake.events().where("replay_id = 'again'")
    assert replayed.count() == 8
    assert replayed.select("replay_of").distinct().count() == 8


def test_executors_add_jobs_of_a_queue_they_load(office: Office) -> None:
    assert load_target(office.reference).__class__ is Queue
    result = office.lake.replay(office.reference, name="welcome")
    assert (result.sent, len(office.jobs())) == (20, 20)


def test_a_job_that_needs_the_results_of_others_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake", spark=spark)
    ingest(
        lake,
        [
            sent(1, way="job", event="fetch", subscriber="pages"),
            sent(2, way="job", event="store", subscriber="pages", options={"job.into": "page"}),
            sent(3, way="job", event="fetch", subscriber="others"),
            sent(4, event="fetch", subscriber="pages"),
        ],
    )
    queue = Queue("pages", provider=f"sqlite:///{tmp_path / 'jobs.db'}")
    result = lake.replay(queue)
    assert [(one.event_key, one.count) for one in result.counts] == [("fetch", 1)]
    assert [(one.event_key, one.count) for one in result.ignored] == [("store", 1)]
    assert (result.sent, result.failed) == (1, 0)


def test_failed_jobs_are_redriven_by_their_signature(office: Office) -> None:
    lake = office.lake
    (group,) = lake.triage().collect()
    assert group.text == "nobody lives at number <n>"
    assert group.subscribers == ["emails"]
    dry = lake.redrive(office.queue, signature=group.signature, dry_run=True)
    assert (dry.chosen, dry.found, dry.moved) == (2, 2, 0)
    with pytest.raises(ConfigurationError, match="no dead letter has the signature"):
        lake.redrive(office.queue, signature="nothing", dry_run=True)
    failed = {job.id for job in office.jobs("failed")}
    done = lake.redrive(office.reference, signature=group.signature, name="bounce")
    assert (done.moved, done.held, done.failed, done.missing) == (2, 0, (), 0)
    assert [(one.event_key, one.subscriber, one.count) for one in done.counts] == [
        ("bounce", "emails", 2)
    ]
    assert {job.id for job in office.jobs()} == failed
    again = lake.redrive(office.queue, signature=group.signature)
    assert (again.found, again.missing) == (0, 0), "they wait, so they are not missing"
    office.clear()  # nobody has them any more
    gone = lake.redrive(office.queue, signature=group.signature, missing="replay")
    assert (gone.found, gone.missing) == (0, 2)
    assert gone.replayed is not None
    assert gone.replayed.sent == len(office.jobs()) == 2


def test_jobs_that_only_one_process_sees_are_refused(office: Office) -> None:
    for provider in (None, MemoryTransport()):
        with pytest.raises(ConfigurationError, match="inside each process"):
            office.lake.replay(Queue("emails", provider=provider), dry_run=True)


_KILLED = """
import sys
from matador.spark import Lake, spark_session
Lake(sys.argv[2], spark=spark_session("local[2]")).replay(
    sys.argv[1], name="welcome", rate=10, replay_id="killed"
)
"""


def _kill_session(session: int) -> bool:
    """Kill Spark's Python workers, which have process groups of their own: are there any?"""
    found = False
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and os.getsid(int(process.name)) == session:
                os.kill(int(process.name), signal.SIGKILL)
                found = True
    return found


def test_a_replay_of_jobs_that_was_killed_adds_each_once(office: Office) -> None:
    lake = office.lake
    program = subprocess.Popen(
        [sys.executable, "-c", _KILLED, office.reference, str(lake.path)], start_new_session=True
    )
    end = time.monotonic() + 120
    while not 3 <= len(office.jobs()) < 20:
        assert program.poll() is None
        assert time.monotonic() < end
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    while _kill_session(program.pid):
        assert time.monotonic() < end
    some = len(office.jobs())
    assert 3 <= some < 20
    office.clear()  # those have run meanwhile
    result = lake.replay(office.reference, name="welcome", replay_id="killed")
    assert (result.sent, result.resumed) == (20, True)
    assert len(office.jobs()) == 20 - some
