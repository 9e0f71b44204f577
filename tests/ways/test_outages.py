"""The broker restarts, stands still or stays away: nothing is lost, and everything ends in time.

It is the broker that takes long here, so all ways in go through it together.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from chaos.proxy import Proxy
from chaos.servers import own_server
from tests.support.brokers import broker_url
from tests.support.kafka import OwnKafka
from tests.support.left_alone import nothing_left_alone
from tests.support.own_time import OwnTime
from tests.support.redis import OwnServer
from tests.ways.places import Place, place_on
from tests.ways.ways import (
    ALL,
    Call,
    ChannelPublish,
    ChannelSend,
    Events,
    Jobs,
    Notify,
    PubSub,
    Way,
)

from matador import Hooks
from matador.channels import QueueError
from matador.errors import (
    BufferExpiredError,
    BufferFullError,
    CircuitOpenError,
    MatadorError,
    SendFailedError,
    ShuttingDownError,
)
from matador.pubsub import CircuitBreaker, Publisher, Recovery
from matador.rpc import ConnectionLostError
from matador.runtime.hooks import ConnectionChange
from matador.runtime.service import Service
from matador.testing import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TIMEOUT = 0.3
IN_TIME = 30
"""Seconds that only a shutdown that waits for the broker exceeds: for minutes, that is."""

SLOW, QUICK = 1, 2
"""What a message of this number does: wait at the gate, or nothing."""


class States(Hooks):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_connection_state_change(self, event: ConnectionChange) -> None:
        self.seen.append(event.state.status)


class AllWays:
    """All ways in on one broker: a receiver and a sender of each."""

    def __init__(self, place: Place, *, without: tuple[type[Way], ...] = ()) -> None:
        self.place = place
        self.ways = [self._of(kind) for kind in (*ALL, Call) if kind not in without]
        self.runs = {way.name: Counter[int]() for way in self.ways}
        self.gate = asyncio.Event()
        self.receivers: dict[str, Service] = {}
        self.states: dict[str, States] = {}

    def _of(self, kind: type[Way]) -> Way:
        way = kind(self.place)
        way.tag = f"{self.place.tag}-{kind.name}"  # channels of two kinds would share one
        way.lease = 3
        return way

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """All run; each has handled a first message."""
        self.gate = asyncio.Event()
        for way in self.ways:
            self.states[way.name] = States()
            self.receivers[way.name] = receiver = way.receiver(
                self._handler(way), hooks=self.states[way.name]
            )
            await way.started(receiver)
            if isinstance(way, ChannelPublish):  # a service may send what it consumes
                way._sender = receiver
        await self.done(-len(self.states))
        try:
            yield
        finally:
            await asyncio.gather(*(one.shutdown(5) for one in self.receivers.values()))
            await asyncio.gather(*(way.close() for way in self.ways))
            for way in self.ways:
                way._sender = way._looking = None

    def _handler(self, way: Way) -> Callable[[int, Any], Any]:
        async def handle(n: int, ctx: Any) -> int:
            self.runs[way.name][n] += 1
            if n == SLOW:
                await self.gate.wait()
            return n

        return handle

    @property
    def services(self) -> list[Service]:
        """The receivers and the senders. An application is both."""
        senders = [way._sender for way in self.ways if way._sender is not None]
        return [*self.receivers.values(), *senders]

    def sending(self, n: int, *, without: tuple[type[Way], ...] = ()) -> list[asyncio.Task[Any]]:
        """Send a message each."""
        ways = [way for way in self.ways if not isinstance(way, without)]
        return [asyncio.create_task(way.send(n), name=way.name) for way in ways]

    def ran(self, n: int, *, times: int = 1, without: tuple[type[Way], ...] = ()) -> bool:
        """Has each handled it, so often?"""
        ways = [way for way in self.ways if not isinstance(way, without)]
        return all(self.runs[way.name][n] >= times for way in ways)

    async def done(self, n: int) -> None:
        """Send a message each, and have it handled."""
        await asyncio.gather(*self.sending(n))
        await wait_for(lambda: self.ran(n), timeout=60)


# -- a restart ------------------------------------------------------------------------------------


class Redis:
    """A server of the tests' own."""

    def __init__(self, folder: Path) -> None:
        self._server = OwnServer(folder)
        self._server.start()
        self.url = self._server.url

    def start(self) -> None:
        self._server.start()

    def stop(self, *, kill: bool) -> None:
        self._server.stop(signal.SIGKILL if kill else signal.SIGTERM)


class RabbitMQ:
    """A server of the tests' own."""

    def __init__(self, folder: Path) -> None:
        broker_url("rabbitmq")  # skips where there is none
        self._server = own_server("rabbitmq")
        self.url = f"amqp://guest:guest@127.0.0.1:{self._server.port}/"

    def start(self) -> None:
        self._server.start()

    def stop(self, *, kill: bool) -> None:
        self._server.stop(kill=kill)


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Redis | RabbitMQ]]:
    kind = Redis if request.param == "redis" else RabbitMQ
    found = kind(tmp_path_factory.mktemp("own"))
    yield request.param, found
    if isinstance(found, Redis):
        found.stop(kill=True)


