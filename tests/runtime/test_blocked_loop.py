"""An event loop that is blocked keeps its messages, and the log says what blocks it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.support.brokers import broker_url
from tests.support.redis import forget_keys
from tests.support.shop import Handler, OrderPlaced, make_app, settled
from tests.support.sqs import CREDENTIALS, forget_queues

from matador import Topology
from matador.jobs import JobProvider, Queue, Worker
from matador.model.message import Delivery, Receipt
from matador.model.topology import WorkQueue
from matador.runtime import loop_watch
from matador.runtime.leases import LeaseKeeper
from matador.runtime.loop_watch import LoopWatch, culprit_of
from matador.testing import make_receipt, wait_for
from matador.transports.base import Subscription, Transport
from matador.transports.bullmq import BullMQTransport
from matador.transports.memory import MemoryTransport
from matador.transports.multi import MultiTransport
from matador.transports.redis import RedisTransport
from matador.transports.sqlite import SqliteTransport
from matador.transports.sqs import SqsTransport

LEASE = 1.5
LEASE_OF_SQS = 4.0
TRIES = 3  # each with three times the lease of the one before: the machine may be busy

Send = Callable[[str], Awaitable[object]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_FOR", 1.5)


class Place:
    """A queue with messages or jobs, for workers on event loops of their own."""

    def __init__(
        self, connect: Callable[[float], Transport], *, jobs: bool = False, lease: float = LEASE
    ) -> None:
        self.lease = lease
        self.prefix = self.name = f"blocked-{uuid4().hex[:10]}"
        self._open = connect
        self._jobs = jobs

    def lengthen(self) -> None:
        """Have a longer lease, and another queue, for workers that are started from now on."""
        self.lease *= 3
        self.name = f"{self.prefix}-{self.lease:g}".replace(".", "-")

    def _connect(self) -> Transport:
        return self._open(self.lease)

    @asynccontextmanager
    async def worker(self, callback: Any, concurrency: int) -> AsyncGenerator[Send]:
        """Consumes with a callback, which gets data of a job or an envelope. Yields how to send."""
        async with AsyncExitStack() as stack:
            if self._jobs:
                queue = Queue(self.name, provider=JobProvider(self._connect()))
                await queue.start()
                stack.push_async_callback(queue.shutdown, disconnect=True)
                worker = Worker(queue, callback, concurrency=concurrency)
                await worker.start()
                stack.push_async_callback(worker.close)
                yield lambda name: queue.add("pay", name)
            else:
                events = WorkQueue("events", concurrency=concurrency)
                topology = Topology(self.name, queues=[events])
                app = make_app(self._connect(), callback, topology=topology)
                await stack.enter_async_context(app)
                yield lambda name: app.send(OrderPlaced(name))


def name_of(given: Any) -> str:
    """What was sent, of the data of a job or an envelope."""
    return given if isinstance(given, str) else given.data.order_id


@pytest_asyncio.fixture(
    params=[
        "sqlite",
        "sqlite-jobs",
        "multi",
        pytest.param("redis", marks=pytest.mark.broker),
        pytest.param("bullmq-jobs", marks=pytest.mark.broker),
        pytest.param("sqs", marks=[pytest.mark.broker, pytest.mark.xdist_group("sqs")]),
    ]
)
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    kind, _, jobs = request.param.partition("-")
    prefix = f"test-{uuid4().hex[:10]}"
    file = tmp_path / "shop.db"
    match kind:
        case "sqlite":
            yield Place(lambda lease: SqliteTransport(file, lease=lease), jobs=bool(jobs))
        case "multi":
            yield Place(
                lambda lease: MultiTransport(
                    [SqliteTransport(file, lease=lease), MemoryTransport()]
                )
            )
        case "sqs":
            url = broker_url("sqs")
            for name, value in CREDENTIALS.items():
                monkeypatch.setenv(name, value)
            place = Place(lambda lease: SqsTransport(url, lease=lease, wait=1), lease=LEASE_OF_SQS)
            yield place
            await forget_queues(url, place.prefix)
        case _:
            url = broker_url("redis")
            if kind == "redis":
                yield Place(lambda lease: RedisTransport(url, lease=lease, prefix=prefix))
            else:
                theirs = url.replace("redis:", "bullmq:")
                yield Place(
                    lambda lease: BullMQTransport(theirs, lease=lease, prefix=prefix), jobs=True
                )
            await forget_keys(url, prefix)


@contextmanager
def elsewhere(place: Place, callback: Any, concurrency: int) -> Generator[Send]:
    """A worker in a thread with an event loop of its own; what it yields sends from there."""
    ready = threading.Event()
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, Send]] = []

    async def work() -> None:
        async with place.worker(callback, concurrency) as send:
            ended = asyncio.Event()
            started.append((asyncio.get_running_loop(), ended, send))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    assert ready.wait(30)
    ((loop, ended, send),) = started

    async def send_there(name: str) -> None:
        async def there() -> None:
            await send(name)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))

    yield send_there
    loop.call_soon_threadsafe(ended.set)
    thread.join(30)
    assert not thread.is_alive()


LONG = 120.0
"""Seconds to wait at most: BullMQ looks for stalled jobs only now and then."""


BLOCKED = "the event loop has been blocked"


class Shop:
    """Callbacks that count what they are given, wherever they run."""

    def __init__(self, blocks_for: float) -> None:
        self._blocks_for = blocks_for
        self.here: Counter[str] = Counter()
        self.there: Counter[str] = Counter()
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.ended = threading.Event()
        self.kept_at: list[float] = []
        """When the first message began, when its lease was renewed, and when it ended."""

    @property
    def ran(self) -> Counter[str]:
        return self.here + self.there

    @property
    def longest_unrenewed(self) -> float:
        times = sorted(self.kept_at)
        return max(after - before for before, after in pairwise(times))

    async def pay(self, given: Any, ctx: Any = None) -> None:
        """Blocks the event loop, as async functions must not."""
        self.there[name_of(given)] += 1
        if name_of(given) == "slow":
            self.kept_at.append(time.monotonic())
            self.began.set()
            time.sleep(self._blocks_for)  # noqa: ASYNC251 - what this is about
            self.go_on.wait(2 * LONG)
            self.kept_at.append(time.monotonic())
            await asyncio.sleep(0)  # more may be received now
            self.ended.set()

    async def watch(self, given: Any, ctx: Any = None) -> None:
        self.here[name_of(given)] += 1


async def two_workers(
    place: Place, slots: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One of two workers blocks its event loop for longer than a lease: every message runs once.

    A machine may be too busy to renew a lease in time. That is seen by the times of the renewals,
    and tried again with a longer lease.
    """
    renew_with = LeaseKeeper.renew_with
    for _ in range(TRIES):
        caplog.clear()
        shop = Shop(1.5 * place.lease)

        async def renew(*given: Any, shop: Shop = shop) -> None:
            asked = time.monotonic()
            await renew_with(*given)
            shop.kept_at.append(asked)

        monkeypatch.setattr(LeaseKeeper, "renew_with", renew)
        with elsewhere(place, shop.pay, slots) as send_there:
            sending = asyncio.ensure_future(send_there("slow"))  # its loop may be blocked before
            await wait_for(shop.began.is_set, timeout=LONG)
            async with place.worker(shop.watch, 1) as send:
                await send("next")
                await wait_for(lambda shop=shop: shop.here["next"], timeout=LONG)
                await wait_for(lambda: BLOCKED in caplog.text, timeout=LONG)
                shop.go_on.set()
                await wait_for(shop.ended.is_set, timeout=LONG)
                await sending
                await send_there("last")
                await wait_for(lambda shop=shop: shop.ran["last"], timeout=LONG)
        if shop.ran == {"slow": 1, "next": 1, "last": 1} and "lost the lease of" not in caplog.text:
            return
        assert shop.longest_unrenewed > 0.7 * place.lease, (shop.ran, caplog.text)
        place.lengthen()
    raise AssertionError("no lease was renewed in time")


