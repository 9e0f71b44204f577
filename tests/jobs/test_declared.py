"""Declared jobs: parameters and results, options, handles."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import pydantic
import pytest

from matador.errors import ConfigurationError
from matador.jobs import (
    ActiveJob,
    DeclaredJob,
    Fixed,
    InvalidJobError,
    JobFailedError,
    JobHandle,
    JobNotFoundError,
    JobProvider,
    JobsUnsupportedError,
    JobTimeoutError,
    Queue,
    Worker,
    current_job,
)
from matador.runtime.context import Context
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport

pytestmark = pytest.mark.asyncio


@dataclass
class Address:
    street: str
    number: int = 1


class Person(pydantic.BaseModel):
    name: str


async def test_parameters_and_result_keep_their_types() -> None:
    queue = Queue("declared")

    @queue.job(attempts=5)
    async def send_letter(to: Address, text: str = "hi", *, copies: int = 1) -> list[Address]:
        assert isinstance(to, Address)
        return [to] * copies

    @queue.job
    def greet(person: Person) -> Person:
        return Person(name=f"Dear {person.name}")

    assert (send_letter.name, greet.name) == ("send-letter", "greet")
    async with Worker(queue):
        handle = await send_letter.add(Address("Main"), copies=2)
        assert_type(handle, JobHandle[list[Address]])
        assert await handle.result(timeout=30) == [Address("Main"), Address("Main")]
        assert (await handle.job()).max_attempts == 5
        greeting = await greet.add(person=Person(name="Ada"))
        assert await greeting.result(timeout=30) == Person(name="Dear Ada")
        assert await greeting.status() == "completed"
    assert await send_letter(Address("Here")) == [Address("Here")]
    await queue.delete()


async def test_a_job_without_data_has_no_arguments() -> None:
    queue = Queue("declared")

    @queue.job
    async def clean_up(days: int = 7) -> int:
        return days

    async with Worker(queue):
        job = await queue.add(clean_up.name, remove_on_complete=False)
        handle = JobHandle(queue, job.id, int)
        assert await handle.result(timeout=30) == 7


async def test_options_of_one_call() -> None:
    queue = Queue("declared")

    @queue.job(attempts=5, name="other-name", backoff=Fixed(1))
    async def work(number: int) -> None: ...

    later = work.with_options(delay=60, priority=3)
    assert isinstance(later, DeclaredJob)
    handle = await later.add(number=1)
    job = await queue.get(handle.id)
    assert job is not None
    assert (job.name, job.status, job.max_attempts) == ("other-name", "delayed", 5)
    assert (job.priority, job.data) == (3, {"number": 1})
    with pytest.raises(InvalidJobError, match="unknown option 'delays'"):
        work.with_options(delays=60)  # type: ignore[call-arg]
    await queue.delete()


async def test_wrong_arguments_are_refused_when_the_job_is_added() -> None:
    queue = Queue("declared")

    @queue.job
    async def work(number: int) -> None: ...

    with pytest.raises(InvalidJobError, match=r"job 'work': missing a required argument: 'number'"):
        await work.add()  # type: ignore[call-arg]
    with pytest.raises(InvalidJobError, match="unexpected keyword argument 'numbers'"):
        await work.add(number=1, numbers=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidJobError, match=r"job 'work': Expected `int`, got `str`.*number"):
        await work.add(number="five")  # type: ignore[arg-type]
    assert (await queue.stats()).waiting == 0


async def test_wrong_declarations_are_refused() -> None:
    queue = Queue("declared")

    @queue.job
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match=r"two jobs named 'work'.*test_declared.py"):

        @queue.job(name="work")
        async def again() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'args' cannot be stored by its name"):

        @queue.job
        async def many(*args: int) -> None: ...

    with pytest.raises(ConfigurationError, match="annotations cannot be resolved"):

        @queue.job
        async def unknown(one: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


async def test_handles_say_what_became_of_a_job() -> None:
    queue = Queue("declared")
    go_on = asyncio.Event()

    @queue.job(attempts=1)
    async def fail() -> int:
        raise ValueError("broken")

    @queue.job
    async def wait() -> int:
        await go_on.wait()
        return current_job().attempts

    @queue.job(remove_on_complete=True)
    async def vanish() -> int:
        return 1

    async with Worker(queue):
        with pytest.raises(JobFailedError, match="failed: broken"):
            await (await fail.add()).result(timeout=30)
        waiting = await wait.add()
        with pytest.raises(JobTimeoutError, match=r"was not finished after 0.05 s"):
            await waiting.result(timeout=0.05)
        go_on.set()
        assert await waiting.result(timeout=30) == 0
        with pytest.raises(JobNotFoundError, match="remove_on_complete= says how long"):
            await (await vanish.add()).result(timeout=30)
    await queue.delete()


async def test_results_need_a_provider_that_keeps_them() -> None:
    transport = MemoryTransport(without=["jobs"])
    queue = Queue("declared", provider=transport)

    @queue.job
    async def work() -> int:
        return 1

    handle = await work.add()
    with pytest.raises(JobsUnsupportedError, match="keeps no results"):
        await handle.result(timeout=30)
    await queue.shutdown(disconnect=True)


async def test_there_is_no_current_job_outside_of_one() -> None:
    with pytest.raises(LookupError):
        current_job()


async def test_a_worker_needs_something_declared() -> None:
    with pytest.raises(ConfigurationError, match=r"declared by @queue\.job"):
        Worker(Queue("empty"))
    given: Any = None
    with pytest.raises(ConfigurationError, match="has no handler"):
        Worker("empty", given)


# -- recurring -------------------------------------------------------------------------------------


async def test_a_worker_keeps_the_schedules_that_are_declared() -> None:
    ran: list[str] = []

    def declared(**recurring: Any) -> Queue:
        queue = Queue("recurring", provider=provider)

        @queue.job(every=0.05, attempts=7)
        async def tick(name: str = "tick") -> None:
            ran.append(name)

        if recurring:
            untyped: Any = queue
            untyped.job(**recurring)(report)
        return queue

    provider = JobProvider(MemoryTransport())
    queue = declared(cron="@daily", timezone="Europe/Berlin")
    async with queue:
        await queue.schedule("own", "tick", every=600)
        async with Worker(queue):
            await wait_for(lambda: len(ran) >= 2)
            found = {one.key: one for one in await queue.schedules()}
            assert sorted(found) == ["@report", "@tick", "own"]
            daily = found["@report"]
            assert (daily.cron, daily.timezone, daily.name) == (
                "0 0 * * *",
                "Europe/Berlin",
                "report",
            )
            await wait_for(lambda: _completed_with(queue, 7))
        async with Worker(declared(cron="0 7 * * *")):  # another version of the program
            found = {one.key: one for one in await queue.schedules()}
            assert found["@report"].cron == "0 7 * * *"
        async with Worker(declared()):
            assert sorted(one.key for one in await queue.schedules()) == ["@tick", "own"]
        async with Worker("recurring", _nothing, provider=provider):  # declares nothing
            assert sorted(one.key for one in await queue.schedules()) == ["@tick", "own"]
        await queue.shutdown(disconnect=True)


async def report() -> None: ...


async def _nothing(job: ActiveJob[Any]) -> None: ...


async def _completed_with(queue: Queue, attempts: int) -> bool:
    return attempts in {job.max_attempts for job in await queue.list("completed")}


async def test_recurring_jobs_are_checked_when_they_are_declared() -> None:
    queue = Queue("recurring")

    async def welcome(to: str, lang: str = "en") -> None: ...

    for given, text in (
        ({"cron": "@daily"}, r"job 'welcome' recurs.*write await welcome.schedule\('key', .*to=…"),
        ({"cron": "@dayly"}, r"cron='@dayly' is not one of @hourly, .*did you mean '@daily'\?"),
        ({"cron": "1 2 3"}, "is not a cron expression"),
        ({"cron": "@daily", "every": 5}, "give either cron= or every="),
        ({"cron": "@daily", "timezone": "Mars"}, "no time zone 'Mars'"),
    ):
        options: dict[str, Any] = given
        with pytest.raises(ConfigurationError, match=text):
            queue.job(**options)(welcome)
    with pytest.raises(ConfigurationError, match="neither delay nor unique"):
        queue.job(cron="@daily", delay=5)(clean_up)
    poor = Queue("poor", provider=MemoryTransport(without=["jobs"]))
    poor.job(cron="@daily")(clean_up)
    with pytest.raises(JobsUnsupportedError, match="recurring jobs; memory, sqlite and redis can"):
        await Worker(poor).start()


async def clean_up(days: int = 7) -> None: ...


async def test_schedules_of_declared_jobs_are_checked_like_add() -> None:
    queue = Queue("recurring")

    @queue.job(attempts=4)
    async def welcome(to: str, lang: str = "en") -> None: ...

    stored = await welcome.schedule("daily", cron="@daily", timezone="Europe/Berlin").add(to="ada")
    assert (stored.key, stored.name, stored.cron) == ("daily", "welcome", "0 0 * * *")
    assert stored.data == {"to": "ada"}
    with pytest.raises(InvalidJobError, match=r"job 'welcome': Expected `str`, got `int`.*to"):
        await welcome.schedule("daily", every=5).add(to=5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidJobError, match="missing a required argument: 'to'"):
        await welcome.schedule("daily", every=5).add()  # pyright: ignore[reportCallIssue]
    with pytest.raises(InvalidJobError, match="give either cron= or every="):
        await welcome.schedule("daily").add(to="ada")
    given: Any = welcome
    for name, data, text in (
        (given, None, r"write await welcome\.schedule\('daily', cron=…\)\.add\(…\)"),
        ("welcom", {"to": "a"}, r"declares no job named 'welcom' .*did you mean 'welcome'\?"),
        ("welcome", {"two": "a"}, "schedule 'daily': Object contains unknown field `two`"),
        ("welcome", None, "missing required field `to`"),
    ):
        with pytest.raises(InvalidJobError, match=text):
            await queue.schedule("daily", name, data, cron="@daily")
    with pytest.raises(InvalidJobError, match=r"write await welcome\.add\(…\)"):
        await queue.add(given)
    with pytest.raises(InvalidJobError, match="keys that begin with '@' belong to"):
        await queue.schedule("@welcome", "welcome", {"to": "a"}, every=5)
    (kept,) = await queue.schedules()
    assert kept == stored
    await queue.delete()


# -- parameters that are no data -------------------------------------------------------------------


async def test_a_declared_job_may_take_the_job_and_a_context_anywhere() -> None:
    queue, seen = Queue("declared"), list[Any]()

    @queue.job
    async def first(job: ActiveJob[Any], number: int) -> str:
        seen.append((job.name, job.attempt, number))
        await job.update_progress(50)
        return job.id

    @queue.job
    def last(number: int, *, ctx: Context | None = None) -> str:
        assert ctx is not None
        seen.append((type(ctx), ctx.attempt, ctx.io("step", lambda: number)))
        return ctx.id

    async with Worker(queue):
        for job in (await first.add(number=1), await last.add(2)):
            assert await job.result(timeout=30) == job.id
            assert set((await job.job()).data) == {"number"}
    assert seen == [("first", 1, 1), (Context, 1, 2)]
    assert await first(3) == ""  # here and now, without a worker
    assert await asyncio.to_thread(last, 4) == ""
    with pytest.raises(InvalidJobError, match="unexpected keyword argument 'ctx'"):
        await last.add(2, ctx=None)
    await queue.delete()
