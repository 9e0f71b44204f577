"""``app.run()`` as a process of its own, ended by real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.events.worker_program import OrderPlaced

from matador import Matador, Schema, SubscriberStub, Topology
from matador.model.message import QueueDepth
from matador.runtime.process import _threads_are_stuck
from matador.transports.sqlite import SqliteTransport

PROGRAM = Path(__file__).with_name("worker_program.py")


def producer(file: Path) -> Matador:
    stub = SubscriberStub("handle", description="Runs in the worker.")
    return Matador(
        f"sqlite:///{file}",
        schema=Schema({OrderPlaced: [stub]}),
        topology=Topology("shop", queues=["events"]),
    )


async def depth(file: Path) -> QueueDepth:
    async with producer(file) as app:
        assert isinstance(app.transport, SqliteTransport)
        return await app.transport.depth("shop.events")


class Worker:
    """A running worker process; reads what it prints line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.strip() == text:
                return
        raise AssertionError(f"{text!r} never came: {self.lines}, {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self, timeout: float = 15.0) -> int:
        out, _ = self.process.communicate(timeout=timeout)
        self.lines += out.split()
        return self.process.returncode


@contextmanager
def worker(file: Path, kind: str) -> Generator[Worker]:
    command = [sys.executable, str(PROGRAM), str(file), kind]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        started = Worker(process)
        started.read_until("ready")
        yield started
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["brief", "brief_sync"])
async def test_a_signal_lets_running_callbacks_finish(
    number: signal.Signals, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "shop.db"
    with worker(file, kind) as started:
        async with producer(file) as app:
            await app.send(OrderPlaced("o-1"))
        started.read_until("running")
        started.process.send_signal(number)
        assert started.end() == 0
        assert started.lines == ["ready", "running", "finished", "stopped"]
    assert (await depth(file)).total == 0


async def test_an_idle_worker_ends_at_once(tmp_path: Path) -> None:
    with worker(tmp_path / "shop.db", "brief") as started:
        began = time.monotonic()
        started.process.terminate()
        assert started.end() == 0
        assert time.monotonic() - began < 20, "not the 30 s of a shutdown"


async def test_a_second_signal_gives_an_async_callback_back(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with worker(file, "endless") as started:
        async with producer(file) as app:
            await app.send(OrderPlaced("o-1"))
        started.read_until("running")
        started.process.terminate()
        assert still_running(started)
        started.process.terminate()
        assert started.end() == 0
    found = await depth(file)
    assert (found.ready, found.in_flight) == (1, 0), "given back, ready for another worker"


async def test_a_second_signal_leaves_a_stuck_thread_behind(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with worker(file, "endless_sync") as started:
        async with producer(file) as app:
            await app.send(OrderPlaced("o-1"))
        started.read_until("running")
        started.process.terminate()
        assert still_running(started)
        started.process.terminate()
        assert started.end() == 1
    found = await depth(file)
    assert found.total == 1, "not acknowledged: another worker gets it when its lease is over"


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such" / "folder" / "shop.db"
    run = subprocess.run(
        [sys.executable, str(PROGRAM), str(missing), "brief"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert run.returncode == 1
    assert "ConnectionFailedError" in run.stderr


def still_running(started: Worker) -> bool:
    """Has it not ended a moment after the signal?"""
    try:
        started.process.wait(0.5)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_a_thread_that_is_about_to_end_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()

    class Thread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            ending.set()  # not earlier, and however slow the machine is, it ends
            super().join()

    thread = Thread(target=ending.wait, name="matador-callback_0")
    thread.start()
    monkeypatch.setattr(threading, "enumerate", lambda: [thread])  # not those of other tests
    assert not _threads_are_stuck()


def test_a_thread_that_does_not_end_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()
    thread = threading.Thread(target=ending.wait, name="matador-callback_0")
    thread.start()
    monkeypatch.setattr(threading, "enumerate", lambda: [thread])
    assert _threads_are_stuck()
    ending.set()
    thread.join()
