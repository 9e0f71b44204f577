"""The broker goes away and comes back; subscribers are stopped, and killed, in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator

import pytest
from chaos.servers import Server
from tests.support.brokers import broker_url
from tests.support.pubsub import Place
from tests.support.redis import OwnServer

from matador.errors import ShuttingDownError
from matador.model.message import REASON_HEADER
from matador.pubsub import (
    BufferExpiredError,
    BufferFullError,
    CircuitBreaker,
    CircuitOpenError,
    MessageContext,
    Publisher,
    PublishError,
    Recovery,
    Subscriber,
)
from matador.testing import wait_for


class Redis:
    """A server of the test's own."""

    def __init__(self, folder: pytest.TempPathFactory) -> None:
        self._server = OwnServer(folder.mktemp("redis"))
        self._server.start()
        self.url = self._server.url

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def discard(self) -> None:
        self._server.stop()


class RabbitMQ:
    """A server of the test's own."""

    def __init__(self, folder: pytest.TempPathFactory) -> None:
        broker_url("rabbitmq")  # skips where there is none
        self._server = Server("rabbitmq")
        self._server.start()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._server.port}/"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def discard(self) -> None:
        self._server.discard()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Redis, marks=pytest.mark.broker),
        pytest.param(RabbitMQ, marks=[pytest.mark.broker, pytest.mark.xdist_group("rabbitmq-own")]),
    ],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Redis | RabbitMQ]:
    found = request.param(tmp_path_factory)
    yield found
    found.discard()


async def test_a_restart_of_the_broker(server: Redis | RabbitMQ) -> None:
    sub = Subscriber(server.url, exchange="restart", queue="restart.q", concurrency=1)
    got: list[int] = []

    @sub.on("#")
    async def handle(message: int) -> None:
        got.append(message)

    patient = Recovery(ttl=120, max_size=50)
    async with sub, Publisher(server.url, exchange="restart", recovery=patient) as publisher:
        await publisher.publish("a", 0)
        await wait_for(lambda: got == [0])
        await asyncio.to_thread(server.stop)
        await wait_for(lambda: publisher.health().status == "unhealthy", timeout=30)
        assert not publisher.is_ready
        waiting = [asyncio.create_task(publisher.publish("a", n)) for n in range(1, 31)]
        many = asyncio.create_task(publisher.publish_many([("a", n) for n in range(31, 41)]))
        await wait_for(lambda: publisher.health().buffered == 40)
        assert not any(one.done() for one in waiting)  # nothing is reported that is only buffered
        late = asyncio.create_task(publisher.publish_many([("a", 100 + n) for n in range(15)]))
        await wait_for(lambda: publisher.health().buffered == 50)
        with pytest.raises(BufferFullError, match="Message buffer is full"):
            await publisher.publish("a", 200)
        await asyncio.to_thread(server.start)
        await asyncio.gather(*waiting)
        await many
        with pytest.raises(PublishError, match="5 of 15 messages were not published") as caught:
            await late
        full = [one for one in caught.value.outcomes if isinstance(one, BufferFullError)]
        assert len(full) == 5
        await wait_for(lambda: len(set(got)) == 51, timeout=60)
        assert publisher.is_ready
    assert list(dict.fromkeys(got)) == [*range(41), *range(100, 110)]


async def test_sends_that_wait_too_long(server: Redis | RabbitMQ) -> None:
    hasty = Recovery(ttl=0.2, reconnect="immediate")
    breaker = CircuitBreaker(threshold=2, recovery_time=600, successes=1)
    publisher = Publisher(server.url, exchange="restart", recovery=hasty, circuit_breaker=breaker)
    plain = Publisher(server.url, exchange="restart", recovery=Recovery(ttl=600))
    async with publisher, plain:
        await asyncio.to_thread(server.stop)
        try:
            await wait_for(lambda: publisher.health().status == "unhealthy", timeout=30)
            for _ in range(2):
                with pytest.raises(BufferExpiredError, match=r"0\.2 s"):
                    await publisher.publish("a", 1)
            with pytest.raises(CircuitOpenError):
                await publisher.publish("a", 1)
            assert publisher.health().circuit == "open"
            await wait_for(lambda: plain.health().status == "unhealthy", timeout=30)
            waiting = asyncio.create_task(plain.publish("a", 1))
            await wait_for(lambda: plain.health().buffered == 1)
            await plain.close(timeout=0.1)
            with pytest.raises(ShuttingDownError):
                await waiting
        finally:
            await asyncio.to_thread(server.start)
        # A connection that is back is tried at once, however long the recovery time is.
        await wait_for(lambda: publisher.health().circuit == "half-open", timeout=60)
        await publisher.publish("a", 2)
        assert publisher.health().circuit == "closed"


