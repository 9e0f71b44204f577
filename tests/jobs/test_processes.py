"""Handlers in processes: results, errors, crashes, timeouts, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.jobs import busy

from matador.errors import ConfigurationError
from matador.jobs import ActiveJob, Fixed, JobCompleted, JobFailed, Queue, Worker
from matador.testing import wait_for

pytestmark = pytest.mark.asyncio
PATIENCE = 60.0


class Running:
    """A worker with processes, and what it told."""

    def __init__(self, worker: Worker, queue: Queue) -> None:
        self.worker = worker
        self.queue = queue
        self.told: list[Any] = []
        for event in ("completed", "failed", "progress"):
            worker.on(event, self.told.append)

    async def outcome(self, data: Any, **options: Any) -> Any:
        """What came of a job with these data in the end."""
        job = await self.queue.add("any", data, backoff=Fixed(0.01), **options)

        def found() -> Any:
            for event in self.told:
                if event.job_id == job.id and (
                    isinstance(event, JobCompleted)
                    or (isinstance(event, JobFailed) and not event.will_retry)
                ):
                    return event
            return None

        return await wait_for(found, timeout=PATIENCE)


@pytest_asyncio.fixture
async def running() -> AsyncIterator[Running]:
    queue = Queue("processes")
    worker = Worker(queue, busy.handle, executor="process", concurrency=2)
    async with worker:
        yield Running(worker, queue)


async def test_a_handler_runs_in_another_process_which_is_used_again(running: Running) -> None:
    first = await running.outcome("pid")
    second = await running.outcome("pid")
    assert first.result == second.result != os.getpid()


async def test_progress_and_errors_come_over(running: Running) -> None:
    await running.outcome("progress")
    assert [event.progress for event in running.told if hasattr(event, "progress")] == [50]
    failed = await running.outcome("raise", attempts=1)
    assert (failed.error_type, str(failed.error)) == ("ValueError", "bad input")
    odd = await running.outcome("odd", attempts=1)
    assert (odd.error_type, str(odd.error)) == ("JobProcessError", "_OddError: a and b")
    never = await running.outcome("never", attempts=5)
    assert (never.permanent, never.attempts) == (True, 1)
    unwritable = await running.outcome("unwritable", attempts=1)
    assert "cannot be written as JSON" in str(unwritable.error)


async def test_a_process_that_dies_is_a_failed_attempt(running: Running) -> None:
    done = await running.outcome("die", attempts=3)
    assert done.result == 1
    died = next(event for event in running.told if isinstance(event, JobFailed))
    assert "was killed by SIGKILL" in str(died.error)
    ended = await running.outcome("exit", attempts=1)
    assert "ended with exit code 7" in str(ended.error)
    assert (await running.outcome("pid")).result != os.getpid()


async def test_a_process_that_dies_with_nothing_to_do_costs_no_attempt(running: Running) -> None:
    first = (await running.outcome("pid")).result
    os.kill(first, signal.SIGKILL)
    await wait_for(lambda: _has_ended(first))
    second = await running.outcome("pid", attempts=1)
    assert isinstance(second, JobCompleted)
    assert second.result != first


def _has_ended(pid: int) -> bool:
    """With all its threads; whoever waits for it still learns of it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@pytest.mark.parametrize("half", [None, "\0\0\0\7abc"])
async def test_a_job_that_takes_too_long_is_ended_with_its_process(
    tmp_path: Path, half: str | None
) -> None:
    path = str(tmp_path / "pid")
    data = {"hang": path} if half is None else {"stop after": half, "path": path}
    for limit in (3, 30):  # on a busy machine, a process may need the first of them to start
        queue, told = Queue("slow"), list[Any]()
        worker = Worker(queue, busy.handle, executor="process", timeout=limit)
        worker.on("failed", told.append)
        async with worker:
            await queue.add("any", data, attempts=1)
            await wait_for(lambda: told, timeout=PATIENCE)  # noqa: B023
        assert told[0].error_type == "JobTimeoutError"
        if (tmp_path / "pid").exists():
            break
    pid = int((tmp_path / "pid").read_text())
    await wait_for(lambda: not Path(f"/proc/{pid}").exists(), timeout=PATIENCE)


