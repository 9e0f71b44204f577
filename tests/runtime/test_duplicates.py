"""Duplicates: the work runs once a key, here and in a fleet; results and errors are shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio
from tests.support.redis import OwnServer, plain_client

from matador.errors import ConfigurationError, ConnectionFailedError, NotConnectedError
from matador.policy.dedup import Deduplication, DuplicateStore, KeyedMessage
from matador.runtime.dedup import Deduplicator, MemoryDuplicateStore
from matador.runtime.redis_dedup import RedisDuplicateStore
from matador.testing import ManualClock, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("redis"))
    own.start()
    yield own
    own.stop()


@pytest_asyncio.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.broker)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[DuplicateStore]:
    made: DuplicateStore
    if request.param == "memory":
        made = MemoryDuplicateStore()
    else:
        server: OwnServer = request.getfixturevalue("server")
        async with plain_client(server.url) as client:
            await client.flushall()
        made = RedisDuplicateStore(server.url)
    await made.open()
    yield made
    await made.close()


class Work:
    """Counts its runs; waits until it is let go."""

    def __init__(self, result: bytes = b"receipt", error: Exception | None = None) -> None:
        self.runs = 0
        self.go_on = asyncio.Event()
        self._result = result
        self._error = error

    async def __call__(self) -> bytes:
        self.runs += 1
        await self.go_on.wait()
        if self._error is not None:
            raise self._error
        return self._result


def done(result: bytes = b"receipt") -> Work:
    work = Work(result)
    work.go_on.set()
    return work


# -- stores ---------------------------------------------------------------------------------------


async def test_the_first_holds_a_key_and_its_result_is_kept(store: DuplicateStore) -> None:
    assert await store.begin("k", "one", 30) is True
    assert await store.begin("k", "two", 30) is False
    assert await store.begin("k", "one", 30) is True  # asked again, over a lost answer
    assert not await store.finish("k", "two", b"other", 30)
    assert await store.finish("k", "one", b"\x00\xff", 30)
    assert await store.begin("k", "two", 30) == b"\x00\xff"
    assert await store.begin("k", "one", 30) == b"\x00\xff"
    assert await store.begin("other", "two", 30) is True


async def test_what_failed_is_new_again(store: DuplicateStore) -> None:
    await store.begin("k", "one", 30)
    await store.forget("k", "two")  # not his
    assert await store.begin("k", "two", 30) is False
    await store.forget("k", "one")
    assert await store.begin("k", "two", 30) is True


async def test_a_lease_passes_unless_it_is_renewed(store: DuplicateStore) -> None:
    await store.begin("k", "one", 0.05)
    assert await store.begin("k", "one", 30) is True
    await store.begin("dead", "one", 0.05)

    async def is_new() -> bool:
        return await store.begin("dead", "two", 30) is True

    await wait_for(is_new)
    assert await store.begin("k", "two", 30) is False
    assert await store.begin("dead", "one", 30) is False
    assert not await store.finish("dead", "one", b"late", 30)
    assert await store.finish("dead", "two", b"", 30)


async def test_a_result_is_kept_for_its_time_only(store: DuplicateStore) -> None:
    await store.begin("k", "one", 30)
    await store.finish("k", "one", b"1", 0.05)

    async def is_new() -> bool:
        return await store.begin("k", "two", 30) is True

    await wait_for(is_new)


async def test_memory_is_bounded_and_keeps_what_is_used_or_held() -> None:
    clock = ManualClock()
    store = MemoryDuplicateStore(max_keys=3, clock=clock)
    await store.begin("held", "one", 30)
    for key in ("a", "b"):
        await store.begin(key, "one", 30)
        await store.finish(key, "one", b"", 60)
    assert await store.begin("a", "two", 30) == b""  # used: b is the oldest now
    await store.begin("c", "one", 30)
    await store.finish("c", "one", b"", 60)
    assert len(store) == 3
    assert await store.begin("held", "two", 30) is False
    assert await store.begin("a", "two", 30) == b""
    assert await store.begin("b", "two", 30) is True


async def test_redis_says_where_and_what_is_wrong() -> None:
    store = RedisDuplicateStore("redis://me:hunter2@127.0.0.1:1")
    with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:1; connect first"):
        await store.begin("k", "one", 30)
    with pytest.raises(ConnectionFailedError) as caught:
        await store.open()
    assert "hunter2" not in f"{caught.value}{store!r}"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MemoryDuplicateStore(max_keys=0), "max_keys"),
        (lambda: Deduplication(ttl=0), "ttl"),
        (lambda: Deduplication(max_keys=0), "max_keys"),
        (lambda: Deduplicator(lease=0), "lease"),
    ],
)
def test_options_that_cannot_be_are_named(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()


# -- running once ---------------------------------------------------------------------------------


async def test_the_second_gets_the_result_of_the_first(store: DuplicateStore) -> None:
    once = Deduplicator(Deduplication(store=store))
    work = done()
    first, second = await once.run("k", work), await once.run("k", work)
    assert (first.result, first.duplicate) == (b"receipt", False)
    assert (second.result, second.duplicate) == (b"receipt", True)
    assert work.runs == 1
    assert (once.runs, once.duplicates) == (1, 1)
    await once.clear()
    assert not (await once.run("k", work)).duplicate


async def test_nothing_returned_is_a_result_too(store: DuplicateStore) -> None:
    once = Deduplicator(Deduplication(store=store))
    await once.run("k", done(b""))
    assert (await once.run("k", done(b"other"))).result == b""


def test_the_key_is_the_id_or_the_hash_or_our_own(caplog: pytest.LogCaptureFixture) -> None:
    def message(**data: int) -> Callable[[], KeyedMessage]:
        return lambda: KeyedMessage("7", "created", "orders", data, {})

    by_id = Deduplicator()
    assert by_id.key_of("7", b"{}", message()) == "7"
    hashed = by_id.key_of(None, b"{}", message())
    assert hashed == by_id.key_of("", b"{}", message()) != by_id.key_of("", b"[]", message())
    own = Deduplicator(Deduplication(key=lambda message: message.data["order"]))
    assert own.key_of("7", b"{}", message(order=5)) == "5"
    assert own.key_of("7", b"{}", message()) == "7"
    assert "the key function failed" in caplog.text


async def test_max_keys_bounds_what_a_process_remembers() -> None:
    once = Deduplicator(Deduplication(max_keys=2))
    for key in ("a", "b", "c"):
        await once.run(key, done())
    assert (await once.run("c", done())).duplicate
    assert not (await once.run("a", done())).duplicate


async def test_concurrent_duplicates_run_once(store: DuplicateStore) -> None:
    here, elsewhere = (
        Deduplicator(Deduplication(store=store)),
        Deduplicator(Deduplication(store=store)),
    )
    work = Work()
    tasks = [asyncio.create_task(here.run("k", work)) for _ in range(5)]
    tasks += [asyncio.create_task(elsewhere.run("k", work)) for _ in range(5)]
    await wait_for(lambda: work.runs)
    work.go_on.set()
    handled = await asyncio.gather(*tasks)
    assert work.runs == 1
    assert {one.result for one in handled} == {b"receipt"}
    assert sum(not one.duplicate for one in handled) == 1
    assert here.runs + elsewhere.runs == 1
    assert here.duplicates + elsewhere.duplicates == 9


async def test_an_error_is_shared_here_and_tried_again_elsewhere(store: DuplicateStore) -> None:
    here, elsewhere = (
        Deduplicator(Deduplication(store=store)),
        Deduplicator(Deduplication(store=store)),
    )
    failing, working = Work(error=ValueError("no")), done()
    tasks = [asyncio.create_task(here.run("k", failing)) for _ in range(3)]
    await wait_for(lambda: failing.runs)
    other = asyncio.create_task(elsewhere.run("k", working))
    failing.go_on.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in outcomes] == [ValueError] * 3
    assert failing.runs == 1
    async with asyncio.timeout(60):  # at once, that is; not when the lease of 30 s has passed
        assert not (await other).duplicate
    assert working.runs == 1


async def test_who_waits_takes_over_from_one_that_is_cancelled(store: DuplicateStore) -> None:
    once = Deduplicator(Deduplication(store=store))
    stuck, working = Work(), done()
    first = asyncio.create_task(once.run("k", stuck))
    await wait_for(lambda: stuck.runs)
    second = asyncio.create_task(once.run("k", working))
    await asyncio.sleep(0)
    first.cancel()
    assert not (await second).duplicate
    assert working.runs == 1


class Watched(MemoryDuplicateStore):
    """Remembers when keys were held for longer; fails when it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._time = clock
        self._first = ""
        self.held: list[float] = []
        self.errors: list[Exception] = []

    async def begin(self, key: str, owner: str, lease: float) -> bytes | bool:
        if owner == self._first:
            self.held.append(self._time.monotonic())
            if self.errors:
                raise self.errors.pop()
        self._first = self._first or owner
        return await super().begin(key, owner, lease)


