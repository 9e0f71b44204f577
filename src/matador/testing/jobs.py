"""Tests a job provider against its contract.

Subclass ``JobProviderContract`` in a test module and give it a factory::

    class TestMyJobs(JobProviderContract):
        async def make_transport(self) -> Transport:
            return MyTransport("my://localhost", lease=1)

The declared capabilities must work. Undeclared features must be refused with
``JobsUnsupportedError``, or ignored with a warning. Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from matador.errors import (
    DoRetry,
    DuplicateJobError,
    JobCanceledError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    JobsUnsupportedError,
    LeaseLostError,
    UnstorableError,
)
from matador.jobs import (
    RESULT,
    ActiveJob,
    Fixed,
    JobCapabilities,
    JobProvider,
    JobStatus,
    PermanentJobError,
    Queue,
    RateLimit,
    Unique,
    Unsupported,
    Worker,
    chain,
    group,
)
from matador.model.message import Complete, Delivery, Message, Release
from matador.runtime.dead_letters import Selection
from matador.testing.wait import wait_for
from matador.transports.base import Subscription, Transport

_DATA: Sequence[Any] = (
    {},
    {"to": "ada@example.com", "tags": ["a", "b"], "nested": {"n": None}},
    [],
    [1, 2.5, -3],
    "text",
    "",
    0,
    12345678901234567,
    True,
    False,
    None,
    {"unicode": "é漢😀", "quote": '"', "newline": "\n"},
)


@pytest.mark.asyncio
class JobProviderContract:
    """The factory to implement, the settings to override, and the tests."""

    patience: float = 30.0
    """The time limit for expected events in seconds. Must be longer than the lease."""

    quiet: float = 0.3
    """Seconds to wait when no event may happen."""

    delay: float = 1.0
    """A delay that the provider supports."""

    counts_workers: bool = True
    """The provider reports how many workers consume a queue."""

    priorities: bool = False
    """Ask for queues with priorities. See ``JobProvider``."""

    async def make_transport(self) -> Transport:
        """A transport that is not connected, on the same store at every call in a test.

        Two calls may give the same object only if it is ``in_process``. Use a short lease of one or
        two seconds: some tests wait for it to expire.
        """
        raise NotImplementedError("make_transport() must be overridden")

    async def make_patient_transport(self) -> Transport:
        """Like ``make_transport``, with a lease that does not expire on a busy machine, such as 30
        seconds. Used by nearly all tests, because no lease may expire in them."""
        return await self.make_transport()

    def queue_name(self) -> str:
        """A unique queue name."""
        return f"jobs-{uuid4().hex[:12]}"

    async def tidy_up(self) -> None:
        """Delete the queue after a test, if the provider cannot."""

    # -- for the tests ----------------------------------------------------------------------------

    provider: JobProvider
    queue: Queue
    _workers: list[Worker]
    _subscriptions: list[Subscription]

    @pytest_asyncio.fixture(autouse=True)
    async def _prepare(self) -> AsyncIterator[None]:
        transport = await self.make_patient_transport()
        self.provider = JobProvider(transport, priorities=self.priorities)
        self._workers, self._subscriptions = [], []
        self.queue = Queue(self.queue_name(), provider=self.provider)
        await self.queue.open()
        yield
        for worker in self._workers:
            await worker.close(finish_active=False)
        for subscription in self._subscriptions:
            await subscription.close()
        if self.can.delete:
            await self.queue.delete()
        await self.queue.shutdown(disconnect=True)
        await self.tidy_up()

    @property
    def can(self) -> JobCapabilities:
        """The capabilities of the provider."""
        return self.provider.capabilities

    def _need(self, **abilities: bool) -> None:
        lacking = [name for name, able in abilities.items() if not able]
        if lacking:
            pytest.skip(f"the provider declares no {', '.join(lacking)}")

    async def _work(self, handler: Callable[[ActiveJob[Any]], Any], **options: Any) -> Worker:
        options.setdefault("error_backoff", 0.1)
        worker = Worker(self.queue, handler, **options)
        self._workers.append(worker)
        await worker.start()
        return worker

    async def _full_name(self) -> str:
        return await self.provider.store.open_jobs(self.queue.name)

    async def _subscribe(self, transport: Transport | None = None) -> Subscription:
        transport = transport or self.provider.transport
        subscription = await transport.subscribe(await self._full_name(), prefetch=100)
        self._subscriptions.append(subscription)
        return subscription

    async def _fetch(self, subscription: Subscription, limit: int) -> list[Delivery]:
        """``limit`` jobs; fewer only if nothing more comes."""
        found: list[Delivery] = []
        try:
            async with asyncio.timeout(self.patience):
                while len(found) < limit:
                    found += await subscription.receive(limit - len(found))
        except TimeoutError:
            pass
        return found

    async def _nothing(self, subscription: Subscription) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(self.quiet):
                await subscription.receive(1)

    async def _until(self, condition: Callable[[], Any]) -> None:
        await wait_for(condition, timeout=self.patience)

    async def _status(self, job_id: str) -> str | None:
        job = await self.queue.get(job_id)
        return None if job is None else job.status

    # -- adding -----------------------------------------------------------------------------------

    async def test_an_added_job_waits(self) -> None:
        job = await self.queue.add("welcome", {"to": "ada"}, attempts=5, metadata={"tenant": "t1"})
        assert (job.name, job.queue, job.status) == ("welcome", self.queue.name, "waiting")
        assert (job.attempts, job.max_attempts, job.metadata) == (0, 5, {"tenant": "t1"})
        if self.can.find:
            found = await self.queue.get(job.id)
            assert found is not None
            assert (found.name, found.queue, found.status) == (job.name, job.queue, "waiting")
            assert (found.data, found.metadata) == ({"to": "ada"}, {"tenant": "t1"})
            assert (found.attempts, found.max_attempts) == (0, 5)
            assert abs((found.created_at - job.created_at).total_seconds()) < 1
            assert await self.queue.get("unknown") is None

    async def test_handlers_get_the_data_that_was_added(self) -> None:
        seen: dict[str, Any] = {}

        async def handle(job: ActiveJob[Any]) -> None:
            seen[job.id] = job.data

        jobs = await self.queue.add_many([("any", data) for data in _DATA])
        await self._work(handle)
        await self._until(lambda: len(seen) == len(_DATA))
        assert [seen[job.id] for job in jobs] == list(_DATA)

    async def test_an_id_is_added_once(self) -> None:
        if not self.can.unique_ids:
            await self.queue.add("first", 1, job_id="the-id")
            await self.queue.add("second", 2, job_id="the-id")  # it cannot detect duplicates
            return
        await self.queue.add("first", 1, job_id="the-id")
        with pytest.raises(DuplicateJobError) as caught:
            await self.queue.add("second", 2, job_id="the-id")
        assert (caught.value.code, caught.value.job_id) == ("DUPLICATE", "the-id")
        assert (caught.value.queue, caught.value.retryable) == (self.queue.name, False)
        found = await self.queue.get("the-id")
        assert found is not None
        assert (found.name, found.data) == ("first", 1)

    async def test_many_add_at_once(self) -> None:
        added = await asyncio.gather(*(self.queue.add("one", n) for n in range(20)))
        assert len({job.id for job in added}) == 20
        found = await self._fetch(await self._subscribe(), 20)
        assert len(found) == 20

    # -- fetching ---------------------------------------------------------------------------------

    async def test_no_more_is_fetched_than_asked_for(self) -> None:
        await self.queue.add_many([("one", n) for n in range(5)])
        subscription = await self._subscribe()
        assert 1 <= len(first := await subscription.receive(3)) <= 3
        assert len(await self._fetch(subscription, 5 - len(first))) == 5 - len(first)
        await self._nothing(subscription)

    async def test_concurrent_fetches_share_no_job(self) -> None:
        await self.queue.add_many([("one", n) for n in range(30)])
        subscriptions = [await self._subscribe() for _ in range(3)]
        ids: list[Any] = []

        async def fetch(subscription: Subscription) -> None:
            while True:
                ids.extend(one.headers["job.id"] for one in await subscription.receive(5))

        fetching = [asyncio.create_task(fetch(one)) for one in subscriptions]
        await self._until(lambda: len(ids) >= 30)
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
        assert len(ids) == len(set(ids)) == 30

    async def test_a_delayed_job_is_not_fetched_early(self) -> None:
        self._need(delays=self.can.delays)
        job = await self.queue.add("much later", 1, delay=600)
        assert job.status == "delayed"
        assert job.scheduled_for is not None
        if self.can.find:
            found = await self.queue.get(job.id)
            assert found is not None
            assert found.status == "delayed"
            assert found.scheduled_for is not None
            assert abs((found.scheduled_for - job.scheduled_for).total_seconds()) < 1
        subscription = await self._subscribe()
        await self._nothing(subscription)
        loop = asyncio.get_running_loop()
        added = loop.time()
        await self.queue.add("later", 1, delay=self.delay)
        (delivery,) = await self._fetch(subscription, 1)
        assert delivery.headers["job.name"] == "later"
        assert loop.time() - added >= self.delay - 0.01

    async def test_a_higher_priority_comes_first(self) -> None:
        self._need(priorities=self.can.priorities)
        for priority in (1, 9, None, 5):
            await self.queue.add("one", priority, priority=priority)
        found = await self._fetch(await self._subscribe(), 4)
        data = [msgspec.json.decode(one.body)["_jobData"] for one in found]
        assert data == [9, 5, 1, None]

    async def test_a_released_job_counts_no_attempt(self) -> None:
        await self.queue.add("one", 1)
        subscription = await self._subscribe()
        (delivery,) = await self._fetch(subscription, 1)
        assert await self.provider.transport.settle([Release(delivery.receipt)]) == [None]
        await subscription.close()
        attempts: list[int] = []

        async def handle(job: ActiveJob[Any]) -> None:
            attempts.append(job.attempts)

        await self._work(handle)
        await self._until(lambda: attempts)
        if self.provider.transport.capabilities.attempt_tracking:
            assert attempts == [0]

    # -- completing -------------------------------------------------------------------------------

    async def test_a_completed_job_is_kept_unless_asked(self) -> None:
        async def handle(job: ActiveJob[Any]) -> dict[str, int]:
            return {"sum": job.data + 1}

        if not self.can.keep:
            return
        kept = await self.queue.add("kept", 1)
        gone = await self.queue.add("gone", 2, remove_on_complete=True)
        await self._work(handle)
        await self._until(lambda: self._is(kept.id, "completed"))
        await self._until(lambda: self._is(gone.id, None))
        found = await self.queue.get(kept.id)
        assert found is not None
        assert found.attempts == 1
        assert found.completed_at is not None
        assert found.processed_at is not None
        assert found.error is None
        if self.can.results:
            assert found.result == {"sum": 2}
        listed = await self.queue.list("completed")
        assert [job.id for job in listed] == [kept.id]
        with pytest.raises(DuplicateJobError):
            await self.queue.add("kept", 1, job_id=kept.id)
        await self.queue.add("gone", 2, job_id=gone.id)

    async def _is(self, job_id: str, status: str | None) -> bool:
        return await self._status(job_id) == status

    async def test_only_so_many_completed_jobs_are_kept(self) -> None:
        self._need(keep=self.can.keep)

        async def handle(job: ActiveJob[Any]) -> None:
            pass

        await self._work(handle, concurrency=1)
        for number in range(5):
            await self.queue.add("one", number, job_id=f"job-{number}", remove_on_complete=2)
            await self._until(lambda: self._is(f"job-{number}", "completed"))  # noqa: B023
        listed = await self.queue.list("completed")
        assert [job.id for job in listed] == ["job-4", "job-3"]

    async def test_a_job_that_asks_for_a_retry_gets_it_when_it_asked(self) -> None:
        started: list[float] = []

        async def handle(job: ActiveJob[Any]) -> None:
            started.append(asyncio.get_running_loop().time())
            if len(started) == 1:
                raise DoRetry("not yet", delay=self.delay if self.can.delays else None)

        await self._work(handle)
        await self.queue.add("one", attempts=3, backoff=Fixed(0.001))
        await self._until(lambda: len(started) == 2)
        if self.can.delays:
            assert started[1] - started[0] >= self.delay * 0.9

    async def test_a_declared_schedule_is_kept_and_goes_with_its_declaration(self) -> None:
        self._need(schedules=self.can.schedules)

        async def report() -> None: ...

        for recurring in ({"cron": "@daily"}, {"cron": "0 7 * * *", "timezone": "Asia/Tokyo"}, {}):
            given: dict[str, Any] = recurring
            queue: Any = Queue(self.queue.name, provider=self.provider)
            queue.job(**given)(report)
            async with Worker(queue):
                found = [(one.key, one.cron) for one in await self.queue.schedules()]
            cron = given.get("cron", "").replace("@daily", "0 0 * * *")
            assert found == ([("@report", cron)] if given else [])

    # -- canceling --------------------------------------------------------------------------------

    async def test_a_job_that_waits_is_canceled(self) -> None:
        self._need(cancel=self.can.cancel)
        waiting, delayed = await self.queue.add("one"), await self.queue.add("one", delay=600)
        for job in (waiting, delayed):
            handle = self.queue.handle(job.id)
            assert await handle.cancel() is True
            with pytest.raises(JobNotFoundError):
                await handle.cancel()
            with pytest.raises(JobNotFoundError):
                await handle.result(timeout=5)
        await self._nothing(await self._subscribe())

    async def test_a_job_that_runs_is_canceled_and_fails(self) -> None:
        self._need(cancel=self.can.cancel)
        told: list[Any] = []
        ended: list[str] = []

        async def handle(job: ActiveJob[Any]) -> str:
            if job.data == "long":
                try:
                    await asyncio.sleep(3600)
                finally:
                    ended.append(job.id)
            return "done"

        worker = await self._work(handle, concurrency=1)
        worker.on("failed", told.append)
        job = await self.queue.add("one", "long", attempts=5, unique="only-one")
        canceled = self.queue.handle(job.id)
        await self._until(lambda: self._is(job.id, "active"))
        assert await canceled.cancel("it costs too much") is True
        found = await canceled.job()
        assert (found.status, found.error) == ("failed", "canceled: it costs too much")
        assert found.attempts == 1
        with pytest.raises(JobFailedError, match="canceled: it costs too much"):
            await canceled.result(timeout=5)
        assert await canceled.cancel() is False
        await self._until(lambda: told)
        assert (ended, worker.active_jobs) == ([job.id], 0)
        (event,) = told
        assert (event.job_id, event.will_retry, event.permanent) == (job.id, False, True)
        assert isinstance(event.error, JobCanceledError)
        next_ = await self.queue.add("one", "short", unique="only-one")  # its key is free again
        assert await self.queue.handle(next_.id).result(timeout=self.patience) == "done"
        assert worker.metrics().messages_dead_lettered == 1
        assert worker.health().last_error is not None
        assert (await self.queue.stats()).failed == 1
        assert ended == [job.id], "it did not run again"
        await self.queue.retry(job.id)
        await self._until(lambda: self._is(job.id, "active"))
        assert await self.queue.cancel(job.id) is True
        await self._until(lambda: len(told) == 2)

    async def test_what_waits_for_a_canceled_job_fails(self) -> None:
        self._need(cancel=self.can.cancel, flows=self.can.flows)

        async def handle(job: ActiveJob[Any]) -> None:
            await asyncio.sleep(3600)

        step = self.queue.step
        await self._work(handle)
        handle_of_last = await chain(step("one", {"n": 1}), step("two", {"n": RESULT})).add()
        (first,) = await self._listed("active")
        assert await self.queue.cancel(first) is True
        with pytest.raises(JobFailedError):
            await handle_of_last.result(timeout=self.patience)

    async def _listed(self, status: JobStatus) -> list[str]:
        found: list[str] = []

        async def look() -> bool:
            found[:] = [job.id for job in await self.queue.list(status)]
            return bool(found)

        await self._until(look)
        return found

    async def test_many_complete_at_once(self) -> None:
        await self.queue.add_many([("one", n) for n in range(10)])
        found = await self._fetch(await self._subscribe(), 10)
        settle = self.provider.transport.settle
        outcomes = await asyncio.gather(*(settle([Complete(one.receipt)]) for one in found))
        assert [list(one) for one in outcomes] == [[None]] * 10
        if self.can.counts:
            await self._until(self._is_empty)

    async def _is_empty(self) -> bool:
        stats = await self.queue.stats()
        return stats.waiting + stats.delayed + stats.active == 0

    # -- failing ----------------------------------------------------------------------------------

    async def test_a_failing_job_is_retried_and_then_kept_as_failed(self) -> None:
        attempts: list[int] = []
        told: list[Any] = []

        async def handle(job: ActiveJob[Any]) -> None:
            attempts.append(job.attempts)
            raise ValueError(f"attempt {job.attempts}")

        worker = await self._work(handle)
        worker.on("failed", told.append)
        job = await self.queue.add("bad", 1, attempts=3, backoff=Fixed(0.05))
        await self._until(lambda: len(told) == 3)
        assert attempts == [0, 1, 2]
        assert [event.will_retry for event in told] == [True, True, False]
        assert {event.job_id for event in told} == {job.id}
        if self.can.find:
            found = await self.queue.get(job.id)
            assert found is not None
            assert (found.status, found.attempts, found.error) == ("failed", 3, "attempt 2")
            assert found.failed_at is not None
            assert (found.name, found.data, found.max_attempts) == ("bad", 1, 3)
        if self.can.dead_letters and self.can.retry:
            letters = await self.queue.list("failed", limit=5)
            assert [letter.id for letter in letters] == [job.id]
            assert letters[0].error == "attempt 2"

    async def test_a_permanent_error_is_not_retried(self) -> None:
        told: list[Any] = []
        runs: list[str] = []

        async def handle(job: ActiveJob[Any]) -> None:
            runs.append(job.id)
            raise PermanentJobError("never")

        worker = await self._work(handle)
        worker.on("failed", told.append)
        await self.queue.add("bad", 1, attempts=5, backoff=Fixed(0.01))
        await self._until(lambda: told)
        assert (told[0].will_retry, told[0].permanent, len(runs)) == (False, True, 1)

    async def test_a_failed_job_is_retried_with_all_its_attempts(self) -> None:
        if not self.can.retry:
            with pytest.raises(JobsUnsupportedError):
                await self.queue.retry("any")
            return
        attempts: list[int] = []

        async def handle(job: ActiveJob[Any]) -> None:
            attempts.append(job.attempts)
            if len(attempts) == 1:
                raise PermanentJobError("not yet")

        worker = await self._work(handle)
        done: list[Any] = []
        worker.on("completed", done.append)
        worker.on("failed", done.append)
        job = await self.queue.add("bad", {"n": 1}, attempts=2)
        await self._until(lambda: len(done) == 1)
        await self._until(lambda: self._has_letters(1))
        await self.queue.retry(job.id)
        await self._until(lambda: len(done) == 2)
        assert attempts == [0, 0]
        await self._until(lambda: self._has_letters(0))

    async def _has_letters(self, count: int) -> bool:
        return len(await self.queue.list("failed")) == count

    async def test_retrying_what_is_not_there_or_not_failed(self) -> None:
        self._need(retry=self.can.retry)
        with pytest.raises(JobNotFoundError) as caught:
            await self.queue.retry("unknown")
        assert (caught.value.resource_id, caught.value.resource_type) == ("unknown", "job")
        if self.can.find:
            job = await self.queue.add("one", 1)
            with pytest.raises(JobStateError):
                await self.queue.retry(job.id)

    async def test_failed_jobs_are_dead_letters_like_any_other(self) -> None:
        self._need(retry=self.can.retry)
        fails = True

        async def handle(job: ActiveJob[Any]) -> Any:
            if fails and job.data["n"] < 100:
                raise ValueError(f"broken: {job.data['n']}")
            return job.data

        await self._work(handle)
        jobs = [
            await self.queue.add("one" if n else "zero", {"n": n}, attempts=1, metadata={"t": "x"})
            for n in range(4)
        ]
        await self._until(lambda: self._failed_number(4))
        office = self.queue.dead_letters
        letters = {letter.id: letter async for letter in office.browse()}
        assert letters.keys() == {job.id for job in jobs}
        first = letters[jobs[0].id]
        assert (first.name, first.receiver, first.attempts) == ("zero", "zero", 1)
        assert (first.payload, first.error) == ({"n": 0}, "broken: 0")
        assert first.error_type == "ValueError"
        assert dict(first.contents.metadata) == {"t": "x"}
        assert await office.count() == 4
        assert await office.count(Selection(name="one", error="BROKEN: 2")) == 1
        assert await self._worker.dead_letters.count(Selection(name="zero")) == 1

        (place,) = await office.choose(Selection(where=lambda data: data["n"] == 1))
        moved = await office.redrive_edited(place, {"n": 100}, expected={"n": 7})
        assert (moved.done, len(moved.failed)) == (0, 1)
        (place,) = await office.choose(Selection(where=lambda data: data["n"] == 1))
        moved = await office.redrive_edited(place, {"n": 100}, expected={"n": 1}, patience=10)
        assert (moved.done, moved.failed) == (1, [])
        assert (await office.purge(Selection(name="zero"))).done == 1
        await self._until(lambda: self._failed_number(2))
        fails = False
        moved = await office.redrive(Selection())
        assert (moved.done, moved.failed) == (2, [])
        await self._until(lambda: self._failed_number(0))
        assert [letter async for letter in office.browse()] == []
        if self.can.find:
            edited = jobs[1].id
            await self._until(lambda: self._is(edited, "completed"))
            found = await self.queue.get(edited)
            assert found is not None
            assert (found.data, found.attempts, found.metadata) == ({"n": 100}, 1, {"t": "x"})
            assert await self._is(jobs[0].id, None)

    async def _failed_number(self, number: int) -> bool:
        return await self.queue.dead_letters.count() == number

    @property
    def _worker(self) -> Worker:
        return self._workers[-1]

    async def test_dead_letters_are_limited(self) -> None:
        self._need(retry=self.can.retry)

        async def handle(job: ActiveJob[Any]) -> None:
            raise PermanentJobError("no")

        await self.queue.add_many([("bad", n) for n in range(5)])
        await self._work(handle)
        await self._until(lambda: self._has_letters(5))
        assert len(await self.queue.list("failed", limit=2)) == 2

    async def test_failed_jobs_can_be_removed_at_once(self) -> None:
        self._need(keep=self.can.keep)

        async def handle(job: ActiveJob[Any]) -> None:
            raise PermanentJobError("no")

        job = await self.queue.add("bad", 1, remove_on_fail=True)
        await self._work(handle)
        await self._until(lambda: self._is(job.id, None))
        assert await self.queue.list("failed") == []

    # -- a worker that dies -----------------------------------------------------------------------

    async def test_a_job_of_a_dead_worker_runs_again_and_its_attempt_counts(self) -> None:
        transport = await self.make_transport()
        if transport is self.provider.transport:
            pytest.skip("a worker in this process cannot die alone")
        await transport.connect()
        await JobProvider(transport).store.open_jobs(self.queue.name)
        await self.queue.add("one", 1)
        (delivery,) = await self._fetch(await self._subscribe(transport), 1)
        assert delivery.headers["job.name"] == "one"
        await transport.disconnect()  # without having settled it
        attempts: list[int] = []

        async def handle(job: ActiveJob[Any]) -> None:
            attempts.append(job.attempts)

        await self._work_elsewhere(handle, short_lease=True)
        await self._until(lambda: attempts)
        if transport.capabilities.attempt_tracking:
            assert attempts[0] == 1
        if self.can.counts:
            await self._until(self._is_empty)

    # -- looking and changing ---------------------------------------------------------------------

    async def test_counts(self) -> None:
        if not self.can.counts:
            with pytest.raises(JobsUnsupportedError):
                await self.queue.stats()
            return
        await self.queue.add_many([("one", n) for n in range(3)])
        if self.can.delays:
            await self.queue.add("later", 1, delay=600)
        await self._until(lambda: self._counted(3))
        stats = await self.queue.stats()
        assert stats.waiting == 3
        if "delayed" not in stats.unknown and self.can.delays:
            assert stats.delayed == 1
        assert stats.paused is False
        health = await self.queue.health()
        assert health.depth is None or health.depth >= 3
        assert health.error_rate == (None if "completed" in stats.unknown else 0.0)

    async def _counted(self, waiting: int) -> bool:
        return (await self.queue.stats()).waiting == waiting

    async def test_finished_jobs_are_counted(self) -> None:
        self._need(counts=self.can.counts, keep=self.can.keep)

        async def handle(job: ActiveJob[Any]) -> None:
            if job.data == "bad":
                raise PermanentJobError("no")

        await self.queue.add("good", "good", remove_on_complete=False)
        await self.queue.add("bad", "bad")
        await self._work(handle)
        await self._until(self._is_empty)
        await self._until(lambda: self._has_letters(1))
        stats, health = await self.queue.stats(), await self.queue.health()
        assert (stats.completed, stats.failed) == (1, 1)
        assert (health.completed, health.failed, health.error_rate) == (1, 1, 0.5)

    async def test_workers_are_counted(self) -> None:
        self._need(counts=self.can.counts)

        async def handle(job: ActiveJob[Any]) -> None: ...

        workers = [await self._work(handle) for _ in range(2)]
        for number in (2, 1, 0):
            await self._until(lambda: self._has_workers(number))  # noqa: B023
            if number:
                await workers.pop().close()

    async def _has_workers(self, number: int) -> bool:
        found = (await self.queue.health()).active_workers
        return found == number if self.counts_workers else found is None

    async def test_jobs_are_listed_by_state(self) -> None:
        if not self.can.list:
            with pytest.raises(JobsUnsupportedError):
                await self.queue.list("waiting")
            return
        first = await self.queue.add("one", 1)
        second = await self.queue.add("two", 2)
        later = await self.queue.add("later", 3, delay=600)
        assert [job.id for job in await self.queue.list("waiting")] == [first.id, second.id]
        assert [job.id for job in await self.queue.list("waiting", 1)] == [first.id]
        assert [job.id for job in await self.queue.list("waiting", 1, skip=1)] == [second.id]
        assert [job.id for job in await self.queue.list("delayed")] == [later.id]
        assert await self.queue.list("active") == []
        await self._fetch(await self._subscribe(), 1)
        assert [job.id for job in await self.queue.list("active")] == [first.id]

    async def test_a_job_can_be_removed(self) -> None:
        if not self.can.remove:
            with pytest.raises(JobsUnsupportedError):
                await self.queue.remove("any")
            return
        waiting = await self.queue.add("one", 1)
        delayed = await self.queue.add("later", 2, delay=600)
        for job in (waiting, delayed):
            await self.queue.remove(job.id)
            assert await self.queue.get(job.id) is None
            with pytest.raises(JobNotFoundError):
                await self.queue.remove(job.id)
        again = await self.queue.add("one", 1, job_id=waiting.id)
        subscription = await self._subscribe()
        (delivery,) = await self._fetch(subscription, 1)
        assert delivery.headers["job.id"] == again.id
        await self._nothing(subscription)
        with pytest.raises(JobStateError):
            await self.queue.remove(again.id)

    async def test_progress_is_kept(self) -> None:
        self._need(progress=self.can.progress)
        began, go_on = asyncio.Event(), asyncio.Event()

        async def handle(job: ActiveJob[Any]) -> None:
            await job.update_progress({"percent": 50})
            began.set()
            await go_on.wait()

        job = await self.queue.add("long", 1)
        worker = await self._work(handle)
        told: list[Any] = []
        worker.on("progress", told.append)
        await asyncio.wait_for(began.wait(), self.patience)
        found = await self.queue.get(job.id)
        assert found is not None
        assert (found.status, found.progress) == ("active", {"percent": 50})
        go_on.set()

    async def test_progress_of_a_lost_job_is_refused(self) -> None:
        self._need(progress=self.can.progress)
        await self.queue.add("one", 1)
        (delivery,) = await self._fetch(await self._subscribe(), 1)
        await self.provider.transport.settle([Complete(delivery.receipt)])
        with pytest.raises(LeaseLostError):
            await self.provider.store.set_progress(delivery.receipt, b"1")

    async def test_nothing_is_fetched_while_paused(self) -> None:
        if not self.can.pause:
            with pytest.raises(JobsUnsupportedError):
                await self.queue.pause()
            return
        before = await self._subscribe()
        waiting = asyncio.create_task(before.receive(1))
        await self.queue.pause()
        await self.queue.pause()
        await self.queue.add("one", 1)
        if self.can.delays:
            await self.queue.add("soon", 2, delay=0.05)
        assert (await self.queue.stats()).paused
        await self._nothing(await self._subscribe())
        assert not waiting.done()
        await self.queue.resume()
        assert not (await self.queue.stats()).paused
        async with asyncio.timeout(self.patience):
            assert len(await waiting) == 1

    async def test_a_deleted_queue_is_empty_and_takes_jobs(self) -> None:
        if not self.can.delete:
            with pytest.raises(JobsUnsupportedError):
                await self.queue.delete()
            return
        job = await self.queue.add("one", 1)
        if self.can.delays:
            await self.queue.add("soon", 1, delay=self.delay)
            await self.queue.add("later", 1, delay=60)
        await self.queue.delete()
        counts = await self.queue.stats()
        assert (counts.waiting, counts.delayed) == (0, 0)
        if self.can.find:
            assert await self.queue.get(job.id) is None
        await self.queue.add("two", 2, job_id=job.id)
        subscription = await self._subscribe()
        (delivery,) = await self._fetch(subscription, 1)
        assert delivery.headers["job.name"] == "two"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(self.quiet + self.delay):
                await subscription.receive(1)

    # -- unique jobs ------------------------------------------------------------------------------

    async def test_a_unique_key_is_added_once(self) -> None:
        self._need(unique=self.can.unique)
        first = await self.queue.add("one", 1, unique="key")
        second = await self.queue.add("one", 2, unique="key")
        other = await self.queue.add("one", 3, unique="other")
        assert second.id == first.id != other.id
        assert second.data == 1
        many = await self.queue.add_many([("one", 4), ("one", 5)], unique="other")
        assert [one.id for one in many] == [other.id, other.id]
        done: list[str] = []

        async def handle(job: ActiveJob[Any]) -> None:
            done.append(job.id)

        await self._work(handle)
        await self._until(lambda: len(done) == 2)
        await self._until(self._is_empty)
        third = await self.queue.add("one", 4, unique="key")
        assert third.id != first.id

    async def test_a_unique_key_is_taken_for_its_window(self) -> None:
        self._need(unique=self.can.unique)
        done: list[str] = []

        async def handle(job: ActiveJob[Any]) -> None:
            done.append(job.id)

        await self._work(handle)
        first = await self.queue.add(
            "one", 1, unique=Unique("key", within=600), remove_on_complete=False
        )
        await self._until(lambda: self._is(first.id, "completed"))
        second = await self.queue.add("one", 2, unique=Unique("key", within=600))
        assert second.id == first.id

    async def test_a_job_that_cannot_be_stored_takes_no_unique_key(self) -> None:
        self._need(unique=self.can.unique)
        odd: Any = object()
        headers = {"job.unique": "key", "job.uniqueFor": 600_000, "job.odd": odd}
        bad = Message("bad", await self._full_name(), b'{"_jobData":1}', headers, priority=odd)
        (error,) = await self.provider.store.add_jobs([bad])
        assert isinstance(error, UnstorableError)
        job = await self.queue.add("one", 1, unique=Unique("key", within=600))
        assert (await self.queue.add("one", 2, unique="key")).id == job.id

    # -- recurring jobs ---------------------------------------------------------------------------

    async def test_a_recurring_job_comes_again_and_once_each_time(self) -> None:
        if not self.can.schedules:
            with pytest.raises(JobsUnsupportedError):
                await self.queue.schedule("tick", "tick", every=1)
            return
        seen: list[ActiveJob[Any]] = []

        async def handle(job: ActiveJob[Any]) -> None:
            seen.append(job)

        for _ in range(2):
            await self._work(handle)
        made = await self.queue.schedule("tick", "tick", {"n": 1}, every=0.5, attempts=7)
        assert (made.key, made.name, made.data, made.every) == ("tick", "tick", {"n": 1}, 0.5)
        await self._until(lambda: len(seen) >= 3)
        assert len({job.id for job in seen}) == len(seen)
        assert {(job.name, str(job.data), job.max_attempts) for job in seen} == {
            ("tick", "{'n': 1}", 7)
        }
        (listed,) = await self.queue.schedules()
        assert (listed.key, listed.name, listed.data, listed.every) == (
            "tick",
            "tick",
            {"n": 1},
            0.5,
        )
        assert await self.queue.unschedule("tick")
        assert not await self.queue.unschedule("tick")
        assert await self.queue.schedules() == []

    async def test_a_schedule_is_replaced_by_its_key(self) -> None:
        self._need(schedules=self.can.schedules)
        await self.queue.schedule("key", "first", every=3600)
        await self.queue.schedule("key", "second", cron="0 7 * * *", timezone="Europe/Berlin")
        (found,) = await self.queue.schedules()
        assert (found.name, found.cron, found.every) == ("second", "0 7 * * *", None)
        assert found.timezone == "Europe/Berlin"
        assert found.next_at is not None

    # -- chains and groups ------------------------------------------------------------------------

    async def _calculate(self, job: ActiveJob[Any]) -> Any:
        data: dict[str, Any] = job.data
        if data.get("fail") and not self.mended:
            raise PermanentJobError("broken")
        if "numbers" in data:
            return sum(data["numbers"])
        return data["number"] + data.get("plus", 0)

    mended = False

    async def test_a_chain_hands_results_on(self) -> None:
        if not self.can.flows:
            flow = chain(self.queue.step("one", {}), self.queue.step("two", {}))
            with pytest.raises(JobsUnsupportedError):
                await flow.add()
            return
        step = self.queue.step
        flow = chain(
            step("add", {"number": 1, "plus": 1}),
            step("add", {"number": RESULT, "plus": 10}),
            step("add", {"number": RESULT, "plus": 100}, remove_on_complete=False),
        )
        handle = await flow.add()
        assert await handle.status() == "waiting"
        await self._work(self._calculate)
        assert await handle.result(timeout=self.patience) == 112
        await self._until(self._is_empty)

    async def test_a_group_is_awaited(self) -> None:
        self._need(flows=self.can.flows)
        step = self.queue.step
        inner = chain(step("add", {"number": 5}), step("add", {"number": RESULT, "plus": 5}))
        parts = [step("add", {"number": number}) for number in range(10)]
        last = step("sum", {"numbers": RESULT}, remove_on_complete=False)
        handle = await group(inner, *parts, then=last).add()
        await self._work(self._calculate)
        assert await handle.result(timeout=self.patience) == 10 + 45
        single = step("sum", {"numbers": RESULT}, remove_on_complete=False)
        handle = await group(step("add", {"number": 3}), then=single).add()
        assert await handle.result(timeout=self.patience) == 3

    async def test_a_failed_step_fails_what_waits_for_it_until_it_is_retried(self) -> None:
        self._need(flows=self.can.flows, retry=self.can.retry)
        step = self.queue.step
        bad = step("add", {"number": 1, "fail": True})
        middle = step("add", {"number": RESULT, "plus": 1})
        last = step("add", {"number": RESULT, "plus": 1}, remove_on_complete=False)
        handle = await chain(bad, middle, last).add()
        await self._work(self._calculate)
        with pytest.raises(JobFailedError, match="broken"):
            await handle.result(timeout=self.patience)
        await self._until(lambda: self._has_letters(3))
        self.mended = True
        await self.queue.retry(f"{handle.id}.0.0")
        assert await handle.result(timeout=self.patience) == 3
        await self._until(lambda: self._has_letters(0))

    async def test_what_waits_for_a_removed_job_fails(self) -> None:
        self._need(flows=self.can.flows, remove=self.can.remove, retry=self.can.retry)
        step = self.queue.step
        parts = [step("add", {"number": number}) for number in range(2)]
        handles = [
            await chain(parts[0], step("add", {"number": RESULT})).add(),
            await group(*parts, then=step("sum", {"numbers": RESULT})).add(),
            await group(*parts, then=step("add", {"number": 5})).add(),
        ]
        for handle in handles:
            await self.queue.remove(f"{handle.id}.0")
        await self._work(self._calculate)
        for retried in (False, True):
            for handle in handles:
                if retried:
                    await self.queue.retry(handle.id)
                with pytest.raises(JobFailedError, match=r"\.0'.*it was removed"):
                    await handle.result(timeout=self.patience)
        await self._until(lambda: self._has_letters(len(handles)))

    async def test_a_job_that_waits_for_others_can_be_removed(self) -> None:
        self._need(flows=self.can.flows, remove=self.can.remove)
        step = self.queue.step
        parts = [step("add", {"number": number}) for number in range(2)]
        handle = await group(*parts, then=step("sum", {"numbers": RESULT})).add()
        await self.queue.remove(handle.id)
        await self._work(self._calculate)
        job = await self.queue.add("add", {"number": 7})
        assert await self.queue.handle(job.id).result(timeout=self.patience) == 7
        await self._until(self._is_empty)
        assert await self.queue.get(handle.id) is None
        assert await self.queue.list("failed") == []

    # -- limits over all workers ------------------------------------------------------------------

    async def _work_elsewhere(
        self,
        handler: Callable[[ActiveJob[Any]], Any],
        *,
        short_lease: bool = False,
        **options: Any,
    ) -> None:
        """A worker with its own transport, as in another process."""
        make = self.make_transport if short_lease else self.make_patient_transport
        transport = await make()
        provider = JobProvider(transport, owned=transport is not self.provider.transport)
        worker = Worker(self.queue.name, handler, provider=provider, **options)
        self._workers.append(worker)
        await worker.start()

    async def test_a_rate_limit_holds_over_all_workers(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        most, window, runs = 4, 1.0, list[float]()
        loop = asyncio.get_running_loop()

        async def handle(job: ActiveJob[Any]) -> None:
            runs.append(loop.time())

        await self.queue.add_many([("one", number) for number in range(10)])
        options: dict[str, Any] = {"rate_limit": RateLimit(most, per=window)}
        if not self.can.rate_limit:
            await self._warns(handle, options, caplog)
            await self._until(lambda: len(runs) == 10)
            return
        began = loop.time()
        await self._work(handle, **options)
        await self._work_elsewhere(handle, **options)
        await self._until(lambda: len(runs) == 10)
        # Whatever else delays a job: no window has more than its share.
        for number, when in enumerate(sorted(runs)):
            assert when - began >= number // most * window - 0.02

    async def test_a_rate_limit_can_be_changed_and_lifted(self) -> None:
        self._need(rate_limit=self.can.rate_limit)
        runs: list[str] = []

        async def handle(job: ActiveJob[Any]) -> None:
            runs.append(job.id)

        worker = await self._work(handle, rate_limit=RateLimit(1, per=600))
        await self.queue.add_many([("one", number) for number in range(5)])
        await self._until(lambda: len(runs) == 1)
        worker.rate_limit = RateLimit(3, per=600)
        await self._until(lambda: len(runs) == 3)
        worker.rate_limit = None
        await self._until(lambda: len(runs) == 5)

    async def _warns(
        self,
        handler: Callable[[ActiveJob[Any]], Any],
        options: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A worker with options that the provider lacks says so, and works without them."""
        reported: list[Unsupported] = []
        with caplog.at_level(logging.WARNING, "matador.jobs"):
            await self._work(handler, on_unsupported=reported.append, **options)
        assert [(one.option, one.value) for one in reported] == list(options.items())
        warned = [one for one in caplog.records if "does not support" in one.getMessage()]
        assert len(warned) == len(options)

    async def test_so_many_jobs_of_a_key_run_at_once_over_all_workers(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        running, most, done = Counter[str](), Counter[str](), list[str]()

        async def handle(job: ActiveJob[Any]) -> None:
            key = job.data
            running[key] += 1
            most[key] = max(most[key], running[key])
            await asyncio.sleep(0.01)
            running[key] -= 1
            done.append(key)

        options: dict[str, Any] = {"concurrency_per_key": 2}
        if not self.can.concurrency_per_key:
            await self._warns(handle, options, caplog)
            await self.queue.add("one", "any")
            await self._until(lambda: done == ["any"])
            return
        for key in ("a", "b", "a"):
            await self.queue.add_many([("one", key)] * 10, concurrency_key=key)
        await self.queue.add_many([("one", "none")] * 10)
        await self._work(handle, concurrency=8, **options)
        await self._work_elsewhere(handle, concurrency=8, **options)
        await self._until(lambda: len(done) == 40)
        assert (most["a"], most["b"]) == (2, 2)
        if self.can.counts:
            await self._until(self._is_empty)

    async def test_a_key_that_must_wait_holds_up_no_other(self) -> None:
        self._need(concurrency_per_key=self.can.concurrency_per_key)
        go_on, began = asyncio.Event(), list[Any]()

        async def handle(job: ActiveJob[Any]) -> None:
            began.append(job.data)
            if job.data == "slow":
                await go_on.wait()

        await self.queue.add_many([("one", "slow")] * 20, concurrency_key="slow")
        await self._work(handle, concurrency=3, concurrency_per_key=1)
        for number in range(5):
            await self.queue.add("one", number, concurrency_key="other")
            await self.queue.add("one", number + 10)
        await self._until(lambda: len(began) == 11)
        assert began.count("slow") == 1
        await self._until(lambda: self._has_active(1))
        assert (await self.queue.stats()).waiting == 19
        assert len(await self.queue.list("waiting")) == 19
        go_on.set()
        await self._until(lambda: len(began) == 30)

    async def _has_active(self, number: int) -> bool:
        return (await self.queue.stats()).active == number

    async def test_jobs_of_a_key_run_by_priority_and_in_order(self) -> None:
        self._need(per_key=self.can.concurrency_per_key, priorities=self.can.priorities)
        ran: list[int] = []

        async def handle(job: ActiveJob[Any]) -> None:
            ran.append(job.data)
            if job.data == 0:  # the others come while it runs
                for number, priority in ((4, None), (5, None), (2, 1), (1, 9), (3, 1)):
                    await self.queue.add("one", number, concurrency_key="k", priority=priority)

        await self._work(handle, concurrency=4, concurrency_per_key=1)
        await self.queue.add("one", 0, concurrency_key="k")
        await self._until(lambda: len(ran) == 6)
        assert ran == [0, 1, 2, 3, 4, 5]

    async def test_a_job_that_waits_for_its_retry_does_not_hold_its_key(self) -> None:
        self._need(per_key=self.can.concurrency_per_key, backoff=self.can.backoff)
        ran: list[str] = []

        async def handle(job: ActiveJob[Any]) -> None:
            ran.append(job.data)
            if job.data in ("bad", "worse") and job.attempts == 0:
                raise ValueError("once")

        await self.queue.add("one", "worse", concurrency_key="k", backoff=Fixed(600))
        await self.queue.add("one", "bad", concurrency_key="k", backoff=Fixed(self.delay))
        await self.queue.add("one", "good", concurrency_key="k")
        await self.queue.add("one", "later", concurrency_key="k", delay=self.delay)
        await self._work(handle, concurrency_per_key=1)
        await self._until(lambda: len(ran) == 5)
        assert ran[0] == "worse"
        assert sorted(ran[1:]) == ["bad", "bad", "good", "later"]

    async def test_a_worker_that_dies_lets_go_of_its_keys(self) -> None:
        self._need(concurrency_per_key=self.can.concurrency_per_key)
        await self.queue.add_many([("one", 1)] * 2, concurrency_key="k")
        dying = await self.make_transport()
        await dying.connect()
        subscription = await self._subscribe(dying)
        assert len(await self._fetch(subscription, 1)) == 1
        await subscription.close()
        if dying is not self.provider.transport:
            await dying.disconnect()  # without having settled it
        attempts: list[int] = []

        async def handle(job: ActiveJob[Any]) -> None:
            attempts.append(job.attempts)

        await self._work_elsewhere(handle, short_lease=True, concurrency_per_key=1)
        await self._until(lambda: len(attempts) >= 2)
        assert sorted(attempts)[:2] == [0, 1]

    async def test_the_number_of_jobs_of_a_key_can_be_changed(self) -> None:
        self._need(concurrency_per_key=self.can.concurrency_per_key)
        go_on, began = asyncio.Event(), list[str]()

        async def handle(job: ActiveJob[Any]) -> None:
            began.append(job.id)
            await go_on.wait()

        await self.queue.add_many([("one", 1)] * 6, concurrency_key="k")
        worker = await self._work(handle, concurrency=10, concurrency_per_key=1)
        await self._until(lambda: len(began) == 1)
        worker.concurrency_per_key = 3
        await self._until(lambda: len(began) == 3)
        worker.concurrency_per_key = None
        await self._until(lambda: len(began) == 6)
        go_on.set()

    async def test_limits_hold_for_flows_and_leave_pauses_alone(self) -> None:
        self._need(per_key=self.can.concurrency_per_key, flows=self.can.flows, pause=self.can.pause)
        running = most = 0

        async def handle(job: ActiveJob[Any]) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return 1

        step = self.queue.step
        parts = [step("one", number, concurrency_key="k") for number in range(5)]
        last = step("sum", {"numbers": RESULT}, concurrency_key="k", remove_on_complete=False)
        await self.queue.pause()
        handle_of_flow = await group(*parts, then=last).add()
        options: dict[str, Any] = {"concurrency_per_key": 1, "rate_limit": RateLimit(100, per=60)}
        await self._work(handle, **options)
        assert (await self.queue.stats()).waiting == 6
        await self.queue.resume()
        assert await handle_of_flow.result(timeout=self.patience) == 1
        assert most == 1

    # -- undeclared features ----------------------------------------------------------------------

    async def test_an_option_that_is_not_supported_is_warned_about(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        options: dict[str, Any] = {
            "delay": 600,
            "priority": 5,
            "unique": "key",
            "concurrency_key": "key",
            "job_id": "same",
            "provider_options": {"headers": {"tenant": "a"}},
        }
        names = {
            "delay": "delays",
            "priority": "priorities",
            "unique": "unique",
            "concurrency_key": "concurrency_per_key",
            "job_id": "unique_ids",
            "provider_options": "provider_options",
        }
        reported: list[Unsupported] = []
        queue = Queue(self.queue.name, provider=self.provider, on_unsupported=reported.append)
        lacking = {name for name in options if not getattr(self.can, names[name])}
        with caplog.at_level(logging.WARNING, "matador.jobs"):
            for number in range(2):
                given = {name: options[name] for name in lacking}
                await queue.add("one", number, **given)
        assert sorted(one.option for one in reported) == sorted([*lacking, *lacking])
        warned = [one for one in caplog.records if "does not support" in one.getMessage()]
        assert len(warned) == len(lacking)
        assert len(await self._fetch(await self._subscribe(), 2)) == 2
        await queue.shutdown()

    async def test_what_cannot_be_found_is_said(self) -> None:
        if not self.can.find:
            with pytest.raises(JobsUnsupportedError) as caught:
                await self.queue.get("any")
            assert caught.value.code == "UNSUPPORTED_FEATURE"

    # -- foreign programs -------------------------------------------------------------------------

    async def test_odd_messages_stop_no_worker(self) -> None:
        done: list[Any] = []
        failed: list[Any] = []

        async def handle(job: ActiveJob[Any]) -> None:
            if job.name != "good":
                raise PermanentJobError("odd")

        worker = await self._work(handle, concurrency=2)
        worker.on("completed", done.append)
        worker.on("failed", failed.append)
        full = await self._full_name()
        bodies = [
            b"",
            b"\xff\xfe",
            b"{",
            b"null",
            b'{"_jobData":',
            b'{"_jobData":1,"_metadata":[]}',
        ]
        headers: dict[str, str | int] = {"job.maxAttempts": "many", "job.attempts": -5}
        for number, body in enumerate(bodies):
            await self.queue.add("good", {"good": number})
            message = Message(f"odd-{number}-{uuid4().hex}", full, body, headers)
            await self.provider.transport.send([message])
        await self._until(lambda: len(done) == len(bodies))
        await self._until(lambda: len(failed) >= len(bodies))
