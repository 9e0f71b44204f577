"""Jobs of a lake in the terminal: ingested without an application, added again and redriven."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),  # Spark takes long to start where much else runs
]

LAKE = ("--lake", "lake/")
JOBS = '''
"""Emails, of which one cannot be sent."""

import asyncio

from matador.jobs import PermanentJobError, Queue, Worker
from matador.observe import Journal

queue = Queue("emails", provider="sqlite:///jobs.db", hooks=[Journal("journal/")])
memory = Queue("notes")


@queue.job
async def welcome(to: str) -> None:
    if to == "user7":
        raise PermanentJobError("no mailbox")


async def main() -> None:
    drained = asyncio.Event()
    worker = Worker(queue)
    worker.once("drained", lambda _: drained.set())
    async with queue:
        for number in range(10):
            await welcome.add(to=f"user{number}")
        async with worker:
            await drained.wait()


if __name__ == "__main__":
    asyncio.run(main())
'''


@pytest.fixture
def jobs(folder: Path) -> Path:
    """A folder with a queue whose jobs have run."""
    (folder / "jobs.py").write_text(JOBS)
    subprocess.run([sys.executable, "jobs.py"], cwd=folder, check=True, timeout=100)
    return folder


def waiting(cli: Cli) -> int:
    shown = cli("jobs", "stats", "emails", "--provider", "sqlite:///jobs.db", "--json")
    return int(shown.json["waiting"])


def test_jobs_are_ingested_reported_replayed_and_redriven(jobs: Path, cli: Cli) -> None:
    done = cli("lake", "ingest", "--journal", "journal/", *LAKE, "--json")
    assert done.code == 0, done.err
    assert (done.json["events"], done.json["deliveries"], done.json["quarantined"]) == (10, 10, 0)
    asked = cli("lake", "query", *LAKE, "SELECT DISTINCT way, subscriber FROM events", "--json")
    assert asked.json["rows"] == [{"way": "job", "subscriber": "emails"}]
    assert "welcome (job)" in cli("lake", "report", *LAKE).out

    replay = ("lake", "replay", "jobs.py:queue", *LAKE, "--where", "data.to < 'user5'")
    dry = cli(*replay, "--dry-run")
    assert dry.out.split() == ["job", "queue", "jobs", "welcome", "emails", "5"]
    assert "5 jobs would be added" in dry.err
    assert waiting(cli) == 0
    sent = cli(*replay, "--yes", "--replay-id", "again")
    assert (sent.code, sent.out.strip()) == (0, "5 jobs added")
    assert cli(*replay, "--yes", "--replay-id", "again").code == 0
    assert waiting(cli) == 5

    redriven = cli("lake", "redrive", "jobs.py:queue", *LAKE, "--name", "welcome", "--yes")
    assert (redriven.code, redriven.out.strip()) == (0, "1 failed job redriven")
    assert waiting(cli) == 6


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("replay", "jobs.py:queue", "--event", "welcome"), "--event is for events"),
        (("replay", "jobs.py:queue", "--all", "--to", "all"), "--to is for events"),
        (("redrive", "jobs.py:queue", "--subscriber", "emails"), "--subscriber is for events"),
        (("replay", "shop.py", "--name", "welcome"), "--name is for the jobs of a queue"),
        (("replay", "jobs.py:queue"), "choose what to replay"),
        (("replay", "jobs.py:memory", "--all"), "inside each process"),
        (("replay", "jobs.py", "--all"), "has no attribute 'app'; it has jobs.py:queue"),
        (("replay", "jobs.py:welcome", "--all"), "not a Matador application or job queue"),
    ],
)
def test_wrong_usage_is_said_before_spark_starts(
    folder: Path, cli: Cli, arguments: tuple[str, ...], problem: str
) -> None:
    (folder / "jobs.py").write_text(JOBS)
    (folder / "jobs.db").touch()
    (folder / "lake" / "events").mkdir(parents=True)
    failed = cli("lake", *arguments, *LAKE)
    assert failed.code == 2, failed.err
    assert problem in failed.err.replace("\n", " ")
