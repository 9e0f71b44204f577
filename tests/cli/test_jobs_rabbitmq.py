"""``matador jobs`` on a provider that stores messages only: what works, and honest refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli, Start
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw

from matador.jobs.provider import job_topology

WORKER = """
from matador.jobs import ActiveJob, PermanentJobError, Worker

async def handle(job: ActiveJob) -> None:
    raise PermanentJobError("no such address")

worker = Worker({queue!r}, handle, provider={url!r})
"""


@pytest.fixture
def queue() -> Iterator[str]:
    """The name of a queue that no other test uses."""
    name = f"c{uuid4().hex[:10]}"
    yield name
    with Raw(broker_url("rabbitmq")) as raw:
        raw.delete([job_topology(name)])


@pytest.fixture
def provider() -> list[str]:
    return ["--provider", broker_url("rabbitmq")]


def test_jobs_are_added_counted_listed_when_they_failed_and_retried(
    cli: Cli, start: Start, folder: Path, queue: str, provider: list[str]
) -> None:
    assert cli("jobs", "add", queue, "welcome", "1", "--id", "j1", *provider).code == 0
    numbers = cli("jobs", "stats", queue, *provider, "--json").json
    assert (numbers["waiting"], numbers["failed"]) == (1, 0)
    assert numbers["completed"] is None, "completed jobs are gone"
    assert cli("jobs", "stats", queue, *provider).out.splitlines()[1].split()[4] == "–"
    (folder / "jobs.py").write_text(WORKER.format(queue=queue, url=broker_url("rabbitmq")))
    worker = start("worker", "jobs.py:worker")
    worker.says("no such address")
    worker.process.terminate()
    assert worker.ends() == 0, worker.err
    (job,) = cli("jobs", "list", queue, *provider, "--status", "failed", "--json").json["jobs"]
    assert (job["id"], job["name"], job["data"]) == ("j1", "welcome", 1)
    assert cli("jobs", "retry", queue, *provider, "--id", "j1").out == "1 job retried\n"
    assert cli("jobs", "stats", queue, *provider, "--json").json["waiting"] == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["list"], "cannot list jobs that are waiting"),
        (["show", "--id", "j1"], "cannot find a job by its id"),
        (["remove", "--id", "j1", "--id", "j2"], "cannot remove a job by its id"),
        (["pause"], "cannot pause a queue"),
        (["resume"], "cannot pause a queue"),
        (["schedules"], "cannot keep recurring jobs"),
    ],
    ids=["list", "show", "remove", "pause", "resume", "schedules"],
)
def test_what_the_provider_lacks_is_said_in_one_line(
    cli: Cli, queue: str, provider: list[str], command: list[str], says: str
) -> None:
    assert cli("jobs", "add", queue, "welcome", "--id", "j1", *provider).code == 0
    result = cli("jobs", command[0], queue, *provider, *command[1:])
    assert result.code == 1
    assert says in result.err
    assert result.err.count("\n") == 1


def test_looking_at_a_queue_does_not_create_it(cli: Cli, queue: str, provider: list[str]) -> None:
    for _ in range(2):
        result = cli("jobs", "stats", queue, *provider)
        assert result.code == 1
        assert f"rabbitmq has no job queue {queue!r}" in result.err


def test_a_wrong_server_behind_an_address_is_named(cli: Cli) -> None:
    url = broker_url("redis").replace("redis", "amqp")
    result = cli("jobs", "stats", "emails", "--provider", url)
    assert result.code == 1
    assert "is Redis, not rabbitmq" in result.err