@pytest.mark.parametrize("kill", [False, True], ids=["restart", "crash"])
async def test_the_broker_comes_back(
    server: tuple[str, Redis | RabbitMQ],
    kill: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Scenarios: Redis connection recovery; connection state tracking.

    Calls that were under way fail by name. Sends wait, but for those of events and jobs, which fail
    at once. Subscriptions are restored, also those for what is published.
    """
    caplog.set_level(logging.INFO, "matador.transport")
    name, broker = server
    async with place_on(name, tmp_path, broker.url) as place:
        # Restarts of the Redis of jobs: tests/transports/bullmq/test_jobs.py.
        each = AllWays(place, without=(Jobs,) if name == "redis" else ())
        async with each.running():
            (call,) = [way for way in each.ways if isinstance(way, Call)]
            pending = asyncio.create_task(call.send(SLOW))
            await wait_for(lambda: each.runs["call"][SLOW] == 1)
            await asyncio.to_thread(broker.stop, kill=kill)
            health = Service.health  # that of a queue of jobs is another
            for one in each.services:
                await wait_for(lambda one=one: health(one).status == "unhealthy", timeout=60)
                away = health(one)
                assert (away.connection_state, bool(away.last_error)) == ("reconnecting", True)
                assert away.disconnected_since is not None
            with pytest.raises(ConnectionLostError):
                await pending
            at_once = (Events, Jobs)
            waiting = each.sending(QUICK, without=at_once)
            for way in each.ways:
                if isinstance(way, at_once):
                    with pytest.raises(MatadorError):
                        await way.send(QUICK)
                else:
                    await wait_for(lambda way=way: way._sender.sender_health.buffered == 1)
            assert not any(one.done() for one in waiting), "what only waits was not sent"
            await asyncio.to_thread(broker.start)
            async with OwnTime() as own:
                await asyncio.gather(*waiting)
            assert own.seconds < 10, "soon after the server is there again"
            await wait_for(lambda: each.ran(QUICK, without=at_once), timeout=60)
            for one in each.services:
                await wait_for(lambda one=one: health(one).status == "healthy", timeout=60)
                assert health(one).disconnected_since is None
                counted = one.metrics()
                assert counted.connection_losses == counted.connection_recoveries >= 1
            await each.done(QUICK + 1)
            for states in each.states.values():
                seen = [one for one in dict.fromkeys(states.seen) if one != "connecting"]
                assert seen == ["connected", "reconnecting"]
                assert states.seen[-1] == "connected"
            each.gate.set()
    assert "is reconnecting" in caplog.text
    assert "is connected" in caplog.text.partition("is reconnecting")[2]
    assert each.runs["call"][SLOW] >= 1


# -- behind a network ----------------------------------------------------------------------------


class Network:
    """A real broker behind a network that can be cut and frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        direct = broker_url(name)
        port = urlsplit(direct).port
        assert port is not None
        self.proxy = Proxy(port)
        self.url = direct.replace(f":{port}", f":{self.proxy.port}")

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self.proxy.refuse()
        self.proxy.reset()

    def freeze(self) -> None:
        self.proxy.hold()

    def heal(self) -> None:
        self.proxy.heal()


@pytest_asyncio.fixture(params=["redis", "rabbitmq"])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    made = Network(request.param)
    yield made
    made.proxy.close()


@pytest_asyncio.fixture
async def each(network: Network, tmp_path: Path) -> AsyncIterator[AllWays]:
    async with place_on(network.name, tmp_path, network.url) as place:
        yield AllWays(place)
        network.heal()
        await nothing_left_alone()


async def why(sending: Any) -> BaseException:
    """The error of a send; of a channel's, its cause."""
    with pytest.raises(MatadorError) as caught:
        await sending
    if isinstance(caught.value, QueueError):
        assert caught.value.__cause__ is not None
        return caught.value.__cause__
    return caught.value


@pytest.mark.parametrize("kind", [Notify, PubSub, ChannelSend])
async def test_sends_while_the_broker_stays_away(
    kind: type[Way], network: Network, tmp_path: Path
) -> None:
    """Scenario: circuit breaker for connection failures."""

    async def nothing(n: int, ctx: Any) -> None: ...

    breaker = CircuitBreaker(threshold=2, recovery_time=600, successes=1)
    hasty = Recovery(ttl=0.2, reconnect="immediate")
    async with place_on(network.name, tmp_path, network.url) as place:
        way = kind(place)
        async with way.receiving(nothing):  # there is a queue to send to
            pass
        made: Any = way
        sender: Any = made.sender(recovery=hasty, circuit_breaker=breaker)
        patient: Any = made.sender(recovery=Recovery(ttl=600, max_size=1), circuit_breaker=None)
        await way.started(sender)
        await way.started(patient)
        network.cut()
        for one in (sender, patient):
            await wait_for(lambda one=one: Service.health(one).status == "unhealthy")
        for _ in range(2):
            expired = await why(way._send(sender, 1, None))
            assert isinstance(expired, BufferExpiredError)
            assert "0.2 s" in str(expired)
        assert isinstance(await why(way._send(sender, 1, None)), CircuitOpenError)
        assert sender.sender_health.circuit == "open"
        waiting = asyncio.create_task(way._send(patient, 1, None))
        await wait_for(lambda: patient.sender_health.buffered == 1)
        full = await why(way._send(patient, 1, None))
        assert isinstance(full, BufferFullError)
        await patient.shutdown(timeout=0.1)
        assert isinstance(await why(waiting), ShuttingDownError)
        network.heal()
        # A connection that is back is tried at once, however long the recovery time is.
        await wait_for(lambda: sender.sender_health.circuit == "half-open")
        await way._send(sender, 2, None)
        assert sender.sender_health.circuit == "closed"
        await sender.shutdown()
        await way.close()


async def test_a_broker_that_stands_still_delays_everything(
    network: Network, each: AllWays, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing passes, and no connection is closed; then all goes on, and runs once."""
    caplog.set_level(logging.WARNING)
    for way in each.ways:
        way.lease = None
    async with each.running():
        slow = each.sending(SLOW)
        await wait_for(lambda: each.ran(SLOW))
        caplog.clear()
        network.freeze()
        quick = each.sending(QUICK)
        each.gate.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + 1
        await wait_for(lambda: loop.time() > until)
        assert not any(one.done() for one in quick)
        network.heal()
        async with asyncio.timeout(60):
            await asyncio.gather(*slow, *quick)
            await wait_for(lambda: each.ran(QUICK), timeout=60)
        await asyncio.gather(*(one.wait_idle(30) for one in each.receivers.values()))
    for name, runs in each.runs.items():
        assert (runs[SLOW], runs[QUICK]) == (1, 1), name
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_all_end_in_time_while_the_broker_stands_still(
    network: Network, each: AllWays, caplog: pytest.LogCaptureFixture
) -> None:
    async with each.running():
        slow = each.sending(SLOW)
        await wait_for(lambda: each.ran(SLOW))
        await wait_for(lambda: all(one.done() for one in slow if one.get_name() != "call"))
        network.freeze()
        unsure = each.sending(QUICK, without=(Call,))
        await asyncio.sleep(0)
        senders = [one for one in each.services if one not in each.receivers.values()]
        async with asyncio.timeout(IN_TIME):
            await asyncio.gather(*(one.shutdown(TIMEOUT) for one in senders))
        async with asyncio.timeout(IN_TIME):
            await asyncio.gather(*(one.shutdown(TIMEOUT) for one in each.receivers.values()))
        for task in slow:
            if task.get_name() == "call":
                with pytest.raises(ShuttingDownError):
                    await task
        for task in unsure:
            error = await why(task)
            unknown = error.unknown if isinstance(error, SendFailedError) else False
            assert unknown or "may be stored" in str(error), task.get_name()
        for way in each.ways:
            assert f"1 running in {way.queue}" in caplog.text or isinstance(way, ChannelPublish)
        network.heal()
        await nothing_left_alone()
    async with each.running():  # and nothing was lost
        each.gate.set()
        await each.done(QUICK + 1)
        gone = (ChannelPublish, Call)  # nobody waits for it any more
        await wait_for(lambda: each.ran(SLOW, times=2, without=gone), timeout=60)


SUBSCRIBER = """
import sys
from matador.pubsub import Subscriber
sub = Subscriber(sys.argv[1], exchange=sys.argv[2], queue=sys.argv[2])
@sub.on("#")
async def handle(number: int) -> None:
    print(number, flush=True)
sub.run()
"""


@pytest.mark.chaos
@pytest.mark.kafka_long
async def test_a_process_ends_while_kafka_stands_still(tmp_path: Path) -> None:
    kafka = OwnKafka(tmp_path)
    await asyncio.to_thread(kafka.start)
    program = [sys.executable, "-c", SUBSCRIBER, kafka.url, "frozen"]
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE)
    try:
        assert process.stdout is not None
        async with Publisher(kafka.url, exchange="frozen") as publisher, asyncio.timeout(60):
            reading = asyncio.create_task(process.stdout.readline())
            while not reading.done():  # it has begun when it has received something
                await publisher.publish("a", 1)
                await asyncio.wait([reading], timeout=0.1)
        kafka.freeze()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(45):  # it would hang for as long as Kafka does
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await asyncio.to_thread(kafka.kill)
