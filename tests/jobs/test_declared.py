"""Declared jobs: parameters and results, options, handles."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import pydantic
import pytest

from matador.errors import ConfigurationError
from matador.jobs import (
    DeclaredJob,
    Fixed,
    InvalidJobError,
    JobFailedError,
    JobHandle,
    JobNotFoundError,
    JobsUnsupportedError,
    JobTimeoutError,
    Queue,
    Worker,
    current_job,
)
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
        assert handle.job.max_attempts == 5
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
        handle = JobHandle(queue, job, int)
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
        with pytest.raises(JobNotFoundError, match="remove_on_complete=False to keep it"):
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
    await queue.close(disconnect=True)


async def test_there_is_no_current_job_outside_of_one() -> None:
    with pytest.raises(LookupError):
        current_job()


async def test_a_worker_needs_something_declared() -> None:
    with pytest.raises(ConfigurationError, match=r"declared by @queue\.job"):
        Worker(Queue("empty"))
    given: Any = None
    with pytest.raises(ConfigurationError, match="has no handler"):
        Worker("empty", given)
