"""``--reload``: the worker runs the new code, finishes what it runs, and survives mistakes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Process, Start, dedent, wait

pytestmark = pytest.mark.slow  # it starts many processes

ORDER = '{"order_id": "1", "amount": 5}'

APP = dedent("""
    import asyncio
    from dataclasses import dataclass
    from pathlib import Path

    from matador import Envelope, Matador, Schema, Topology, event, subscriber

    import wording

    @event("order.placed", description="A customer placed an order.")
    @dataclass(frozen=True)
    class OrderPlaced:
        order_id: str
        amount: int

    @subscriber(description="Note it.", idempotent="yes")
    async def note(envelope: Envelope[OrderPlaced]) -> None:
        Path("began").touch()
        while Path("hold").exists():
            await asyncio.sleep(0.01)
        with Path("notes.txt").open("a") as file:
            file.write(wording.TEXT + "\\n")

    app = Matador(
        "sqlite:///reload.db", schema=Schema({OrderPlaced: [note]}),
        topology=Topology("reload", queues=["events"]), consume_from=["events"],
    )
""")
JOBS = dedent("""
    from matador.jobs import Queue, Worker

    import wording

    queue = Queue("emails", provider="sqlite:///jobs.db")

    @queue.job
    async def note() -> str:
        return wording.TEXT

    worker = Worker(queue)
    print("this is", wording.TEXT)
""")


@pytest.fixture
def project(folder: Path) -> Path:
    (folder / "reloaded.py").write_text(APP)
    (folder / "jobs.py").write_text(JOBS)
    (folder / "wording.py").write_text('TEXT = "one"\n')
    return folder


def notes(folder: Path) -> list[str]:
    path = folder / "notes.txt"
    return path.read_text().split() if path.exists() else []


def noted(folder: Path, *expected: str) -> None:
    wait(lambda: notes(folder) == list(expected), lambda: f"{expected}, got {notes(folder)}")


def change(folder: Path, text: str, file: str = "wording.py") -> None:
    """Write a file at another time than before, whatever the file system's clock does."""
    path = folder / file
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    if path.stat().st_mtime_ns == before:
        os.utime(path, ns=(before + 10**9, before + 10**9))


def send(cli: Cli) -> None:
    assert cli("send", "reloaded.py", "order.placed", ORDER).code == 0


def stop(process: Process) -> None:
    process.signal(signal.SIGINT)
    assert process.ends() == 0, process.err


def test_new_code_runs_after_what_was_running_has_finished(
    cli: Cli, start: Start, project: Path
) -> None:
    worker = start("worker", "reloaded.py", "--reload", "--json")
    worker.says('"started"')
    (project / "hold").touch()
    send(cli)
    wait((project / "began").exists, lambda: "the callback to begin")
    change(project, 'TEXT = "two"\n')
    worker.says("wording.py changed: restarting")
    assert notes(project) == []
    (project / "hold").unlink()
    noted(project, "one")
    worker.says('"started"', times=2)
    send(cli)
    noted(project, "one", "two")
    stop(worker)
    assert worker.out.count('"stopped"') == 2


def test_a_file_that_cannot_be_parsed_stops_nothing(cli: Cli, start: Start, project: Path) -> None:
    worker = start("worker", "reloaded.py", "--reload", "--json")
    worker.says('"started"')
    send(cli)
    noted(project, "one")
    change(project, 'TEXT = "two\n')
    worker.says("wording.py:1: unterminated string literal")
    send(cli)  # this process has imported the module before
    noted(project, "one", "one")
    change(project, 'TEXT = "three"\n')
    worker.says('"started"', times=2)
    send(cli)
    noted(project, "one", "one", "three")
    stop(worker)


def test_a_worker_that_fails_at_startup_waits_for_the_next_change(
    start: Start, project: Path
) -> None:
    change(project, "raise RuntimeError('not today')\n")
    worker = start("worker", "reloaded.py", "--reload", "--json")
    worker.says("RuntimeError: not today")
    worker.says("has ended with code 1; it is started again after the next change")
    change(project, 'TEXT = "two"\n')
    worker.says('"started"')
    stop(worker)


def test_jobs_and_several_processes(start: Start, project: Path) -> None:
    worker = start("worker", "jobs.py:worker", "--reload", "--processes", "2")
    worker.says("this is one", times=3)  # the supervisor loads it, too
    change(project, 'TEXT = "two"\n')
    worker.says("this is two", times=3)
    stop(worker)


def test_the_worker_ends_with_the_one_who_watches(start: Start, project: Path) -> None:
    worker = start("worker", "reloaded.py", "--reload", "--json", "--verbose")
    worker.says('"started"')
    worker.signal(signal.SIGKILL)
    worker.ends()
    worker.says('"stopped"')


def test_files_of_other_people_are_not_watched(project: Path) -> None:
    from matador.cli.reload import _difference, _files

    for name in (".hidden", "__pycache__", "environment/lib", "node_modules"):
        (project / name).mkdir(parents=True)
        (project / name / "other.py").touch()
    (project / "environment" / "pyvenv.cfg").touch()
    (project / "inner").mkdir()
    (project / "inner" / "mine.py").touch()
    (project / "text.txt").touch()
    (project / "broken.py").symlink_to("nowhere")
    before = dict(_files([project]))
    assert {path.name for path in before} == {
        "mine.py", "shop.py", "reloaded.py", "jobs.py", "wording.py"
    }  # fmt: skip
    (project / "inner" / "mine.py").unlink()
    change(project, "new = 1\n", "new.py")
    named = [path.name for path in _difference(before, dict(_files([project])))]
    assert named == ["mine.py", "new.py"]