def _is_written(file: Path) -> bool:
    return file.exists() and bool(file.read_text())


async def test_closing_ends_what_runs_and_gives_it_back(tmp_path: Path) -> None:
    queue = Queue("closing")
    worker = Worker(queue, busy.handle, executor="process")
    await worker.start()
    await queue.add("any", {"hang": str(tmp_path / "pid")}, attempts=1)
    await wait_for(lambda: _is_written(tmp_path / "pid"), timeout=PATIENCE)
    await worker.close(finish_active=False)
    pid = int((tmp_path / "pid").read_text())
    await wait_for(lambda: not Path(f"/proc/{pid}").exists(), timeout=PATIENCE)
    assert (await queue.stats()).waiting == 1


@pytest.mark.parametrize("half", ["", "\0", "\0\0\0\7", "\0\0\0\7abc"])
async def test_a_process_that_stops_in_the_middle_of_its_answer_stops_nobody_else(
    tmp_path: Path, half: str
) -> None:
    queue = Queue("stopped")
    worker = Worker(queue, busy.handle, executor="process", concurrency=2)
    await worker.start()
    file = tmp_path / "pid"
    await queue.add("any", {"stop after": half, "path": str(file)}, attempts=1)
    await wait_for(lambda: _is_written(file), timeout=PATIENCE)
    assert (await Running(worker, queue).outcome("pid")).result != int(file.read_text())
    await worker.close(finish_active=False)
    await wait_for(lambda: not Path(f"/proc/{file.read_text()}").exists(), timeout=PATIENCE)
    assert (await queue.stats()).waiting == 1


async def test_a_process_that_takes_no_job_stops_nobody_else() -> None:
    queue = Queue("deaf")
    worker = Worker(queue, busy.handle, executor="process", concurrency=2)
    async with worker:
        running = Running(worker, queue)
        first = (await running.outcome("pid")).result
        os.kill(first, signal.SIGSTOP)
        large = await queue.add("any", "x" * 10_000_000, attempts=1)
        await wait_for(lambda: worker.active_jobs == 1)
        assert (await running.outcome("pid")).result != first
        os.kill(first, signal.SIGCONT)
        await wait_for(lambda: any(event.job_id == large.id for event in running.told))


async def test_async_handlers_and_declared_jobs() -> None:
    queue, told = Queue("async"), list[Any]()
    worker = Worker(queue, busy.handle_async, executor="process", concurrency=1)
    worker.on("completed", told.append)
    async with worker:
        await queue.add("any", 1)
        await wait_for(lambda: told, timeout=PATIENCE)
    assert told[0].result != os.getpid()
    async with Worker(busy.queue, executor="process"):
        handle = await busy.square.add(number=12)
        assert await handle.result(timeout=PATIENCE) == 144


async def test_a_function_that_no_other_process_can_find_is_refused() -> None:
    def inside(job: ActiveJob[Any]) -> None: ...

    class Mailer:
        def handle(self, job: ActiveJob[Any]) -> None: ...

    Mailer.handle.__qualname__ = "Mailer.handle"
    for handler in (inside, Mailer().handle):
        with pytest.raises(ConfigurationError, match="needs a function of a module"):
            Worker("any", handler, executor="process")


async def test_two_run_at_once(running: Running) -> None:
    first, second = await asyncio.gather(running.outcome("pid"), running.outcome("pid"))
    assert os.getpid() not in (first.result, second.result)


async def test_parameters_are_filled_by_their_types_there_too() -> None:
    async with Queue("processes") as queue, Worker(queue, busy.shout, executor="process"):
        job = await queue.add("any", {"to": "ada"})
        assert await queue.handle(job.id).result(timeout=PATIENCE) == "ada 1"
