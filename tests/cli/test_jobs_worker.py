"""``matador worker`` with jobs: real processes, real signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Start, dedent, wait
from tests.cli.test_jobs import PROVIDER

JOBS = dedent('''
    """Jobs that leave a line in a file."""

    import asyncio
    from pathlib import Path

    from matador.jobs import ActiveJob, PermanentJobError, Queue, Worker

    print("the module of the jobs was imported")


    async def handle(job: ActiveJob) -> None:
        if job.name == "bad":
            raise PermanentJobError("no such address")
        if job.name == "endless":
            print("for ever", flush=True)
            await asyncio.Event().wait()
        with Path("done.txt").open("a") as file:
            file.write(f"{job.data}\\\\n")


    def compute(job: ActiveJob) -> None:
        with Path("done.txt").open("a") as file:
            file.write(f"{job.data}\\\\n")


    queue = Queue("emails", provider="sqlite:///jobs.db?lease=1")
    worker = Worker("emails", handle, provider="sqlite:///jobs.db?lease=1")
    computing = Worker("emails", compute, provider="sqlite:///jobs.db", executor="process")


    def make() -> Worker:
        return worker
''').replace("\\\\n", "\\n")


@pytest.fixture(autouse=True)
def jobs_file(folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)


def _add(cli: Cli, name: str, data: object = None) -> None:
    assert cli("jobs", "add", "emails", name, json.dumps(data), *PROVIDER).code == 0


def _done(folder: Path) -> list[str]:
    file = folder / "done.txt"
    return sorted(file.read_text().split()) if file.exists() else []


@pytest.mark.parametrize("reference", ["jobs.py:queue,worker", "jobs:worker", "jobs.py:make"])
def test_a_worker_runs_jobs_and_ends_with_zero(
    start: Start, cli: Cli, folder: Path, reference: str
) -> None:
    _add(cli, "welcome", 1)
    _add(cli, "bad")
    worker = start("worker", reference)
    wait(lambda: _done(folder) == ["1"], lambda: f"a job; {worker.err}")
    worker.says("no such address")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    assert worker.out == "", "what the module prints goes to stderr"
    assert "emails: 1 handled, 1 failed, 1 dead letter" in worker.err
    (failed,) = cli("jobs", "list", "emails", *PROVIDER, "--status", "failed", "--json").json[
        "jobs"
    ]
    assert failed["error"] == "no such address"


def test_json_lines_and_concurrency(start: Start, cli: Cli, folder: Path) -> None:
    _add(cli, "welcome", 1)
    worker = start("worker", "jobs.py:worker", "--json", "--concurrency", "3")
    wait(lambda: _done(folder) == ["1"], lambda: f"a job; {worker.err}")
    worker.signal(signal.SIGINT)
    assert worker.ends() == 0, worker.err
    assert "with concurrency 3" in worker.err
    lines = [json.loads(line) for line in worker.out.splitlines()]
    assert [line["type"] for line in lines] == ["started", "counts", "stopped"]
    assert lines[0]["queues"] == ["emails"]
    assert lines[1]["queues"]["emails"] == {"handled": 1, "failed": 0, "dead_letters": 0}


def test_a_second_signal_gives_running_jobs_back(start: Start, cli: Cli) -> None:
    _add(cli, "endless")
    worker = start("worker", "jobs.py:worker")
    worker.says("for ever")
    worker.signal(signal.SIGTERM)
    worker.says("shutting down, once running callbacks have finished")
    worker.signal(signal.SIGTERM)
    worker.ends(20)
    assert "again: shutting down at once" in worker.err
    assert cli("jobs", "stats", "emails", *PROVIDER, "--json").json["waiting"] == 1


def test_several_processes_share_the_jobs(start: Start, cli: Cli, folder: Path) -> None:
    worker = start("worker", "jobs.py:worker", "--processes", "2", "--concurrency", "2")
    worker.says("[1] ")
    worker.says("with concurrency 2", times=2)
    for number in range(10):
        _add(cli, "welcome", number)
    wait(lambda: len(_done(folder)) == 10, lambda: f"ten jobs; {worker.err}")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    assert _done(folder) == sorted(map(str, range(10)))


def test_handlers_in_processes_of_their_own_are_found(start: Start, cli: Cli, folder: Path) -> None:
    _add(cli, "welcome", 1)
    worker = start("worker", "jobs.py:computing")
    wait(lambda: _done(folder) == ["1"], lambda: f"a job; {worker.err}")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["jobs.py:queue"], "[Worker:emails] has no handler"),
        (["jobs.py:wrker"], "jobs.py has no attribute 'wrker'; did you mean 'worker'?"),
        (["jobs.py:handle"], "jobs.py:handle is async; a factory must not be"),
        (["jobs.py", "--queues", "emails"], "there is no application"),
        (["empty.py"], "it has no application, job queue, worker, RPC server, subscriber or"),
        (["memory.py"], "no other process could send to this worker: give a URL such as"),
        (["adds.py"], "adds.py has nothing to run: queue declares no jobs"),
        (["nowhere"], "there is no module 'nowhere'"),
        (["jobs.py", "--processes", "0"], "--processes"),
        (["jobs.py", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_wrong_usage(cli: Cli, folder: Path, arguments: list[str], says: str) -> None:
    (folder / "empty.py").write_text("")
    text = "from matador.jobs import Queue\nqueue = Queue('emails'{})\n"
    (folder / "adds.py").write_text(text.format(", provider='sqlite:///jobs.db'"))
    (folder / "memory.py").write_text(text.format("") + "@queue.job()\ndef welcome(): ...\n")
    result = cli("worker", *arguments)
    assert result.code == 2
    assert says in result.err


def test_what_keeps_it_from_starting_is_one_line(cli: Cli, folder: Path) -> None:
    (folder / "jobs.db").write_text("this is not a database, and never was one")
    result = cli("worker", "jobs.py:worker")
    assert result.code == 1
    assert "jobs.db is not an SQLite database" in result.err
    assert "Traceback" not in result.err