async def passes(clock: ManualClock, seconds: float) -> None:
    """Let time pass, and whoever it wakes do their work."""
    for step in [0.0] + round(seconds / 0.25) * [0.25]:
        clock.advance(step)
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.mark.parametrize("errors", [0, 1])
async def test_long_work_is_held_for_as_long_as_it_takes(
    errors: int, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Watched(manual_clock)
    store.errors = [ConnectionError("gone")] * errors
    options = Deduplication(store=store)
    here, elsewhere = (Deduplicator(options, lease=30, sleep=manual_clock.sleep) for _ in range(2))
    work = Work()
    first = asyncio.create_task(here.run("k", work))
    await wait_for(lambda: work.runs)
    second = asyncio.create_task(elsewhere.run("k", work))
    await passes(manual_clock, 100)
    # Three times a lease; one that fails ends nothing.
    assert store.held == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert caplog.text.count("could not renew the lease; retrying") == errors
    assert work.runs == 1
    work.go_on.set()
    assert not (await first).duplicate
    await passes(manual_clock, 1)
    assert (await second).duplicate
    await passes(manual_clock, 30)
    assert len(store.held) == 10, "held no longer than it takes"


async def test_work_that_was_held_too_late_belongs_to_another(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Watched(manual_clock)
    store.errors = [ConnectionError("gone")] * 3
    options = Deduplication(store=store)
    here, elsewhere = (Deduplicator(options, lease=30, sleep=manual_clock.sleep) for _ in range(2))
    slow, quick = Work(b"slow"), done(b"quick")
    first = asyncio.create_task(here.run("k", slow))
    await wait_for(lambda: slow.runs)
    second = asyncio.create_task(elsewhere.run("k", quick))
    await passes(manual_clock, 31)
    handled = await second
    assert (handled.result, handled.duplicate) == (b"quick", False)
    await passes(manual_clock, 30)
    assert store.held == [10, 20, 30, 40], "it has seen that it lost the key"
    slow.go_on.set()
    assert (await first).result == b"slow"
    assert (await elsewhere.run("k", quick)).result == b"quick", "the first result counts"
    assert "another process does the work" in caplog.text
    assert "another process did the same work" in caplog.text


async def test_redis_holds_long_work_for_as_long_as_it_takes(server: OwnServer) -> None:
    store = RedisDuplicateStore(server.url, prefix="long")
    await store.open()
    work = Work()
    running = asyncio.create_task(Deduplicator(Deduplication(store=store), lease=2).run("k", work))
    await wait_for(lambda: work.runs)
    async with plain_client(server.url) as client:
        (key,) = await client.keys("long*")
        left = [await client.pttl(key)]

        async def renewed() -> bool:
            left.append(await client.pttl(key))
            return left[-1] > left[-2] > 0

        await wait_for(renewed)
    work.go_on.set()
    assert not (await running).duplicate
    await store.close()
