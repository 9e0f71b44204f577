"""Limits of jobs on SQLite: what a claim costs, what is parked, and rows that others wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.jobs.sqlite.conftest import Connect, by_hand, fetch, ids, job

from matador.jobs import ActiveJob, Queue, Worker
from matador.model.job_limits import NO_LIMITS, JobLimits, RateLimit
from matador.model.message import Complete, DeadLetter, Delivery, Message, Settlement
from matador.testing import ManualClock, wait_for
from matador.transports.sqlite import SqliteTransport, jobs, settle
from matador.transports.sqlite.claim import Claim, claim
from matador.transports.sqlite.clock import DatabaseClock, Machine
from matador.transports.sqlite.database import IN_FLIGHT, PARKED, READY, open_for_writing
from matador.transports.sqlite.session import WriterSession

Result = TypeVar("Result")

ONE_EACH = JobLimits(per_key=1)
LEASE = 30_000


def keyed(job_id: str, key: str) -> Message:
    return job(job_id, concurrencyKey=key)


class Writer:
    """A process that writes, one transaction after the other."""

    def __init__(self, file: Path, clock: ManualClock) -> None:
        connection = open_for_writing(file, synchronous="NORMAL", busy_timeout=5)
        machine = Machine(clock)
        self.session = WriterSession(connection, file, DatabaseClock(machine), busy_timeout=5)
        self.session.anchor()
        self.run(lambda session: session.open_jobs("q"))

    def run(self, work: Callable[[WriterSession], Result]) -> Result:
        self.session.begin()
        try:
            return work(self.session)
        finally:
            self.session.commit()

    def add(self, messages: Sequence[Message]) -> None:
        assert set(self.run(lambda session: jobs.add(session, messages))) <= {None}

    def claim(self, limit: int = 10, limits: JobLimits = NO_LIMITS) -> Claim:
        return self.run(lambda session: claim(session, session.queue("q"), limit, LEASE, limits))

    def settle(self, *settlements: Settlement) -> None:
        assert self.run(lambda session: settle.settle(session, settlements)) == [None] * len(
            settlements
        )

    def steps(self, work: Callable[[], object]) -> int:
        """How many hundred instructions SQLite needs."""
        count = 0

        def counted() -> int:
            nonlocal count
            count += 1
            return 0

        self.session.connection.set_progress_handler(counted, 100)
        work()
        self.session.connection.set_progress_handler(None, 0)
        return count

    def states(self) -> dict[int, int]:
        statement = "SELECT state, count(*) FROM messages GROUP BY state"
        return dict(self.session.connection.execute(statement))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def writer(file: Path, clock: ManualClock) -> Iterator[Writer]:
    with _writing(file, clock) as writer:
        yield writer


@contextmanager
def _writing(file: Path, clock: ManualClock) -> Generator[Writer]:
    writer = Writer(file, clock)
    yield writer
    writer.session.close()


def names(deliveries: Sequence[Delivery]) -> list[Any]:
    return [delivery.headers["job.id"] for delivery in deliveries]


# -- what a claim costs ----------------------------------------------------------------------------


def test_a_long_backlog_of_one_key_makes_no_claim_slow(writer: Writer) -> None:
    def cost(backlog: int) -> int:
        writer.run(lambda session: jobs.delete_all(session, session.jobs("q")))
        writer.add([keyed(f"slow-{number}", "slow") for number in range(backlog)])
        assert names(writer.claim(1, ONE_EACH).deliveries) == ["slow-0"]
        writer.add([job(f"other-{number}") for number in range(20)])
        while not writer.claim(1, ONE_EACH).deliveries:
            pass  # it is being parked
        return writer.steps(lambda: writer.claim(1, ONE_EACH))

    few, many = cost(10), cost(10_000)
    assert many <= few + 1, "hundreds of instructions"


def test_many_keys_make_no_claim_slow(writer: Writer) -> None:
    def cost(keys: int) -> int:
        writer.run(lambda session: jobs.delete_all(session, session.jobs("q")))
        writer.add([keyed(f"{turn}-{key}", f"{key}") for key in range(keys) for turn in range(2)])
        for _ in range(5):
            writer.claim(1, ONE_EACH)
        return writer.steps(lambda: writer.claim(1, ONE_EACH))

    few, many = cost(20), cost(5000)
    assert many <= few + 1, "hundreds of instructions"


def test_a_backlog_is_parked_a_part_at_a_time(writer: Writer) -> None:
    writer.add([keyed(f"slow-{number}", "slow") for number in range(12_000)])
    writer.add([job("other")])
    assert names(writer.claim(1, ONE_EACH).deliveries) == ["slow-0"]
    empty = 0
    while not (found := writer.claim(1, ONE_EACH)).deliveries:
        assert found.next_due <= writer.session.now, "it goes on at once"
        empty += 1
    assert names(found.deliveries) == ["other"]
    assert empty >= 1


def test_a_claim_without_limits_pays_nothing(writer: Writer) -> None:
    writer.add([keyed(f"{number}", "key") for number in range(5)])
    statements: list[str] = []
    writer.session.connection.set_trace_callback(statements.append)
    assert len(writer.claim().deliveries) == 5
    writer.session.connection.set_trace_callback(None)
    assert not any("limit_key" in one or "job_rates" in one for one in statements)


# -- keys ------------------------------------------------------------------------------------------


def test_what_is_parked_is_for_workers_without_a_limit_too(writer: Writer) -> None:
    writer.add([keyed(f"{number}", "key") for number in range(30)])
    assert names(writer.claim(10, ONE_EACH).deliveries) == ["0"]
    assert writer.states()[PARKED] == 29
    writer.add([job(f"new-{number}") for number in range(30)])
    found = [*writer.claim(20).deliveries, *writer.claim(20).deliveries]
    assert names(found)[:29] == [f"{number}" for number in range(1, 30)]
    writer.claim(20)
    writer.claim(20)
    assert writer.states() == {IN_FLIGHT: 60}


def test_a_job_that_is_added_later_does_not_overtake(writer: Writer) -> None:
    writer.add([keyed(f"{number}", "key") for number in range(3)])
    (first,) = writer.claim(10, ONE_EACH).deliveries
    writer.settle(Complete(first.receipt))
    writer.add([keyed("late", "key")])
    ran: list[Any] = []
    while found := writer.claim(10, ONE_EACH).deliveries:
        ran += names(found)
        writer.settle(Complete(found[0].receipt))
    assert ran == ["1", "2", "late"]


def test_two_processes_count_together(file: Path, writer: Writer, clock: ManualClock) -> None:
    limits = JobLimits(RateLimit(3, per=60), per_key=2)
    with _writing(file, clock) as other:
        writer.add([keyed(f"{number}", f"{number // 4}") for number in range(12)])
        assert names(writer.claim(1, limits).deliveries) == ["0"]
        assert names(other.claim(10, limits).deliveries) == ["1", "4"]
        assert writer.claim(10, limits).limited
        clock.advance(60)  # both leases end, too
        assert names(writer.claim(10, limits).deliveries) == ["0", "1", "4"]
        assert other.claim(10, limits).not_before == other.session.now + 60_000


def test_a_failed_job_that_is_retried_keeps_its_key(writer: Writer) -> None:
    writer.add([keyed("bad", "key"), keyed("good", "key")])
    (bad,) = writer.claim(10, ONE_EACH).deliveries
    writer.settle(DeadLetter(bad.receipt, "undeliverable", "no"))
    (good,) = writer.claim(10, ONE_EACH).deliveries
    writer.run(lambda session: jobs.retry(session, session.jobs("q"), "bad"))
    assert writer.claim(10, ONE_EACH).limited
    writer.settle(Complete(good.receipt))
    assert names(writer.claim(10, ONE_EACH).deliveries) == ["bad"]


def test_a_parked_job_can_be_taken_and_removed(writer: Writer) -> None:
    writer.add([keyed(f"{number}", "key") for number in range(4)])
    (first,) = writer.claim(10, ONE_EACH).deliveries
    writer.run(lambda session: jobs.remove(session, session.jobs("q"), "1"))
    writer.settle(Complete(first.receipt))
    assert names(writer.claim(10, ONE_EACH).deliveries) == ["2"]


async def test_recurring_jobs_have_the_key_of_their_schedule(connect: Connect, file: Path) -> None:
    transport = await connect()
    queue = Queue("q", provider=transport)
    await queue.schedule("tick", "tick", every=0.05, concurrency_key="ticks")
    running = most = runs = 0

    async def handle(job: ActiveJob[Any]) -> None:
        nonlocal running, most, runs
        running, runs = running + 1, runs + 1
        most = max(most, running)
        if runs < 3:
            await wait_for(lambda: has_parked(file))
        running -= 1

    def has_parked(file: Path) -> bool:
        return bool(by_hand(file, "SELECT 1 FROM messages WHERE state = ? LIMIT 1", (PARKED,)))

    async with Worker(queue, handle, concurrency_per_key=1):
        await wait_for(lambda: runs >= 3)
    assert most == 1


async def test_a_limit_is_lifted_for_jobs_that_are_parked(connect: Connect) -> None:
    transport = await connect()
    await transport.add_jobs([keyed(f"{number}", "key") for number in range(5)])
    subscription = await transport.subscribe("q", prefetch=1)
    subscription.set_limits(ONE_EACH)
    assert len(await subscription.receive(10)) == 1
    await subscription.close()
    assert len(await ids(transport, "waiting")) == 4
    assert sorted(names(await fetch(transport, 4))) == ["1", "2", "3", "4"]


# -- rates -----------------------------------------------------------------------------------------


def test_a_window_begins_with_a_job(writer: Writer, clock: ManualClock) -> None:
    limits = JobLimits(RateLimit(2, per=10))
    assert writer.claim(5, limits).deliveries == []
    clock.advance(5)
    writer.add([job(f"{number}") for number in range(5)])
    began = writer.session.now
    assert len(writer.claim(5, limits).deliveries) == 2
    clock.advance(9.9)
    full = writer.claim(5, limits)
    assert (full.deliveries, full.not_before, full.limited) == ([], began + 10_000, True)
    clock.advance(0.1)
    assert len(writer.claim(5, limits).deliveries) == 2


def test_a_window_that_others_wrote_does_not_last_for_ever(writer: Writer) -> None:
    limits = JobLimits(RateLimit(1, per=10))
    odd: list[tuple[Any, Any]] = [
        (1 << 61, 5),
        ((1 << 63) - 1, 5),
        (-5, 5),
        (-(1 << 63), 5),
        (writer.session.now, 0),
    ]
    writer.add([job(f"{number}") for number in range(len(odd))])
    for started, taken in odd:
        row = (writer.session.queues["q"].id, started, taken)
        writer.run(
            lambda session: session.connection.execute(
                "INSERT OR REPLACE INTO job_rates VALUES (?, ?, ?)",
                row,  # noqa: B023
            )
        )
        assert len(writer.claim(5, limits).deliveries) == 1


async def test_a_full_window_is_waited_for_without_claims(connect: Connect, file: Path) -> None:
    """Changes of others do not wake who must wait anyway."""
    transport, other = await connect(), await connect()
    await transport.add_jobs([job(f"{number}") for number in range(3)])
    subscription = await transport.subscribe("q", prefetch=1)
    subscription.set_limits(JobLimits(RateLimit(1, per=600)))
    assert len(await subscription.receive(1)) == 1
    claims = _counting_claims(transport)
    waiting = asyncio.create_task(subscription.receive(1))
    for number in range(50):
        await other.add_jobs([job(f"other-{number}")])
    seen = by_hand(file, "SELECT count(*) FROM messages")
    assert (seen, waiting.done(), len(claims)) == ([(53,)], False, 1)
    waiting.cancel()


def _counting_claims(transport: SqliteTransport) -> list[object]:
    connection = transport._connected
    claims: list[object] = []
    submit = connection.submit

    def counted(work: Any) -> Any:
        claims.append(work)
        return submit(work)

    connection.submit = counted
    return claims


# -- rows that others wrote ------------------------------------------------------------------------

_WRITE = (
    "INSERT INTO messages (queue, state, job, stored_at, id, body, limit_key) "
    "VALUES ((SELECT id FROM queues WHERE name = 'q'), ?, 0, 1, ?, x'31', {key})"
)


@pytest.mark.parametrize(
    ("state", "key"),
    [
        (READY, "NULL"),
        *[(state, key) for state in (READY, PARKED) for key in ("x'ff'", "x''", "x'6b6579'")],
    ],
)
@pytest.mark.parametrize("limits", [ONE_EACH, NO_LIMITS])
def test_an_odd_key_holds_up_nobody(
    file: Path, writer: Writer, key: str, state: int, limits: JobLimits
) -> None:
    for number in range(3):
        by_hand(file, _WRITE.format(key=key), (state, f"odd-{number}"))
    writer.add([keyed("good", "other")])
    ran: list[Any] = []
    for _ in range(10):
        found = writer.claim(10, limits).deliveries
        ran += names(found)
        writer.settle(*(Complete(one.receipt) for one in found))
    assert sorted(ran) == ["good", "odd-0", "odd-1", "odd-2"]


def test_odd_rows_that_are_parked_among_others_come_back(file: Path, writer: Writer) -> None:
    writer.add([keyed(f"{number}", "key") for number in range(3)])
    writer.claim(10, ONE_EACH)
    by_hand(file, _WRITE.format(key="x'ff'"), (PARKED, "odd"))
    ran: list[Any] = []
    for _ in range(10):
        found = writer.claim(10, ONE_EACH).deliveries
        ran += names(found)
        writer.settle(*(Complete(one.receipt) for one in found))
        by_hand(file, "DELETE FROM messages WHERE state = 2")
    assert sorted(ran) == ["1", "2", "odd"]