# -- stopping -------------------------------------------------------------------------------------


async def test_close_waits_for_handlers(place: Place) -> None:
    sub = place.subscriber("orders", concurrency=2)
    done: list[int] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @sub.on("#")
    async def handle(message: int) -> None:
        begun.set()
        await go.wait()
        done.append(message)

    async with place.publisher() as publisher:
        await sub.start()
        await publisher.publish_many([("a", n) for n in range(5)])
        await begun.wait()
        closing = asyncio.create_task(sub.close())
        await wait_for(lambda: not sub.health().consumers or not sub.health().consumers[0].waiting)
        go.set()
        await closing
    assert 1 <= len(done) <= 5
    async with sub:  # it has bound the queue: on Kafka only such a process sees what is left
        await wait_for(lambda: len(done) >= 5)
    assert sorted(done) == list(range(5))


@pytest.mark.parametrize("how", [{"force": True}, {"timeout": 0.05}], ids=["force", "timeout"])
async def test_what_could_not_be_finished_goes_back_uncounted(
    place: Place, how: dict[str, float]
) -> None:
    sub = place.subscriber("orders")
    attempts: list[int] = []
    begun = asyncio.Event()
    hang = asyncio.Event()

    @sub.on("#")
    async def handle(message: int, ctx: MessageContext) -> None:
        attempts.append(ctx.attempts)
        begun.set()
        if len(attempts) == 1:
            await hang.wait()

    async with place.publisher() as publisher:
        await sub.start()
        await publisher.publish("a", 1)
        await begun.wait()
        await sub.close(**how)  # type: ignore[arg-type] - one of the two
        async with sub:
            await wait_for(lambda: sub.counters.succeeded == 1)
    assert attempts == [1, 1]


# -- processes that are killed --------------------------------------------------------------------

PROGRAM = """
import asyncio, os, signal, sys
from matador.pubsub import Subscriber
url, exchange, queue = sys.argv[1:]
sub = Subscriber(url, exchange=exchange, queue=queue, concurrency=4)

@sub.on("#")
async def handle(message: str):
    if message == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    print(message, flush=True)

sub.run()
"""


async def start(place: Place) -> Process:
    url = place.url + ("?lease=1" if place.broker == "sqlite" else "")
    url += "&lease=1" if place.broker == "redis" else ""
    arguments = (url, place.exchange, place.queue("orders"))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, stdout=PIPE
    )


async def test_a_message_that_kills_its_process(place: Place) -> None:
    """It becomes a dead letter, and takes no other message along."""
    if place.broker == "memory":
        pytest.skip("its queues die with the process")
    sub = place.subscriber("orders")

    @sub.on("#")
    async def handle(message: str) -> None: ...

    async with sub:
        pass
    good = [f"good-{n}" for n in range(20)]
    async with place.publisher() as publisher:
        await publisher.publish_many([("a", one) for one in (*good[:2], "poison", *good[2:])])
    handled: set[str] = set()
    for _ in range(12):
        process = await start(place)
        if await handles(process, handled, {*good}):
            await end(process)
            break
        await process.wait()  # it was killed
    assert handled == {*good}
    letters = asyncio.create_task(place.letters("orders"))
    for _ in range(12):  # until it has killed enough processes, if it has not yet
        process = await start(place)
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({letters, ended}, return_when=asyncio.FIRST_COMPLETED)
        await end(process)
        await ended
        if letters.done():
            break
    (letter,) = await letters
    assert letter.body == b'"poison"'
    assert "possibly poisoned" in str(letter.headers[REASON_HEADER])


async def handles(process: Process, handled: set[str], all_: set[str]) -> bool:
    """Does the process live until everything is handled?"""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while handled != all_:
            line = await process.stdout.readline()
            if not line:
                return False
            handled.add(line.decode().strip())
    return True


async def end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
