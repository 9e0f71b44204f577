"""Limits of jobs: whatever happens, they hold, and every job gets through."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest
from tests.jobs.sqlite.conftest import job
from tests.jobs.sqlite.test_limits import LEASE, Writer

from matador.errors import ConfigurationError, JobStateError, MatadorError
from matador.jobs import ActiveJob, JobProvider, Queue, RateLimit, Unsupported, Worker
from matador.model import job as names
from matador.model.job_limits import NO_LIMITS, JobLimits
from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Release,
    Retry,
    Settlement,
)
from matador.testing import ManualClock, wait_for
from matador.transports.memory import MemoryTransport
from matador.transports.memory.entry import delivery_of
from matador.transports.memory.store import MemoryStore
from matador.transports.sqlite import jobs, settle


class Store(Protocol):
    """What the test does to a provider, at once and without a loop."""

    def add(self, messages: Sequence[Message]) -> None: ...
    def take(self, limit: int, limits: JobLimits) -> Sequence[Delivery]: ...
    def settle(self, settlement: Settlement) -> MatadorError | None: ...
    def remove(self, job_id: str) -> None: ...


class InMemory:
    def __init__(self, clock: ManualClock) -> None:
        self._store = MemoryStore(MemoryTransport(lease=LEASE / 1000).capabilities, clock)
        self._store.open_jobs("q")

    def add(self, messages: Sequence[Message]) -> None:
        assert self._store.add_jobs(messages) == [None] * len(messages)

    def take(self, limit: int, limits: JobLimits) -> Sequence[Delivery]:
        holds = self._store.take_next(self._store.queue("q"), limit, limits)
        return [delivery_of("q", hold) for hold in holds]

    def settle(self, settlement: Settlement) -> MatadorError | None:
        return self._store.settle([settlement])[0]

    def remove(self, job_id: str) -> None:
        self._store.remove_job("q", job_id)


class OnSqlite:
    def __init__(self, file: Path, clock: ManualClock) -> None:
        self._writers = [Writer(file, clock) for _ in range(2)]
        self._turn = 0

    @property
    def _writer(self) -> Writer:
        """Now one process, now another."""
        self._turn += 1
        return self._writers[self._turn % 2]

    def add(self, messages: Sequence[Message]) -> None:
        self._writer.add(messages)

    def take(self, limit: int, limits: JobLimits) -> Sequence[Delivery]:
        return self._writer.claim(limit, limits).deliveries

    def settle(self, settlement: Settlement) -> MatadorError | None:
        return self._writer.run(lambda session: settle.settle(session, [settlement]))[0]

    def remove(self, job_id: str) -> None:
        self._writer.run(lambda session: jobs.remove(session, session.jobs("q"), job_id))

    def close(self) -> None:
        for writer in self._writers:
            writer.session.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    if request.param == "memory":
        yield InMemory(clock)
        return
    store = OnSqlite(tmp_path / "jobs.db", clock)
    yield store
    store.close()


def _new(random: Random, number: int) -> Message:
    key = random.choice([None, "a", "a", "a", "b", "c"])
    headers: dict[str, str | int] = {} if key is None else {names.CONCURRENCY_KEY: key}
    message = job(f"{number}")
    return Message(
        message.id,
        "q",
        message.body,
        {**message.headers, **headers},
        delay=random.choice([0, 0, 0, 5.0]),
        priority=random.choice([None, None, 1, 5]),
    )


def _settlement(random: Random, delivery: Delivery) -> Settlement:
    receipt, id_ = delivery.receipt, str(delivery.headers[names.ID])
    again = Message(
        id_, "q", delivery.body, delivery.headers, random.choice([0, 3.0]), receipt.priority
    )
    letter = DeadLetter(receipt, "undeliverable", "no")
    return random.choice([Complete(receipt), Complete(receipt), Release(receipt), letter,
                          Retry(receipt, again)])  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_limits_hold_and_no_job_is_stuck(
    store: Store, clock: ManualClock, seed: int
) -> None:
    random = Random(seed)
    held: dict[str, tuple[Delivery, float]] = {}
    waiting: set[str] = set()
    limits, added = JobLimits(per_key=2), 0
    for step in range(400):
        what = random.random()
        if what < 0.3:
            new = [_new(random, added + number) for number in range(random.randint(1, 8))]
            added += len(new)
            store.add(new)
            waiting |= {message.id for message in new}
        elif what < 0.6:
            if step % 100 == 99:
                limits = JobLimits(per_key=random.randint(1, 3))
            for delivery in store.take(random.randint(1, 6), limits):
                held[str(delivery.headers[names.ID])] = delivery, clock.monotonic()
            _check(held, limits, clock)
        elif what < 0.85 and held:
            id_ = random.choice(sorted(held))
            delivery, _ = held.pop(id_)
            settlement = _settlement(random, delivery)
            error = store.settle(settlement)
            if error is None and isinstance(settlement, Complete | DeadLetter):
                waiting.discard(id_)
        elif what < 0.9 and (free := sorted(waiting - held.keys())):
            id_ = random.choice(free)
            try:
                store.remove(id_)
            except JobStateError:
                pass  # a lease that has not ended yet
            else:
                waiting.discard(id_)
        else:
            clock.advance(random.choice([1.0, 10.0]))
    # Whatever is left gets through, one of a key at a time.
    for _ in range(10_000):
        if not waiting:
            break
        for delivery in store.take(5, JobLimits(per_key=1)):
            assert store.settle(Complete(delivery.receipt)) is None
            waiting.discard(str(delivery.headers[names.ID]))
        clock.advance(1.0)
    assert waiting == set()


def _check(held: dict[str, tuple[Delivery, float]], limits: JobLimits, clock: ManualClock) -> None:
    now = clock.monotonic()
    for id_ in [one for one, (_, since) in held.items() if now - since >= LEASE / 1000]:
        del held[id_]  # its lease has ended
    keys = Counter(delivery.headers.get(names.CONCURRENCY_KEY) for delivery, _ in held.values())
    del keys[None]
    # A limit that was lowered holds for new jobs only.
    assert limits.per_key is not None
    assert max(keys.values(), default=0) <= max(limits.per_key, 3)


@pytest.mark.parametrize("seed", range(3))
def test_a_constant_limit_is_never_exceeded(store: Store, clock: ManualClock, seed: int) -> None:
    random, limits = Random(seed), JobLimits(RateLimit(7, per=4), per_key=2)
    held: dict[str, Delivery] = {}
    starts: list[float] = []
    store.add([_new(random, number) for number in range(150)])
    done = 0
    while done < 150:
        for delivery in store.take(random.randint(1, 10), limits):
            held[str(delivery.headers[names.ID])] = delivery
            starts.append(clock.monotonic())
        keys = Counter(one.headers.get(names.CONCURRENCY_KEY) for one in held.values())
        del keys[None]
        assert max(keys.values(), default=0) <= 2
        for id_ in random.sample(sorted(held), min(len(held), random.randint(0, 4))):
            assert store.settle(Complete(held.pop(id_).receipt)) is None
            done += 1
        clock.advance(random.choice([0.1, 0.5]))
    assert len(starts) == 150
    began = starts[0]
    for number, when in enumerate(starts):
        assert when - began >= number // 7 * 4 - 0.01


def test_a_parked_job_is_for_a_worker_without_limits_too(store: Store) -> None:
    keyed = [job(f"{number}", concurrencyKey="k") for number in range(6)]
    store.add(keyed)
    assert len(store.take(10, JobLimits(per_key=1))) == 1
    assert len(store.take(10, NO_LIMITS)) == 5


# -- the worker ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max": 0, "per": 1}, "max must be at least 1"),
        ({"max": 1.5, "per": 1}, "max must be a whole number"),
        ({"max": True, "per": 1}, "max must be a whole number"),
        ({"max": 1 << 60, "per": 1}, "max must be at most"),
        ({"max": 1, "per": 0}, "per must be at least 0.001"),
        ({"max": 1, "per": float("inf")}, "per must be a finite number"),
        ({"max": 1, "per": 1e12}, "per must be at most"),
        ({"max": 1, "per": "minute"}, "per must be seconds"),
    ],
)
def test_a_rate_limit_is_checked_when_it_is_made(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"RateLimit: {named}"):
        RateLimit(**arguments)


def test_a_worker_checks_its_limits() -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"\[Worker:q\] rate_limit must be RateLimit"):
        Worker("q", handle, rate_limit=100)  # type: ignore[arg-type] - that is the point
    with pytest.raises(ConfigurationError, match="concurrency_per_key must be at least 1"):
        Worker("q", handle, concurrency_per_key=0)
    with pytest.raises(ConfigurationError, match="on_unsupported must be a function"):
        Worker("q", handle, on_unsupported=1)  # type: ignore[arg-type] - that is the point
    worker = Worker("q", handle, concurrency_per_key=2)
    worker.rate_limit = RateLimit(5, per=1)
    assert (worker.rate_limit, worker.concurrency_per_key) == (RateLimit(5, per=1.0), 2)
    with pytest.raises(ConfigurationError, match="concurrency_per_key must be a whole number"):
        worker.concurrency_per_key = "two"  # type: ignore[assignment] - that is the point
    assert worker.concurrency_per_key == 2


async def test_a_worker_tells_the_callback_of_its_queue() -> None:
    reported: list[Unsupported] = []
    provider = JobProvider(MemoryTransport(without=["jobs"]))
    queue = Queue("q", provider=provider, on_unsupported=reported.append)

    async def handle(job: ActiveJob[Any]) -> None: ...

    async with queue, Worker(queue, handle, rate_limit=RateLimit(1, per=60)) as worker:
        assert [(one.option, one.queue) for one in reported] == [("rate_limit", "q")]
        worker.concurrency_per_key = 1
        assert [one.option for one in reported[1:]] == ["rate_limit", "concurrency_per_key"]
    await provider.transport.disconnect()


async def test_a_queue_is_not_drained_while_a_limit_holds_jobs_back() -> None:
    queue, told, runs = Queue("limited-and-drained"), list[str](), list[int]()

    async def handle(job: ActiveJob[int]) -> None:
        told.append(f"run {job.data}")
        runs.append(job.data)

    worker = Worker(queue, handle, rate_limit=RateLimit(1, per=0.3))
    worker.on("drained", lambda _: told.append("drained"))
    async with queue, worker:
        await queue.add_many([("one", number) for number in range(3)])
        await wait_for(lambda: "drained" in told, timeout=15)
    assert told == ["run 0", "run 1", "run 2", "drained"]


async def test_declared_jobs_share_a_key() -> None:
    queue = Queue("declared-with-a-key")
    running = most = 0

    @queue.job(concurrency_key="rebuild")
    async def rebuild(index: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return index

    async with queue, Worker(queue, concurrency_per_key=1):
        handles = [await rebuild.add(f"{number}") for number in range(5)]
        other = await rebuild.with_options(concurrency_key="other").add("other")
        assert await other.result(timeout=15) == "other"
        assert [await one.result(timeout=15) for one in handles] == ["0", "1", "2", "3", "4"]
    assert most <= 2


@pytest.mark.parametrize("key", ["", "k" * 501, 7, b"key"])
async def test_a_key_is_checked_when_a_job_is_added(key: Any) -> None:
    queue = Queue("keys")
    with pytest.raises(ValueError, match="concurrency_key must be a string of 1 to 500"):
        await queue.add("one", concurrency_key=key)
