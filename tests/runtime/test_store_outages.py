"""A store in a real Redis that is away: messages wait, results are kept, and nothing runs twice."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw
from tests.support.redis import OwnServer, plain_client

from matador import RedisCheckpointStore
from matador.policy.dedup import Deduplication
from matador.rpc import RpcClient, RpcContext, RpcServer
from matador.runtime.redis_dedup import RedisDuplicateStore
from matador.testing import wait_for

pytestmark = pytest.mark.broker
ALL = list(range(10))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[OwnServer]:
    """The server of the store; the broker is another one."""
    folder = tmp_path / "redis"
    folder.mkdir()
    own = OwnServer(folder)
    own.start()
    yield own
    own.stop()


@pytest.fixture(params=["sqlite", "rabbitmq"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of a broker, and a queue."""
    queue = f"outage-{tmp_path.name}-{id(request):x}"
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'broker.db'}?lease=1", queue
        return
    url = broker_url("rabbitmq")
    yield url, queue
    with Raw(url) as raw:
        for name in (queue, f"{queue}.dlq"):
            raw.channel.queue_delete(name)


class Away:
    """Stops the server of the store, and starts it again."""

    def __init__(self, server: OwnServer) -> None:
        self._server = server

    async def begin(self) -> None:
        await asyncio.to_thread(self._server.stop, signal.SIGKILL)

    async def end(self) -> None:
        await asyncio.to_thread(self._server.start)


@asynccontextmanager
async def serving(
    broker: tuple[str, str], handler: Any, **options: Any
) -> AsyncGenerator[tuple[RpcServer, RpcClient]]:
    url, queue = broker
    idempotent = options.pop("idempotent", "yes")
    server = RpcServer(url, queue=queue, dead_letters=True, **options)
    server.handler("DO", idempotent=idempotent)(handler)
    async with server, RpcClient(url, queue=queue) as client:
        yield server, client


async def test_notifications_wait_for_the_store_of_duplicates(
    broker: tuple[str, str], redis: OwnServer
) -> None:
    ran: list[int] = []
    remembering = Deduplication(store=RedisDuplicateStore(redis.url))

    async def handle(n: int) -> None:
        ran.append(n)

    async with serving(broker, handle, deduplication=remembering) as (server, client):
        away = Away(redis)
        await away.begin()
        for n in ALL:
            await client.notify("DO", n)
        await wait_for(lambda: server.metrics().messages_received >= len(ALL))
        assert ran == []
        await away.end()
        await wait_for(lambda: len(ran) == len(ALL), timeout=30)
        metrics = server.metrics()
    assert sorted(ran) == ALL
    assert (metrics.messages_failed, metrics.messages_dead_lettered) == (0, 0)


async def test_results_are_kept_until_the_store_of_duplicates_is_back(
    broker: tuple[str, str], redis: OwnServer
) -> None:
    charged: list[int] = []
    go_on = asyncio.Event()
    remembering = Deduplication(store=RedisDuplicateStore(redis.url))

    async def handle(n: int) -> int:
        charged.append(n)
        await go_on.wait()
        return n * 10

    async with serving(broker, handle, deduplication=remembering) as (server, client):

        def call(n: int) -> Any:
            return client.call("DO", n, message_id=f"charge-{n}", timeout=60)

        calls = asyncio.gather(*map(call, ALL))
        await wait_for(lambda: len(charged) == len(ALL))
        away = Away(redis)
        await away.begin()
        go_on.set()
        await wait_for(lambda: server.health().processing == len(ALL))
        await away.end()
        results = [n * 10 for n in ALL]
        assert await calls == results
        assert await asyncio.gather(*map(call, ALL)) == results
        assert server.metrics().messages_failed == 0
    assert sorted(charged) == ALL


async def test_steps_wait_for_the_checkpoint_store(
    broker: tuple[str, str], redis: OwnServer
) -> None:
    charged: list[int] = []
    finished: list[int] = []
    go_on = asyncio.Event()

    async def handle(n: int, ctx: RpcContext) -> None:
        async def charge() -> int:
            charged.append(n)
            if n < 5:
                await go_on.wait()
            return n

        await ctx.io("charge", charge)
        finished.append(n)

    store = RedisCheckpointStore(redis.url)
    options: dict[str, Any] = {"checkpoints": store, "idempotent": "resumable"}
    async with serving(broker, handle, **options) as (server, client):
        for n in ALL[:5]:
            await client.notify("DO", n)
        await wait_for(lambda: len(charged) == 5)
        away = Away(redis)
        await away.begin()
        go_on.set()
        for n in ALL[5:]:
            await client.notify("DO", n)
        await wait_for(lambda: server.metrics().messages_received >= len(ALL))
        assert finished == []
        await away.end()
        await wait_for(lambda: len(finished) == len(ALL), timeout=30)
        assert server.metrics().messages_failed == 0
    assert sorted(charged) == sorted(finished) == ALL


@pytest.mark.timeout(900)  # it starts up to 14 processes, one after the other
async def test_a_wait_for_a_dead_process_is_no_delivery_of_a_poisoned_message(
    broker: tuple[str, str], redis: OwnServer, tmp_path: Path
) -> None:
    url, queue = broker
    file = tmp_path / "notes.txt"
    program = [sys.executable, str(Path(__file__).with_name("dead_owner_program.py"))]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*program, url, redis.url, queue, str(file)])

    async def nothing() -> None: ...

    async with serving(broker, nothing):
        pass  # it makes the queue
    async with RpcClient(url, queue=queue) as client, plain_client(redis.url) as plain:

        async def keys(kind: str) -> list[bytes]:
            found: list[bytes] = await plain.keys("*:duplicates:*")
            return [key for key in found if (b"waits:" in key) == (kind == "waits")]

        await client.notify("NOTE", "harmless")
        owner = start()
        await asyncio.to_thread(owner.wait, 60)
        died = 1
        for _ in range(12):  # a broker may not have counted a delivery when its process dies

            async def waits(count: int = died) -> bool:
                return len(await keys("waits")) >= count

            waiting = start()
            try:
                with suppress(TimeoutError):
                    await wait_for(waits, timeout=20, message=f"process {died}")
                    died += 1
            finally:
                waiting.kill()
                waiting.wait()
            if died > 6:  # more often than a message may be delivered
                break
        assert died > 6
        last = start()
        try:
            await plain.delete(*await keys("owner"))  # its lease has ended
            await wait_for(file.exists, timeout=60, message="the note")
        finally:
            last.terminate()
            await asyncio.to_thread(last.wait, 60)
    assert file.read_text() == "harmless\n"
