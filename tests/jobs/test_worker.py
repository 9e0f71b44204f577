"""Workers: what they run, what they tell, how they stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest
import pytest_asyncio

from matador.errors import ConfigurationError, NotConnectedError
from matador.jobs import (
    ActiveJob,
    Fixed,
    JobProvider,
    Queue,
    QueueErrored,
    Worker,
)
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue("work", default_options={"backoff": Fixed(0.01)}) as found:
        yield found


class Told:
    """What a worker told, in order."""

    NAMES = ("active", "completed", "failed", "retrying", "progress", "shutting_down")
    MORE = ("shutdown_timeout", "error", "drained", "paused", "resumed")

    def __init__(self, worker: Worker) -> None:
        self.all: list[tuple[str, Any]] = []
        for name in (*self.NAMES, *self.MORE):
            worker.on(name, self._hear(name))

    def _hear(self, name: str) -> Callable[[Any], None]:
        return lambda event: self.all.append((name, event))

    def names(self) -> list[str]:
        return [name for name, _ in self.all]

    def of(self, name: str) -> list[Any]:
        return [event for one, event in self.all if one == name]


# -- handlers --------------------------------------------------------------------------------------


@dataclass
class AsDataclass:
    to: str


class AsStruct(msgspec.Struct):
    to: str


@attrs.define
class AsAttrs:
    to: str


class AsModel(pydantic.BaseModel):
    to: str


class AsTypedDict(TypedDict):
    to: str


async def of_dataclass(job: ActiveJob[AsDataclass]) -> str:
    return job.data.to


async def of_struct(job: ActiveJob[AsStruct]) -> str:
    return job.data.to


async def of_attrs(job: ActiveJob[AsAttrs]) -> str:
    return job.data.to


async def of_model(job: ActiveJob[AsModel]) -> AsModel:
    return job.data


async def of_typed_dict(job: ActiveJob[AsTypedDict]) -> str:
    return job.data["to"]


@pytest.mark.parametrize(
    ("handler", "data"),
    [
        (of_dataclass, AsDataclass("ada")),
        (of_struct, AsStruct("ada")),
        (of_attrs, AsAttrs("ada")),
        (of_model, AsModel(to="ada")),
        (of_typed_dict, {"to": "ada"}),
    ],
)
async def test_data_of_all_five_kinds(queue: Queue, handler: Any, data: Any) -> None:
    job = await queue.add("any", data, remove_on_complete=False)
    wrong = await queue.add("any", {"to": ["not", "text"]}, attempts=3)
    worker = Worker(queue, handler)
    told = Told(worker)
    async with worker:
        await wait_for(lambda: len(told.of("completed")) == len(told.of("failed")) == 1)
    done = await queue.get(job.id)
    assert done is not None
    assert done.result in ("ada", {"to": "ada"})
    (failed,) = told.of("failed")
    assert (failed.job_id, failed.will_retry) == (wrong.id, False)


async def test_a_sync_handler_runs_in_a_thread_and_can_report_progress(queue: Queue) -> None:
    threads: list[str] = []

    def handle(job: ActiveJob[Any]) -> None:
        threads.append(threading.current_thread().name)
        job.update_progress({"done": 1})

    worker = Worker(queue, handle)
    told = Told(worker)
    async with worker:
        await queue.add("any")
        await wait_for(lambda: told.of("completed"))
    assert threads != [threading.main_thread().name]
    assert [event.progress for event in told.of("progress")] == [{"done": 1}]


async def test_an_async_handler_can_run_in_a_thread(queue: Queue) -> None:
    threads: list[str] = []

    async def handle(job: ActiveJob[Any]) -> str:
        threads.append(threading.current_thread().name)
        await job.update_progress(1)
        return "done"

    worker = Worker(queue, handle, executor="thread")
    told = Told(worker)
    async with worker:
        await queue.add("any")
        await wait_for(lambda: told.of("completed"))
    assert threads != [threading.main_thread().name]
    assert told.of("completed")[0].result == "done"


async def test_handlers_by_the_name_of_the_job(queue: Queue) -> None:
    seen: list[str] = []

    async def one(job: ActiveJob[Any]) -> None:
        seen.append("one")

    async def two(job: ActiveJob[Any]) -> None:
        seen.append("two")

    worker = Worker(queue, {"one": one, "two": two})
    told = Told(worker)
    async with worker:
        await queue.add_many([("two", 1), ("one", 2), ("three", 3)])
        await wait_for(lambda: len(seen) == 2 and told.of("failed"))
    assert sorted(seen) == ["one", "two"]
    (failed,) = told.of("failed")
    assert "no handler for jobs named 'three' (there are: one, two)" in str(failed.error)
    assert failed.will_retry is False


# -- events ----------------------------------------------------------------------------------------


async def test_what_is_told_of_a_job_that_fails_once(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> str:
        if job.attempts == 0:
            raise ValueError("not yet")
        return "now"

    worker = Worker(queue, handle)
    told = Told(worker)
    async with worker:
        job = await queue.add("any", 1, metadata={"tenant": "t"})
        await wait_for(lambda: "drained" in told.names() and told.of("completed"))
    names = [name for name in told.names() if name != "drained"]
    assert names == ["active", "failed", "retrying", "active", "completed", "shutting_down"]
    first, second = told.of("active")
    assert (first.job_id, first.queue, first.attempts) == (job.id, "work", 0)
    assert (first.metadata, first.status, second.attempts) == ({"tenant": "t"}, "active", 1)
    (failed,) = told.of("failed")
    assert (failed.error_type, str(failed.error)) == ("ValueError", "not yet")
    assert (failed.will_retry, failed.retry_delay, failed.attempts) == (True, 0.01, 1)
    (retrying,) = told.of("retrying")
    assert (retrying.attempts, retrying.max_attempts, retrying.retry_delay) == (1, 3, 0.01)
    (completed,) = told.of("completed")
    assert (completed.result, completed.status, completed.attempts) == ("now", "completed", 2)
    assert completed.duration >= 0


async def test_only_a_job_that_runs_has_the_receipt_of_its_delivery(queue: Queue) -> None:
    seen: list[ActiveJob[Any]] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(job)
        if len(seen) == 1:
            raise ValueError("once")

    added = await queue.add("any", 1, remove_on_complete=False)
    worker = Worker(queue, handle)
    told = Told(worker)
    async with worker:
        await wait_for(lambda: told.of("completed"))
    first, second = [one.provider_metadata for one in seen]
    assert first.keys() == second.keys() == {"receipt", "delivery_count"}
    assert first["receipt"] != second["receipt"]
    for stored in (added, await queue.get(added.id)):
        assert not hasattr(stored, "provider_metadata")


async def test_drained_is_told_once_each_time_the_queue_becomes_empty(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    worker = Worker(queue, handle)
    told = Told(worker)
    async with worker:
        for times in (1, 2):
            await queue.add_many([("any", n) for n in range(3)])
            await wait_for(lambda: len(told.of("drained")) == times)  # noqa: B023
            assert len(told.of("completed")) == 3 * times


async def test_listeners_that_raise_stop_nothing(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    def broken(event: Any) -> None:
        raise RuntimeError("listener")

    async def broken_async(event: Any) -> None:
        raise RuntimeError("async listener")

    worker = Worker(queue, handle)
    told = Told(worker)
    worker.on("completed", broken)
    worker.once("completed", broken_async)
    async with worker:
        await queue.add_many([("any", 1), ("any", 2)])
        await wait_for(lambda: len(told.of("completed")) == 2)
        await wait_for(lambda: len(told.of("error")) == 3)
    texts = sorted(str(event.error) for event in told.of("error"))
    assert texts == ["async listener", "listener", "listener"]


async def test_a_listener_can_remove_another_while_both_are_told(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    worker, told = Worker(queue, handle), list[Any]()

    def remove(event: Any) -> None:
        worker.off("completed", told.append)
        worker.off("completed", remove)

    worker.on("completed", remove)
    worker.once("completed", told.append)
    async with worker:
        await queue.add("any", 1)
        await wait_for(lambda: told)
        await queue.add("any", 2)
        await wait_for(lambda: worker.metrics().messages_succeeded == 2)
    assert len(told) == 1


async def test_a_listener_can_shut_its_worker_down(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    worker, stopped = Worker(queue, handle), list[float]()

    async def stop(event: Any) -> None:
        began = asyncio.get_running_loop().time()
        await worker.shutdown()
        stopped.append(asyncio.get_running_loop().time() - began)

    worker.on("drained", stop)
    await worker.start()
    await queue.add("any", 1)
    await wait_for(lambda: stopped, timeout=20)
    assert stopped[0] < 4  # it does not wait for itself until somebody gives up
    assert not worker.is_running


async def test_a_listener_that_hangs_does_not_hang_the_shutdown(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    worker, listening = Worker(queue, handle), list[asyncio.Task[Any] | None]()

    async def hang(event: Any) -> None:
        listening.append(asyncio.current_task())
        await asyncio.Event().wait()

    worker.on("completed", hang)
    async with worker:
        await queue.add("any", 1)
        await wait_for(lambda: listening)
        await asyncio.wait_for(worker.shutdown(0.1), 20)
    await wait_for(lambda: all(task is not None and task.cancelled() for task in listening))


async def test_once_off_and_streams(queue: Queue) -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    once: list[Any] = []
    removed: list[Any] = []
    streamed: list[Any] = []
    worker = Worker(queue, handle)
    worker.once("completed", once.append)
    worker.on("completed", removed.append)
    worker.off("completed", removed.append)
    told = Told(worker)

    async def read() -> None:
        async for event in worker.events():
            streamed.append(type(event).__name__)  # noqa: PERF401 - seen while it goes on

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    async with worker:
        await queue.add_many([("any", 1), ("any", 2)])
        await wait_for(lambda: len(told.of("completed")) == 2)
    await asyncio.wait_for(reading, 5)
    assert (len(once), removed) == (1, [])
    assert streamed.count("JobCompleted") == 2
    assert streamed[-1] == "WorkerShuttingDown"


async def test_an_unknown_event_is_refused(queue: Queue) -> None:
    worker = Worker(queue, of_dataclass)
    with pytest.raises(ConfigurationError, match=r"no event 'complete'.*did you mean 'completed'"):
        worker.on("complete", print)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be callable"):
        worker.on("completed", 5)  # type: ignore[arg-type]


# -- back-pressure ---------------------------------------------------------------------------------


async def test_no_more_jobs_are_held_than_run(queue: Queue) -> None:
    running, go_on = list[str](), asyncio.Event()

    async def handle(job: ActiveJob[Any]) -> None:
        running.append(job.id)
        await go_on.wait()

    await queue.add_many([("any", n) for n in range(20)])
    async with Worker(queue, handle, concurrency=3) as worker:
        await wait_for(lambda: len(running) == 3)
        assert (await queue.stats()).active == worker.active_jobs == 3
        worker.concurrency = 5
        await wait_for(lambda: len(running) == 5)
        assert (await queue.stats()).active == 5
        go_on.set()
        await wait_for(lambda: len(running) == 20)


async def test_an_error_while_the_concurrency_changes_is_told(queue: Queue) -> None:
    told = list[QueueErrored]()

    async def handle(job: ActiveJob[Any]) -> None: ...

    async def resize(concurrency: int) -> None:
        raise OSError("the connection is gone")

    async with Worker(queue, handle) as worker:
        worker.on("error", told.append)
        (consumer,) = worker._consumers
        consumer.resize = resize
        worker.concurrency = 5
        await wait_for(lambda: told)
    assert str(told[0].error) == "the connection is gone"


async def test_a_pause_lets_running_jobs_end_and_fetches_no_others(queue: Queue) -> None:
    running, go_on = list[str](), asyncio.Event()

    async def handle(job: ActiveJob[Any]) -> None:
        running.append(job.id)
        await go_on.wait()

    worker = Worker(queue, handle, concurrency=2)
    told = Told(worker)
    async with worker:
        await queue.add("any", 1)
        await wait_for(lambda: len(running) == 1)
        await worker.pause()
        await queue.add("any", 2)
        go_on.set()
        await wait_for(lambda: len(told.of("completed")) == 1)
        stats = await queue.stats()
        assert (stats.waiting, stats.active, len(running)) == (1, 0, 1)
        await worker.resume()
        await wait_for(lambda: len(told.of("completed")) == 2)
    assert [name for name in told.names() if name in ("paused", "resumed")] == ["paused", "resumed"]


async def test_batches_and_intervals_are_kept_to(queue: Queue) -> None:
    done: list[int] = []

    async def handle(job: ActiveJob[Any]) -> None:
        done.append(job.data)

    await queue.add_many([("any", n) for n in range(10)])
    async with Worker(queue, handle, batch_size=2, poll_interval=0.1):
        await wait_for(lambda: len(done) == 10)
        await queue.add("any", 10)
        await wait_for(lambda: len(done) == 11)


# -- closing ---------------------------------------------------------------------------------------


async def test_closing_waits_for_active_jobs_only(queue: Queue) -> None:
    running, go_on = list[int](), asyncio.Event()

    async def handle(job: ActiveJob[Any]) -> None:
        running.append(job.data)
        await go_on.wait()

    await queue.add_many([("any", n) for n in range(3)])
    worker = Worker(queue, handle, concurrency=1)
    told = Told(worker)
    await worker.start()
    await wait_for(lambda: running == [0])
    closing = asyncio.create_task(worker.close())
    await wait_for(lambda: told.of("shutting_down"))
    assert not closing.done()
    go_on.set()
    await asyncio.wait_for(closing, 5)
    stats = await queue.stats()
    assert (running, stats.waiting, stats.active) == ([0], 2, 0)
    assert not worker.is_running
    await worker.close()


async def test_jobs_that_do_not_end_in_time_are_given_back(queue: Queue) -> None:
    running: list[int] = []

    async def handle(job: ActiveJob[Any]) -> None:
        running.append(job.attempts)
        await asyncio.Event().wait()

    await queue.add("any", 1, attempts=1)
    worker = Worker(queue, handle)
    told = Told(worker)
    await worker.start()
    await wait_for(lambda: running)
    await worker.close(timeout=0.05)
    (late,) = told.of("shutdown_timeout")
    assert (late.queue, late.timeout, late.active_jobs) == ("work", 0.05, 1)
    stats = await queue.stats()
    assert (stats.waiting, stats.active, stats.failed) == (1, 0, 0)
    done: list[int] = []

    async def finish(job: ActiveJob[Any]) -> None:
        done.append(job.attempts)

    async with Worker(queue, finish):
        await wait_for(lambda: done == [0])  # the attempt that was cut short does not count


async def test_closing_without_waiting(queue: Queue) -> None:
    running: list[int] = []

    async def handle(job: ActiveJob[Any]) -> None:
        running.append(job.data)
        await asyncio.Event().wait()

    await queue.add("any", 1)
    worker = Worker(queue, handle)
    told = Told(worker)
    await worker.start()
    await wait_for(lambda: running)
    await worker.close(finish_active=False)
    assert told.of("shutdown_timeout") == []
    assert (await queue.stats()).waiting == 1


async def test_one_user_of_a_provider_does_not_end_it_for_others() -> None:
    transport = MemoryTransport()
    provider = JobProvider(transport)
    queue = Queue("shared", provider=provider)
    worker = Worker("shared", of_dataclass, provider=provider)
    await worker.start()
    await worker.close()
    await queue.add("any", {"to": "ada"})
    await worker.start()
    await worker.close(disconnect=True)
    assert transport.state.status == "disconnected"
    with pytest.raises(Exception, match="disconnected") as caught:
        await queue.stats()
    assert isinstance(caught.value.__cause__, NotConnectedError)


async def test_a_worker_runs_in_another_event_loop_after_its_shutdown() -> None:
    done: list[int] = []

    async def handle(job: ActiveJob[Any]) -> None:
        done.append(job.data)

    queue = Queue("loops")
    worker = Worker(queue, handle)

    async def run(number: int) -> None:
        async with worker:
            await queue.add("any", number)
            await wait_for(lambda: done[-1:] == [number])

    for number in (1, 2):
        await asyncio.to_thread(asyncio.run, run(number))
    assert worker.metrics().messages_succeeded == 2


async def test_a_worker_runs_in_another_event_loop_than_its_queue(tmp_path: Path) -> None:
    queue, done = Queue("loops", provider=f"sqlite:///{tmp_path}/jobs.db"), list[int]()

    async def handle(job: ActiveJob[Any]) -> None:
        done.append(job.data)

    async def add() -> None:
        await queue.add("any", 1)  # and the queue is not shut down

    async def run() -> None:
        async with Worker(queue, handle), queue:
            await queue.add("any", 2)
            await wait_for(lambda: sorted(done) == [1, 2])

    for step in (add, run):
        await asyncio.to_thread(asyncio.run, step())


async def test_jobs_declared_after_their_worker_was_made_run() -> None:
    queue, done = Queue("declared"), list[str]()

    @queue.job
    async def first() -> None:
        done.append("first")

    worker = Worker(queue)

    @queue.job
    async def second() -> None:
        done.append("second")

    async with worker, queue:
        await first.add()
        await second.add()
        await wait_for(lambda: sorted(done) == ["first", "second"])


async def test_a_thread_that_takes_too_long_is_waited_for(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, runs = threading.Event(), list[int]()

    def handle(job: ActiveJob[Any]) -> str:
        runs.append(job.attempts)
        go_on.wait(10)
        return "late"

    worker = Worker(queue, handle, timeout=0.05)
    told = Told(worker)
    async with worker:
        await queue.add("any")
        await wait_for(lambda: "handle runs for longer than" in caplog.text)
        go_on.set()
        await wait_for(lambda: told.of("completed"))
    assert (runs, told.of("failed")) == ([0], [])


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"queue": ""}, r"\[Worker\] queue must be a Queue or a non-empty string, got ''"),
        ({"handler": None}, r"\[Worker:q\] has no handler"),
        ({"handler": {}}, r"\[Worker:q\] the mapping of handlers is empty"),
        ({"handler": 5}, r"\[Worker:q\] handler: a handler must be a function, got 5"),
        ({"concurrency": 0}, r"\[Worker:q\] concurrency must be at least 1, got 0"),
        ({"concurrency": "many"}, r"\[Worker:q\] concurrency must be a whole number, got 'many'"),
        ({"batch_size": 0}, r"\[Worker:q\] batch_size must be at least 1"),
        ({"poll_interval": -1}, r"\[Worker:q\] poll_interval must be at least 0 seconds"),
        ({"error_backoff": "x"}, r"\[Worker:q\] error_backoff must be seconds"),
        (
            {"executor": "fork"},
            r"\[Worker:q\] executor must be 'async' or .* got 'fork'",
        ),
        ({"timeout": -1}, r"\[Worker:q\] timeout must be at least 0 seconds"),
        ({"provider": 5}, r"\[Worker:q\] provider must be a URL, a transport"),
    ],
)
async def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"queue": "q", "handler": of_dataclass, **arguments}
    with pytest.raises(ConfigurationError, match=text):
        async with Worker(given.pop("queue"), given.pop("handler"), **given):
            pass


async def test_handlers_that_cannot_be_called_with_a_job_are_refused() -> None:
    async def two(one: dict[str, Any], other: int) -> None: ...

    def generator(job: Any) -> Any:
        yield job

    with pytest.raises(ConfigurationError, match=r"nothing fills .*'other'.*test_worker.py"):
        Worker("q", two)
    with pytest.raises(ConfigurationError, match="has a `yield`"):
        Worker("q", generator)
