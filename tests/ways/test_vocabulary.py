"""One vocabulary: what ``api.md`` says of every class, one cell after the other."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest
from tests.ways.ways import (
    ALL,
    ChannelPublish,
    Facts,
    Jobs,
    Thing,
    Way,
    over,
)

from matador import (
    Deduplication,
    Matador,
    Schema,
    StandardRetryPolicy,
    event,
    subscriber,
)
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.errors import ConfigurationError, ConnectionFailedError, MatadorError
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.runtime.health import Health
from matador.runtime.metrics import Metrics
from matador.runtime.service import Service
from matador.testing import wait_for

WAYS = [one for one in ALL if one not in (Jobs, ChannelPublish)]
QUICK = StandardRetryPolicy(max_attempts=2, base_delay=0.01)
ONCE = StandardRetryPolicy(max_attempts=1)

RECEIVING: dict[str, Any] = {
    "retry": ONCE,
    "timeout": 5.0,
    "deduplication": Deduplication(),
    "concurrency": 3,
}
SHARED: dict[str, Any] = {"hooks": [Facts()], "connect_timeout": 0.2, "shutdown": 7.0}
OLD = [
    "stop",
    "close",
    "force",
    "stop_receiving",
    "resume_receiving",
    "stop_consuming",
    "connect",
    "disconnect",
    "reconnect",
    "journal",
    "is_healthy",
    "health_status",
    "get_metrics",
    "get_health",
    "drain",
]


async def nothing(data: dict[str, int]) -> None: ...


def server(url: str, **options: Any) -> RpcServer:
    made = RpcServer(url, queue="maths", **options)
    made.register("ADD", nothing)
    return made


def sub(url: str, **options: Any) -> Subscriber:
    made = Subscriber(url, exchange="events", queue="analytics", **options)
    made.on("#")(nothing)
    return made


def application(url: str, **options: Any) -> Matador:
    happened = event("thing.happened", description="It did.")(Thing)
    heard = subscriber(description="Hear.")(nothing)
    return Matador(url, schema=Schema({happened: [heard]}), consume_from=["events"], **options)


def service(url: str, **options: Any) -> QueueService:
    @channel("things")
    class Things:
        @consume("happened")
        async def happened(self, data: dict[str, int]) -> None: ...

    kind: Any = url.partition(":")[0]
    mode: Any = "stream" if kind == "redis" else None
    settings = Settings(QueueSettings(type=kind, url=url, mode=mode))
    return QueueService(settings, channels=[Things], **options)


RECEIVERS: dict[str, Callable[..., Service]] = {
    "Matador": application,
    "RpcServer": server,
    "Subscriber": sub,
    "QueueService": service,
}


def client(url: str, **options: Any) -> RpcClient:
    return RpcClient(url, queue="maths", **options)


def publisher(url: str, **options: Any) -> Publisher:
    return Publisher(url, exchange="events", **options)


EVERYTHING: dict[str, Callable[..., Service]] = RECEIVERS | {
    "RpcClient": client,
    "Publisher": publisher,
}
everything = pytest.mark.parametrize("make", EVERYTHING.values(), ids=EVERYTHING)


# -- constructors and verbs -----------------------------------------------------------------------


@everything
def test_the_old_words_are_gone(make: Callable[..., Service]) -> None:
    made = make("memory://")
    assert [name for name in OLD if hasattr(made, name)] == []


@pytest.mark.parametrize("option", [*RECEIVING, *SHARED])
@pytest.mark.parametrize("name", EVERYTHING)
async def test_an_option_is_taken_and_a_wrong_value_refused(name: str, option: str) -> None:
    make, given = EVERYTHING[name], RECEIVING | SHARED
    if option in RECEIVING and name not in RECEIVERS:
        return  # what only sends has its own retries and timeouts
    async with make("memory://", **{option: given[option]}):
        pass
    if option not in ("hooks", "retry", "deduplication"):
        with pytest.raises(ConfigurationError, match=option):
            make("memory://", **{option: -1})


@everything
async def test_the_life_of_everything_has_the_same_verbs(make: Callable[..., Service]) -> None:
    made = make("memory://")
    for verb in ("start", "shutdown", "pause", "resume"):
        assert inspect.iscoroutinefunction(getattr(made, verb)), verb
    assert list(inspect.signature(made.shutdown).parameters) == ["timeout"]
    assert not inspect.iscoroutinefunction(made.run)
    await made.pause()  # before its start, too
    assert made.is_paused
    async with made:
        assert made.state.status == "paused"
        await made.start()
        await made.resume()
        await made.resume()
        assert (made.state.status, made.is_paused) == ("running", False)
        assert made.transport.state.status == "connected"
    await made.shutdown(timeout=0)
    assert made.state.status == "stopped"


@everything
async def test_health_and_metrics_have_exactly_these_fields(make: Callable[..., Service]) -> None:
    made = make("memory://")
    assert [one.name for one in fields(Health)] == [
        "status",
        "connection_state",
        "processing",
        "last_message_at",
        "last_error",
        "disconnected_since",
    ]
    assert [one.name for one in fields(Metrics)] == [
        "messages_sent",
        "messages_received",
        "messages_succeeded",
        "messages_failed",
        "messages_retried",
        "messages_dead_lettered",
        "messages_discarded",
        "duplicates",
        "expired",
        "connection_losses",
        "connection_recoveries",
    ]
    assert made.health() == Health("unhealthy", "disconnected")
    async with made:
        assert made.health() == Health("healthy", "connected")
        assert made.metrics() == Metrics()
    health = made.health()
    assert (health.status, health.disconnected_since is None) == ("unhealthy", False)


@pytest.mark.parametrize("make", RECEIVERS.values(), ids=RECEIVERS)
async def test_a_queue_that_is_not_consumed_is_degraded(make: Callable[..., Service]) -> None:
    async with (made := make("memory://")):
        workers, made._workers = made._workers, []
        assert made.health().status == "degraded"
        made._workers = workers


@everything
async def test_the_first_connection_is_waited_for(
    make: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        made = make(f"redis://127.0.0.1:{closed.getsockname()[1]}", connect_timeout=0.3)
    with pytest.raises(MatadorError) as caught:
        await made.start()
    error = caught.value
    assert isinstance(error, ConnectionFailedError) or error.__cause__ is not None
    assert "trying again for 0 s" in caplog.text


# -- what handlers do -----------------------------------------------------------------------------


class Log:
    """Notes what runs, and does what it is told."""

    def __init__(self, does: Callable[[], Awaitable[Any]]) -> None:
        self.does = does
        self.ran: list[int] = []

    async def __call__(self, n: int, ctx: Any) -> Any:
        self.ran.append(n)
        return await self.does()


async def fails() -> None:
    raise ValueError("broken")


async def hangs() -> None:
    await asyncio.Event().wait()


async def succeeds() -> int:
    return 1


@over(ways=WAYS, transports=("memory",))
async def test_pause_stops_receiving_and_nothing_else(way: Way) -> None:
    gate, facts = asyncio.Event(), Facts()

    async def waits() -> None:
        await gate.wait()

    log = Log(waits)
    async with way.receiving(log, hooks=facts) as receiver:
        await way.send(1)
        await wait_for(lambda: log.ran == [1])
        await receiver.pause()
        gate.set()
        await wait_for(lambda: facts.outcomes(1) == ["success"])
        await way.send(2)  # sending goes on
        assert receiver.health().status == "healthy"
        assert log.ran == [1]
        assert await way.depth() == 1
        await receiver.resume()
        await wait_for(lambda: log.ran == [1, 2])


@over(ways=WAYS, transports=("memory",))
async def test_the_timeout_of_the_receiver_is_that_of_its_handlers(way: Way) -> None:
    facts = Facts()
    options: dict[str, Any] = {"timeout": 0.05, "retry": QUICK, "idempotent": "yes"}
    async with way.receiving(Log(hangs), hooks=facts, **options):
        await way.send(1)
        await wait_for(lambda: facts.outcomes(1) == ["retry", "dead-letter"])
    assert "0.05 s" in str(facts.attempts[0].error)


async def hang(thing: Thing) -> None:
    await hangs()


def hanging(name: str, given: Any, options: Any) -> tuple[Any, Service, Callable[[], Any]]:
    """A receiver whose handler hangs, what sends to it, and how."""
    receiver: Any = None
    url = f"memory://?name=own-{name}"
    match name:
        case "Matador":
            happened = event("thing.happened", description="It did.")(Thing)
            heard = subscriber(description="Hear.", **options)(hang)
            schema = Schema({happened: [heard]})
            receiver = Matador(url, schema=schema, consume_from=["events"], **given)
            return receiver, receiver, lambda: receiver.send(Thing(1))
        case "RpcServer":
            receiver = RpcServer(url, queue="maths", **given)
            receiver.handler("HANG", **options)(hang)
            caller = RpcClient(url, queue="maths")
            return receiver, caller, lambda: caller.notify("HANG", Thing(1))
        case "Subscriber":
            receiver = Subscriber(url, exchange="e", queue="q", **given)
            receiver.on("#", **options)(hang)
            sender = Publisher(url, exchange="e")
            return receiver, sender, lambda: sender.publish("k", Thing(1))
        case _:

            @channel("things")
            class Things:
                @consume("happened", **options)
                async def happened(self, thing: Thing) -> None:
                    await hangs()

            settings = Settings(QueueSettings(type="memory", url=url))
            receiver = QueueService(settings, channels=[Things], **given)
            return receiver, receiver, lambda: receiver.send("things", "happened", Thing(1))


@pytest.mark.parametrize("name", RECEIVERS)
async def test_a_handler_has_its_own_timeout_and_retries(name: str) -> None:
    """Those of the receiver would wait for an hour, and try three times."""
    facts, options = Facts(), {"timeout": 0.05, "retry": QUICK, "idempotent": "yes"}
    given = {"hooks": facts, "timeout": 3600.0}
    receiver, sender, send = hanging(name, given, options)
    async with receiver, sender:
        await send()
        await wait_for(lambda: facts.outcomes(1) == ["retry", "dead-letter"])


@over(ways=WAYS, transports=("memory",))
async def test_duplicates_are_found_by_every_receiver(way: Way) -> None:
    facts = Facts()
    log = Log(succeeds)
    async with way.receiving(log, hooks=facts, deduplication=Deduplication()) as receiver:
        for _ in range(2):
            await way.send(1, id="7d9f0f6e-6c0c-4b3f-8a53-5f0c6f9a0001")
        await wait_for(lambda: receiver.metrics().messages_received == 2)
        await wait_for(lambda: receiver.metrics().duplicates == 1)
    assert log.ran == [1]


@pytest.mark.parametrize("name", RECEIVERS)
def test_an_unknown_option_of_a_handler_is_refused(name: str) -> None:
    with pytest.raises((ConfigurationError, TypeError), match="timeot"):
        hanging(name, {}, {"timeot": 5})
