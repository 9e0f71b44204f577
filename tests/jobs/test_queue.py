"""Queues: arguments, ids, options and their warnings, providers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from matador.errors import ConfigurationError
from matador.jobs import (
    ActiveJob,
    Exponential,
    Fixed,
    InvalidJobError,
    JobError,
    JobProvider,
    JobProviderError,
    JobsNotAddedError,
    Keep,
    Queue,
    QueueDrained,
    QueueErrored,
    Unique,
    UniqueJobError,
    Unsupported,
    Worker,
)
from matador.jobs.options import read_backoff
from matador.jobs.way import JobRetries
from matador.jobs.wire import received
from matador.model.job import JobCounts, JobRecord
from matador.model.message import Delivery, Receipt
from matador.policy.retry import RetryContext, RetryLater, StandardRetryPolicy
from matador.testing import wait_for
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
        ({"provider": "foo://x"}, r"\[Queue:q\] provider: no transport for foo://"),
        ({"provider": "redis://h?lease=x"}, r"\[Queue:q\] provider: .*lease"),
        ({"provider": 5}, r"\[Queue:q\] provider must be a URL, .*, got 5"),
    ],
)
async def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"name": "q", **arguments}
    with pytest.raises(ConfigurationError, match=text):
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
        ({"delay": datetime.max.replace(tzinfo=UTC)}, "delay must be at most 1,000,000,000 sec"),
        ({"priority": "high"}, "priority must be a whole number, got 'high'"),
        ({"backoff": 5}, r"backoff must be Fixed\(…\) or Exponential\(…\), got 5"),
        ({"metadata": []}, r"metadata must be a mapping, got \[\]"),
        ({"unique": ""}, "key must be a non-empty string, got ''"),
        ({"remove_on_complete": "yes"}, "remove_on_complete must be True, False"),
        ({"remove_on_fail": -1}, "count must be at least 0, got -1"),
        (
            {"delays": 1},
            r"unknown option 'delays' \(known: attempts, backoff, .*\); did you mean 'delay'",
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
    await queue.shutdown()


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
    await queue.shutdown()


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
    await queue.shutdown(disconnect=True)


async def test_what_a_provider_always_does_is_not_reported() -> None:
    reported: list[Unsupported] = []
    transport = MemoryTransport(without=["jobs", "priorities"])
    queue = Queue("few", provider=transport, on_unsupported=reported.append)
    await queue.add("any", 1, remove_on_complete=True, remove_on_fail=False)
    assert reported == []
    await queue.add("any", 1, remove_on_complete=False, remove_on_fail=True, priority=0)
    assert [one.option for one in reported] == ["priority", "remove_on_complete", "remove_on_fail"]
    await queue.shutdown(disconnect=True)


async def test_a_callback_that_raises_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(found: Unsupported) -> None:
        raise RuntimeError("callback")

    transport = MemoryTransport(without=["jobs", "delays"])
    queue = Queue("few", provider=transport, on_unsupported=broken)
    await queue.add("any", 1, delay=5)
    assert "on_unsupported raised an error" in caplog.text
    await queue.shutdown(disconnect=True)


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
        await queue.shutdown()
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


async def test_the_largest_job_and_the_longest_delay_are_stated_and_kept() -> None:
    for url, size in (("memory://", None), ("sqs://eu-west-1", 262_144), ("amqp://host", 1 << 24)):
        assert JobProvider(url).capabilities.max_job_size == size
    assert JobProvider("amqp://host").capabilities.max_delay is not None
    transport = MemoryTransport(without=["jobs"])
    transport._capabilities = replace(transport.capabilities, max_message_size=100, max_delay=60.0)
    queue = Queue("small", provider=transport)
    assert queue.capabilities.max_batch is None, "any number"
    assert (queue.capabilities.max_job_size, queue.capabilities.max_delay) == (100, 60.0)
    with pytest.raises(InvalidJobError, match=r"the job has 1\d\d bytes, the provider takes 100"):
        await queue.add("any", "x" * 100)
    with pytest.raises(Exception, match="60") as caught:
        await queue.add("any", 1, delay=61)
    assert isinstance(caught.value, JobError)
    assert (await queue.stats()).waiting == 0
    await queue.shutdown(disconnect=True)


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
        ({"every": 5, "missed": "some"}, "missed must be 'one' or 'all' or 'skip', got 'some'"),
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


@pytest.mark.parametrize(
    "backoff",
    [
        Fixed(0.5),
        Fixed(2, jitter=0.5),
        Exponential(1),
        Exponential(0.25, max_delay=30),
        Exponential(0.25, max_delay=30, jitter=0.2),
    ],
)
async def test_backoffs_travel(backoff: Fixed | Exponential) -> None:
    assert read_backoff(backoff.text) == backoff


@pytest.mark.parametrize("text", [None, 5, "", "fixed", "fixed:x", "linear:5", "exponential:"])
async def test_an_odd_backoff_is_the_default(text: Any) -> None:
    assert read_backoff(text) == Exponential(1.0, max_delay=300)


async def test_what_is_kept() -> None:
    for keep in (Keep(), Keep(count=0), Keep(age=5), Keep(age=1.5, count=3)):
        assert Keep.read(keep.text, Keep(count=9)) == keep
    for odd in (None, 5, "", "age", "age=x", "count=-1", "other=1"):
        assert Keep.read(odd, Keep(count=9)) == Keep(count=9)
    assert Unique("key", within=5).within == 5.0


class Fleeting(MemoryTransport):
    """The job that has a unique key completes before anybody can look at it."""

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        for one in ids:
            await self.remove_job(queue, one)
        return await super().find_jobs(queue, ids)


async def test_a_job_is_added_if_its_unique_key_has_just_become_free() -> None:
    queue = Queue("unique", provider=JobProvider(Fleeting()))
    first = await queue.add("any", 1, unique="key")
    second = await queue.add("any", 2, unique="key")
    assert second.id != first.id
    assert [job.data for job in await queue.list()] == [2]
    await queue.shutdown(disconnect=True)


async def test_a_key_that_is_taken_for_a_while_outlives_its_job() -> None:
    queue = Queue("unique", provider=MemoryTransport())
    first = await queue.add("any", 1, unique=Unique("key", within=600), remove_on_complete=True)
    async with Worker(queue, _nothing):
        await wait_for(_is_gone(queue, first.id))
        with pytest.raises(UniqueJobError):
            await queue.add("any", 2, unique=Unique("key", within=600))
    await queue.shutdown(disconnect=True)


async def _nothing(job: ActiveJob[Any]) -> None: ...


def _is_gone(queue: Queue, job_id: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return await queue.get(job_id) is None

    return look


class Forgetful(MemoryTransport):
    """Keeps failed jobs alone, like a broker that knows nothing but messages."""

    async def count_jobs(self, queue: str) -> JobCounts:
        return JobCounts(waiting=2, failed=1, unknown=frozenset({"completed"}))


async def test_an_error_rate_that_nobody_knows_is_none() -> None:
    queue = Queue("forgetful", provider=Forgetful())
    health = await queue.health()
    assert (health.error_rate, health.completed, health.failed) == (None, None, 1)
    await queue.shutdown(disconnect=True)


@pytest.mark.parametrize(
    ("name", "argument", "text"),
    [
        ("get", 5, "get: job_id must be a string, got 5"),
        ("get_many", ["a", "\udcff"], "get: job_id must be a string, got"),
        ("retry", 5, "retry: job_id must be a string, got 5"),
        ("remove", None, "remove: job_id must be a string, got None"),
        ("cancel", 5, "cancel: job_id must be a string, got 5"),
        ("list", {"limit": -1}, "list: limit must be a whole number from 0 to"),
        ("list", {"skip": 2**70}, "list: skip must be a whole number from 0 to"),
        ("list", {"status": "done"}, "list: status='done' is not one of"),
        (
            "add_many",
            [("one", 1), 2],
            r"add_many: jobs\[1\] must be a pair of a name and data, got",
        ),
    ],
)
async def test_a_wrong_argument_of_a_call_is_named(name: str, argument: Any, text: str) -> None:
    async with Queue("wrong") as queue:
        call = getattr(queue, name)
        with pytest.raises(InvalidJobError, match=r"\[Queue:wrong\] " + text):
            await (call(**argument) if isinstance(argument, dict) else call(argument))
        assert (await queue.stats()).waiting == 0


# -- mistakes, and what a queue says ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("nosuch://host", r"no transport for nosuch://"),
        ("amqp://ada:s3cret@host:99999999", "port"),
        ("sqlite://", "path must name a file"),
        (5, "provider must be a URL, a transport"),
    ],
)
async def test_a_provider_is_checked_when_its_queue_is_made(provider: Any, said: str) -> None:
    for kind in (Queue, partial(Worker, handler=_nothing)):
        with pytest.raises(ConfigurationError, match=said) as caught:
            kind("checked", provider=provider)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:///x.db", "redis://user:secret@host/0"])
async def test_an_address_in_place_of_the_name_is_an_error_with_the_right_form(url: str) -> None:
    shown = url.replace("secret", "***")
    for make, right in (
        (lambda: Queue(url), f'Queue("name", provider="{shown}")'),
        (lambda: Worker(url, _nothing), f'Worker("name", handler, provider="{shown}")'),
    ):
        with pytest.raises(ConfigurationError) as raised:
            make()
        assert right in str(raised.value)
        assert "secret" not in str(raised.value)


async def test_what_a_queue_says_about_receiving_holds_for_its_workers() -> None:
    ran: list[int] = []

    async def fail(job: ActiveJob[Any]) -> None:
        ran.append(job.attempt)
        raise ValueError("no")

    quick = StandardRetryPolicy(max_attempts=2, base_delay=0.001)
    queue = Queue("receiving", retry=quick, timeout=5, idempotent="unknown")
    async with queue, Worker(queue, fail):
        await queue.add("one")
        await wait_for(lambda: _count_failed(queue, 1))
    assert ran == [1, 2]
    assert Worker(queue, fail)._timeout == 5.0
    assert Worker(queue, fail, timeout=1, idempotent="no")._idempotent == "no"
    wrong: Any = {"retry": 3, "idempotent": "yess", "deduplication": True, "timeout": "5"}
    for name, value in wrong.items():
        for kind in (Queue, partial(Worker, handler=_nothing)):
            with pytest.raises(ConfigurationError, match=name):
                kind("receiving", **{name: value})


async def _count_failed(queue: Queue, number: int) -> bool:
    return (await queue.stats()).failed == number


async def test_a_delay_may_be_a_moment() -> None:
    async with Queue("moments") as queue:
        due = datetime.now(UTC) + timedelta(hours=1)
        job = await queue.add("one", delay=due)
        assert job.status == "delayed"
        assert job.scheduled_for is not None
        assert abs(job.scheduled_for - due) < timedelta(seconds=1)
        past = await queue.add("one", delay=datetime(2020, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")))
        assert past.status == "waiting"
        naive = datetime(2026, 11, 19, 8)  # noqa: DTZ001 - that is the mistake
        for delay, text in (
            (naive, r"must have a time zone, .*write datetime\(2026, 11, 19, 8, tzinfo=UTC\)"),
            (1e10, r"delay must be at most 1,000,000,000 seconds \(thirty years\)"),
            (1e12, r"delay must be at most .* seconds"),
            ("soon", "must be seconds or a timedelta.*a datetime with a time zone is a delay, too"),
        ):
            wrong: Any = delay
            with pytest.raises(InvalidJobError, match=text):
                await queue.add("one", delay=wrong)
        await queue.delete()


@pytest.mark.parametrize("backoff", [Fixed(2, jitter=0.5), Exponential(1, jitter=0.25)])
async def test_jitter_travels_with_the_job_and_is_applied_by_policy(
    backoff: Fixed | Exponential,
) -> None:
    text = backoff.text
    assert read_backoff(text) == backoff
    policy = JobRetries(None)._given_for(3, backoff)
    assert policy is None, "it has a backoff of its own"
    async with Queue("jitter") as queue:
        job = await queue.add("one", backoff=backoff)
        provider = queue.provider.transport
        assert isinstance(provider, MemoryTransport)
        (stored,) = [one for one in provider.messages("jitter") if one.id == job.id]
        assert stored.headers["job.backoff"] == text
        await queue.delete()
    waits: list[float] = []
    for random in (0.0, 0.5, 1.0):
        work = received(Delivery(b"{}", {"job.backoff": text, "job.maxAttempts": 5}, _RECEIPT), 0.0)
        context = RetryContext(
            error=ValueError("no"),
            attempts=1,
            receipt=_RECEIPT,
            idempotent="yes",
            interrupted=False,
            random=random,
        )
        decision = JobRetries(None).policy(work).decide(context)
        assert isinstance(decision, RetryLater)
        waits.append(decision.delay)
    first = backoff.wait(1)
    assert waits == [first, first * (1 - backoff.jitter / 2), first * (1 - backoff.jitter)]


_RECEIPT = Receipt("jitter", None)


async def test_a_queue_tells_errors_and_drained() -> None:
    told: list[Any] = []
    transport = MemoryTransport()
    queue = Queue("telling", provider=transport)
    queue.on("drained", told.append)
    queue.on("error", told.append)
    async with queue, Worker(queue, _nothing):
        await queue.add("one")
        await wait_for(lambda: [one for one in told if isinstance(one, QueueDrained)])
        assert not [one for one in told if isinstance(one, QueueErrored)]
        await transport.disconnect()
        with pytest.raises(JobProviderError):
            await queue.add("two")
        errors = [one for one in told if isinstance(one, QueueErrored)]
        assert any(isinstance(one.error, JobProviderError) for one in errors)
    await queue.shutdown(disconnect=True)


class Racing(MemoryTransport):
    """The job that has a unique key completes, and another one with its id takes the key."""

    races = 3

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        if self.races:
            self.races -= 1
            return [None for _ in ids]  # it has just gone …
        return await super().find_jobs(queue, ids)  # … and the next one is there


async def test_a_race_for_a_unique_key_ends_with_a_job() -> None:
    queue = Queue("unique", provider=JobProvider(Racing()))
    first = await queue.add("any", 1, job_id="same", unique="key")
    found = await queue.add("any", 2, unique="key")
    assert found.id == first.id
    await queue.shutdown(disconnect=True)


async def test_the_health_says_how_many_workers_there_are() -> None:
    queue = Queue("crew", provider=MemoryTransport())
    async with queue:
        assert (await queue.health()).active_workers == 0
        async with Worker(queue, _nothing), Worker(queue, _nothing):
            assert (await queue.health()).active_workers == 2
        assert (await queue.health()).active_workers == 0
    await queue.shutdown(disconnect=True)


async def test_what_the_provider_does_not_know_of_the_health_is_none() -> None:
    queue = Queue("forgetful", provider=Forgetful())
    async with queue:
        health = await queue.health()
        assert (health.error_rate, health.completed, health.depth) == (None, None, 2)
    await queue.shutdown(disconnect=True)


async def test_a_queue_is_started_once_and_says_how_it_is() -> None:
    queue = Queue("vocabulary")
    await queue.start()
    await queue.start()
    await queue.add("one")
    assert queue.metrics().messages_sent == 1
    await queue.delete()
    await queue.shutdown(timeout=0)
    await queue.shutdown()