async def test_no_other_worker_gets_what_a_blocked_loop_handles(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await two_workers(place, 1, monkeypatch, caplog)
    blocked = next(one for one in caplog.messages if BLOCKED in one)
    assert f"{__name__}.Shop.pay (at {__file__}:" in blocked
    assert f"handling a message of {place.name}" in blocked.replace("jobs.", "")


async def test_what_a_broker_gives_to_a_blocked_loop_runs_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message waits unread, and its lease passes: another worker handles it meanwhile."""
    await two_workers(place, 2, monkeypatch, caplog)


class Unread(MemoryTransport):
    """The first message is with the client when the event loop is blocked, and is read after."""

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        subscription = await super().subscribe(queue, prefetch=prefetch)
        receive, blocks = subscription.receive, [time.sleep]

        async def receive_late(limit: int) -> Sequence[Delivery]:
            deliveries = await receive(limit)
            if blocks:
                blocks.pop()(2 * LEASE)
            return deliveries

        subscription.receive = receive_late
        return subscription


async def test_a_message_that_is_read_after_its_lease_is_not_begun() -> None:
    handler = Handler()
    async with make_app(Unread(lease=LEASE), handler) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert [ctx.receipt.delivery_count for ctx in handler.contexts] == [2]


async def test_a_transport_without_leases_is_watched_too(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(0)
    with elsewhere(Place(lambda _: MemoryTransport()), shop.pay, 1) as send_there:
        sending = asyncio.ensure_future(send_there("slow"))
        await wait_for(lambda: BLOCKED in caplog.text, timeout=LONG)
        shop.go_on.set()
        await wait_for(shop.ended.is_set, timeout=LONG)
        await sending
    assert f"{__name__}.Shop.pay (at {__file__}:" in caplog.text


# -- the watch by itself ---------------------------------------------------------------------------


class Leased(MemoryTransport):
    """A transport, or its twin, whose leases can be lost, and which may not answer."""

    def __init__(self) -> None:
        super().__init__(lease=LEASE)
        self.twins: list[Leased] = []
        self.lost = False
        self.hangs = False
        self.renewed: list[str] = []
        self.disconnected = threading.Event()

    def twin(self) -> Leased:
        twin = Leased()
        twin.lost, twin.hangs = self.lost, self.hangs
        self.twins.append(twin)
        return twin

    async def connect(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()

    async def disconnect(self) -> None:
        self.disconnected.set()

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        self.renewed += [one.queue for one in receipts]
        return [not self.lost for _ in receipts]


@asynccontextmanager
async def watched(transport: Leased) -> AsyncGenerator[LeaseKeeper]:
    leases = LeaseKeeper(transport, LEASE)
    watch = LoopWatch(leases, [])
    leases.start()
    watch.start()
    try:
        yield leases
    finally:
        began = time.monotonic()
        await watch.stop()
        assert time.monotonic() - began < 20
        await leases.stop()


def block_until(condition: Callable[[], object]) -> None:
    """Block the event loop."""
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


async def test_a_thread_renews_over_a_connection_that_it_opens_only_then() -> None:
    transport = Leased()
    async with watched(transport) as leases:
        leases.hold(make_receipt(queue="a"))
        await wait_for(lambda: len(transport.renewed) >= 2, timeout=LONG)
        assert transport.twins == [] or leases.beat(), "only if the machine stood still"
        block_until(lambda: any(len(twin.renewed) >= 2 for twin in transport.twins))
        await wait_for(transport.twins[-1].disconnected.is_set)
        assert leases.beat(), "it has noticed that it stood still"


async def test_a_thread_renews_while_others_keep_the_interpreter_busy() -> None:
    transport, ended = Leased(), threading.Event()

    def spin() -> None:
        while not ended.is_set():
            pass

    busy = [threading.Thread(target=spin) for _ in range(2)]
    async with watched(transport) as leases:
        leases.hold(make_receipt(queue="a"))
        for thread in busy:
            thread.start()
        try:
            block_until(lambda: any(len(twin.renewed) >= 2 for twin in transport.twins))
        finally:
            ended.set()
            for thread in busy:
                thread.join()


async def test_what_a_thread_finds_lost_is_told_on_the_event_loop() -> None:
    transport = Leased()
    async with watched(transport) as leases:
        receipt, told = make_receipt(queue="a"), list[int]()
        leases.hold(receipt)
        leases.when_lost(receipt, lambda: told.append(threading.get_ident()))
        transport.lost = True
        block_until(lambda: transport.twins and transport.twins[0].renewed)
        await wait_for(lambda: told, timeout=LONG)
        assert told == [threading.get_ident()]
        assert leases.held == 0


async def test_a_watch_ends_in_time_while_its_connection_hangs() -> None:
    transport = Leased()
    transport.hangs = True
    async with watched(transport) as leases:
        leases.hold(make_receipt(queue="a"))
        block_until(lambda: transport.twins)
    await wait_for(transport.twins[-1].disconnected.is_set)


async def test_time_counts_as_blocked_unless_the_process_stood_still(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr(loop_watch.time, "monotonic", lambda: now)
    watch = LoopWatch(None, [])
    watch.start()
    await watch.stop()
    watch._look()
    for seconds, blocked in ((0.5, 0.5), (0.7, 1.2), (3600, 1.95), (0.1, 2.05)):
        assert BLOCKED not in caplog.text or blocked >= 1.95
        now += seconds
        watch._look()
        assert watch._blocked == pytest.approx(blocked)
    assert caplog.text.count(BLOCKED) == 1


def test_a_watch_ends_with_a_loop_that_was_not_shut_down() -> None:
    async def start() -> threading.Thread | None:
        watch = LoopWatch(LeaseKeeper(Leased(), LEASE), [])
        watch.start()
        return watch._thread

    thread = asyncio.run(start())
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_who_blocks_is_the_function_of_the_user() -> None:
    def helper() -> str:
        return culprit_of(sys._getframe())

    async def handler() -> str:
        return helper()

    found = asyncio.run(handler())
    line = helper.__code__.co_firstlineno + 1
    assert found == f"{__name__}.{handler.__qualname__} (at {__file__}:{line})"
