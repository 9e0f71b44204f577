"""Checkpoints in Redis: kept for all workers, for a limited time, over a lost connection."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.redis import OwnServer, plain_client
from tests.support.shop import OrderPlaced, make_app, settled, subscribed

from matador import Context, Envelope, RedisCheckpointStore
from matador.errors import CheckpointStoreError, ConfigurationError, MissingExtraError
from matador.testing import ManualClock, wait_for
from matador.transports.memory import MemoryTransport

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    own = OwnServer(tmp_path_factory.mktemp("redis"))
    own.start()
    yield own
    own.stop()


@pytest_asyncio.fixture
async def store(server: OwnServer) -> AsyncIterator[RedisCheckpointStore]:
    made = RedisCheckpointStore(server.url)
    await made.open()
    yield made
    await made.close()
    async with plain_client(server.url) as client:
        await client.flushall()


async def test_it_keeps_replaces_and_forgets(store: RedisCheckpointStore) -> None:
    assert await store.load("m-1") == {}
    await store.save("m-1", "a", b"1")
    await store.save("m-1", "b\n☂", b"\x00\xff")
    await store.save("m-1", "a", b"3")
    await store.save("m-2", "a", b"other")
    assert await store.load("m-1") == {"a": b"3", "b\n☂": b"\x00\xff"}
    await store.delete("m-1")
    await store.delete("m-1")
    assert await store.load("m-1") == {}
    assert await store.load("m-2") == {"a": b"other"}
    assert store.persistent


async def test_what_is_kept_for_a_while_goes_after_it(store: RedisCheckpointStore) -> None:
    await store.save("m-1", "a", b"1")
    await store.keep("m-1", 0.1)
    await store.keep("nobody", 0.1)
    assert await store.load("m-1") == {"a": b"1"}

    async def gone() -> bool:
        return not await store.load("m-1")

    await wait_for(gone)


async def test_a_step_of_another_attempt_keeps_all_of_them_again(
    store: RedisCheckpointStore, server: OwnServer
) -> None:
    await store.save("m-1", "a", b"1")
    await store.keep("m-1", 60)
    await store.save("m-1", "b", b"2")
    async with plain_client(server.url) as client:
        (key,) = await client.keys("*m-1*")
        assert await client.ttl(key) > 86400


async def test_what_nobody_clears_has_an_end(server: OwnServer) -> None:
    short = RedisCheckpointStore(server.url, ttl=0.05, prefix="short")
    await short.open()
    await short.save("m-1", "a", b"1")
    async with plain_client(server.url) as client:

        async def gone() -> bool:
            return not await client.keys("short:*")

        await wait_for(gone)
    await short.close()


async def test_other_processes_see_the_steps(
    store: RedisCheckpointStore, server: OwnServer
) -> None:
    await store.save("m-1", "a", b"1")
    other = RedisCheckpointStore(server.url)
    await other.open()
    assert await other.load("m-1") == {"a": b"1"}
    await other.close()
    await other.close()


async def test_a_lost_connection_is_made_again(
    store: RedisCheckpointStore, server: OwnServer
) -> None:
    await store.save("m-1", "a", b"1")
    await asyncio.to_thread(server.restart)

    async def loaded() -> Any:
        try:
            return await store.load("m-1")
        except CheckpointStoreError:
            return None

    assert await wait_for(loaded) == {"a": b"1"}


async def test_what_is_wrong_is_said_without_the_password(server: OwnServer) -> None:
    closed = RedisCheckpointStore("redis://me:s3cr3t@127.0.0.1:1")
    with pytest.raises(CheckpointStoreError, match="open it first"):
        await closed.load("m-1")
    with pytest.raises(CheckpointStoreError, match=r"127\.0\.0\.1:1") as caught:
        await closed.open()
    assert "s3cr3t" not in f"{caught.value!r}{closed!r}"
    with pytest.raises(ConfigurationError, match="ttl"):
        RedisCheckpointStore(server.url, ttl=-1)


async def test_a_step_is_not_repeated(
    store: RedisCheckpointStore, manual_clock: ManualClock
) -> None:
    runs: list[str] = []

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", lambda: runs.append("charge"))
        if ctx.attempt == 1:
            raise ValueError("after the charge")

    app = make_app(
        MemoryTransport(clock=manual_clock),
        subscribed(charge, idempotent="resumable"),
        clock=manual_clock,
        checkpoints=store,
    )
    async with app:
        await app.send(OrderPlaced("o-1"))
        for _ in range(3):
            await settled(app)
            manual_clock.advance(300)
    assert runs == ["charge"]


def _find_nothing(name: str) -> None:
    """No such module."""


async def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("matador.transports.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", _find_nothing)
    with pytest.raises(MissingExtraError, match=r"pip install 'matador-events\[redis\]'"):
        await RedisCheckpointStore("redis://localhost").open()
