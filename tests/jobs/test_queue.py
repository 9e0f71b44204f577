"""Queues: arguments, ids, options and their warnings, providers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.jobs import (
    Exponential,
    Fixed,
    InvalidJobError,
    JobProvider,
    JobProviderError,
    JobsNotAddedError,
    Keep,
    Queue,
    Unique,
    Unsupported,
)
from matador.jobs.options import read_backoff
from matador.testing.jobs import JobProviderContract
from matador.transports.memory import MemoryTransport

pytestmark = pytest.mark.asyncio
assert JobProviderContract.__doc__


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, r"\[Queue\] name must be a non-empty string, got ''"),
        ({"name": "  "}, r"\[Queue\] name must be a non-empty string"),
        ({"name": 5}, r"\[Queue\] name must be a non-empty string, got 5"),
        ({"job_id": "id"}, r"\[Queue:q\] job_id must be a function, got 'id'"),
        ({"on_unsupported": 5}, r"\[Queue:q\] on_unsupported must be a function, got 5"),
        (
            {"default_options": {"attempts": 0}},
            r"\[Queue:q\] default_options: attempts must be at least 1, got 0",
        ),
        (
            {"default_options": {"attempt": 5}},
            r"\[Queue:q\] default_options: unknown option 'attempt' \(known: attempts,",
        ),
    ],
)
async def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"name": "q", **arguments}
    with pytest.raises(ValueError, match=text):
        Queue(given.pop("name"), **given)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "name must be a non-empty string"),
        ({"job_id": ""}, "job_id must be a non-empty string, got ''"),
        ({"job_id": 5}, "job_id must be a non-empty string, got 5"),
        ({"job_id": "a\nb"}, "job_id must have at most 500 printable characters"),
        ({"attempts": 0}, "attempts must be at least 1, got 0"),
        ({"attempts": "3"}, "attempts must be a whole number, got '3'"),
        ({"delay": -1}, "delay must be at least 0 seconds"),
        ({"priority": "high"}, "priority must be a whole number, got 'high'"),
        ({"backoff": 5}, r"backoff must be Fixed\(…\) or Exponential\(…\), got 5"),
        ({"metadata": []}, r"metadata must be a mapping, got \[\]"),
        ({"unique": ""}, "key must be a non-empty string, got ''"),
        ({"remove_on_complete": "yes"}, "remove_on_complete must be True, False"),
        ({"remove_on_fail": -1}, "count must be at least 0, got -1"),
        (
            {"delays": 1},
            r"unknown option 'delays' \(known: attempts, backoff, concurrency_key, delay",
        ),
        ({"data": object()}, "data cannot be written as JSON"),
        ({"data": float("nan")}, "data cannot be written as JSON"),
        ({"metadata": {1: 2}}, "the keys of metadata must be strings"),
    ],
)
async def test_a_wrong_job_is_refused_and_nothing_is_stored(
    arguments: dict[str, Any], text: str
) -> None:
    async with Queue("wrong") as queue:
        given: dict[str, Any] = {"name": "any", "data": None, **arguments}
        with pytest.raises(InvalidJobError, match=text) as caught:
            await queue.add(given.pop("name"), given.pop("data"), **given)
        error = caught.value
        assert (error.type, error.code, error.retryable) == ("DataError", "VALIDATION", False)
        assert (await queue.stats()).waiting == 0


async def test_defaults_and_ids_of_the_queue() -> None:
    queue = Queue(
        "defaults",
        job_id=lambda name, data: f"{name}-{data}",
        default_options={"attempts": 7, "metadata": {"from": "default"}},
    )
    job = await queue.add("n", 1)
    assert (job.id, job.max_attempts, job.metadata) == ("n-1", 7, {"from": "default"})
    other = await queue.add("n", 2, attempts=2, job_id="mine")
    assert (other.id, other.max_attempts) == ("mine", 2)
    await queue.close()


async def test_a_batch_says_which_jobs_were_not_added() -> None:
    queue = Queue("batch", job_id=lambda name, data: str(data))
    await queue.add("n", "taken")
    with pytest.raises(JobsNotAddedError, match="1 of 3 jobs were not added") as caught:
        await queue.add_many([("n", "a"), ("n", "taken"), ("n", "b")])
    assert [(index, error.code) for index, error in caught.value.errors.items()] == [
        (1, "DUPLICATE")
    ]
    assert (await queue.stats()).waiting == 3
    assert await queue.add_many([]) == []
    await queue.close()


async def test_an_option_that_is_not_supported_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reported: list[Unsupported] = []
    options: dict[str, Any] = {"priority": 5, "delay": 10}
    transport = MemoryTransport(without=["jobs", "delays", "priorities"])
    queue = Queue("few", provider=transport, on_unsupported=reported.append)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            job = await queue.add("any", 1, **options)
            assert (job.priority, job.status, job.scheduled_for) == (None, "waiting", None)
    assert options == {"priority": 5, "delay": 10}
    assert [(one.option, one.value) for one in reported] == [("delay", 10.0), ("priority", 5)] * 2
    texts = [one.getMessage() for one in caplog.records]
    assert len(texts) == 2
    assert "[Queue:few] the provider 'memory' does not support 'delay': it is ignored" in texts[0]
    await queue.close(disconnect=True)


async def test_a_callback_that_raises_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(found: Unsupported) -> None:
        raise RuntimeError("callback")

    transport = MemoryTransport(without=["jobs", "delays"])
    queue = Queue("few", provider=transport, on_unsupported=broken)
    await queue.add("any", 1, delay=5)
    assert "on_unsupported raised an error" in caplog.text
    await queue.close(disconnect=True)


async def test_providers_can_be_given_in_many_ways() -> None:
    transport = MemoryTransport()
    provider = JobProvider(transport)
    asked: list[str] = []

    def factory(name: str) -> MemoryTransport:
        asked.append(name)
        return transport

    for given in (transport, provider, factory, "memory://"):
        queue = Queue("many", provider=given)
        assert (await queue.add("any", 1)).status == "waiting"
        await queue.close()
    assert asked == ["many"]
    assert transport.state.status == "connected"  # it belongs to whoever gave it
    await transport.disconnect()
    with pytest.raises(ConfigurationError, match=r"\[Queue:q\] provider must be a URL"):
        await Queue("q", provider=5).add("any")  # type: ignore[arg-type]


async def test_queues_without_a_provider_share_the_memory_of_their_loop() -> None:
    await Queue("shared").add("any", 1)
    assert (await Queue("shared").stats()).waiting == 1
    assert (await Queue("other").stats()).waiting == 0
    await Queue("shared").delete()


async def test_a_queue_can_be_used_in_one_loop_after_another() -> None:
    queue = Queue("loops")

    async def add() -> int:
        await queue.add("any", 1)
        return (await queue.stats()).waiting

    for _ in range(2):
        assert await asyncio.to_thread(asyncio.run, add()) == 1


async def test_an_error_of_the_provider_is_named() -> None:
    transport = MemoryTransport()
    queue = Queue("gone", provider=transport)
    await queue.add("any", 1)
    await transport.disconnect()
    with pytest.raises(JobProviderError, match="disconnected") as caught:
        await queue.add("any", 2)
    error = caught.value
    assert (error.type, error.code, error.retryable) == ("RuntimeError", "CONNECTION", True)
    assert error.queue == "gone"
    assert error.__cause__ is not None


async def test_pauses_are_told() -> None:
    queue, told = Queue("paused"), list[Any]()
    queue.on("paused", told.append)
    queue.on("resumed", told.append)
    await queue.pause()
    await queue.resume()
    assert [type(event).__name__ for event in told] == ["QueuePaused", "QueueResumed"]


async def test_schedules_are_checked() -> None:
    queue = Queue("schedules")
    for arguments, text in (
        ({}, "give either cron= or every="),
        ({"cron": "0 7 * * *", "every": 5}, "give either cron= or every="),
        ({"cron": "7 o'clock"}, r"is not a cron expression \(Wrong number of fields\)"),
        ({"cron": "99 * * * *"}, r"is not a cron expression \(Bad minute\)"),
        ({"every": 0}, "every must be at least 0.001 s"),
        ({"every": 5, "timezone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"every": 5, "missed": "some"}, "missed='some' is not one, all or skip"),
        ({"every": 5, "delay": 5}, "a schedule has neither delay nor unique"),
    ):
        given: dict[str, Any] = arguments
        with pytest.raises(InvalidJobError, match=text):
            await queue.schedule("key", "name", **given)
    assert await queue.schedules() == []


async def test_a_schedule_that_is_set_again_keeps_its_next_time() -> None:
    queue = Queue("schedules")
    for times in ({"every": 600}, {"cron": "0 7 * * *", "timezone": "Europe/Berlin"}):
        given: dict[str, Any] = times
        first = await queue.schedule("key", "name", {"region": "north"}, **given)
        again = await queue.schedule("key", "name", {"region": "south"}, **given)
        assert again.next_at == first.next_at
        assert [one.data for one in await queue.schedules()] == [{"region": "south"}]
    changed = await queue.schedule("key", "name", every=601)
    assert changed.next_at != first.next_at


@pytest.mark.parametrize("backoff", [Fixed(0.5), Exponential(1), Exponential(0.25, max_delay=30)])
async def test_backoffs_travel(backoff: Fixed | Exponential) -> None:
    assert read_backoff(backoff.text) == backoff


@pytest.mark.parametrize("text", [None, 5, "", "fixed", "fixed:x", "linear:5", "exponential:"])
async def test_an_odd_backoff_is_the_default(text: Any) -> None:
    assert read_backoff(text) == Exponential(1.0)


async def test_what_is_kept() -> None:
    for keep in (Keep(), Keep(count=0), Keep(age=5), Keep(age=1.5, count=3)):
        assert Keep.read(keep.text, Keep(count=9)) == keep
    for odd in (None, 5, "", "age", "age=x", "count=-1", "other=1"):
        assert Keep.read(odd, Keep(count=9)) == Keep(count=9)
    assert Unique("key", within=5).within == 5.0
