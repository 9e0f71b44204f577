"""How an application starts, what keeps it from starting, and that it can be started again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    QUEUE,
    Handler,
    Heard,
    OrderPaid,
    OrderPlaced,
    make_app,
    memory,
    settled,
    subscribed,
)

from matador import (
    Context,
    Envelope,
    Hooks,
    Matador,
    Schema,
    StandardRetryPolicy,
    SubscriberStub,
    Topology,
)
from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    InvalidSchemaError,
    LifecycleError,
    NotStartedError,
    QueueNotFoundError,
    ShuttingDownError,
    SubscriberIsStubError,
    UnsupportedError,
)
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport
from matador.transports.sqlite import SqliteTransport


def tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_start_connects_makes_the_queues_and_consumes() -> None:
    handler = Handler()
    app = make_app(None, handler)
    assert (app.state.status, app.state.is_idle) == ("new", True)
    await app.start()
    assert app.state.status == "running"
    assert app.transport.state.status == "connected"
    await app.send(OrderPlaced("o-1"))
    await settled(app)
    await app.shutdown()
    assert handler.data == [OrderPlaced("o-1")]
    assert app.state.status == "stopped"
    assert app.transport.state.status == "disconnected"


async def test_a_second_start_does_nothing() -> None:
    heard = Heard()
    async with make_app(None, Handler(), hooks=heard) as app:
        workers = list(app._workers)
        await app.start()
        await asyncio.gather(app.start(), app.start())
        assert app._workers == workers
    assert heard.names.count("start") == 1


async def test_concurrent_starts_are_one() -> None:
    heard = Heard()
    app = make_app(None, Handler(), hooks=heard)
    await asyncio.gather(*(app.start() for _ in range(5)))
    assert heard.names.count("start") == 1
    await app.shutdown()


async def test_it_can_be_started_again_after_a_shutdown() -> None:
    handler, heard = Handler(), Heard()
    app = make_app(None, handler, hooks=heard)
    for number in range(3):
        async with app:
            await app.send(OrderPlaced("o", number))
            await settled(app)
    assert [one.amount for one in handler.data] == [0, 1, 2]
    assert [name for name in heard.names if name in ("start", "stop")] == ["start", "stop"] * 3


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_it_can_be_started_again_in_another_loop(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler, heard = Handler(), Heard()
    transport = MemoryTransport() if kind == "memory" else SqliteTransport(tmp_path / "shop.db")
    app = make_app(transport, handler, hooks=heard)

    async def use(runs: int) -> None:
        async with app:
            await app.send(OrderPlaced("o"))
            await wait_for(lambda: len(heard.of("success")) == runs)

    for runs in (1, 2, 3):
        asyncio.run(use(runs))
    assert handler.runs == 3
    assert [one.state.status for one in heard.of("connection")].count("connected") == 3
    assert "interrupting them" not in caplog.text


# -- what is refused before anything is touched ------------------------------------------------


async def test_an_invalid_schema_is_refused_with_every_problem() -> None:
    handler = subscribed(Handler())
    schema = Schema(
        {OrderPlaced: [handler, handler], OrderPaid: [subscribed(Handler(), queue="x")]}
    )
    app = make_app(None, schema=schema)
    with pytest.raises(InvalidSchemaError, match="Schema validation failed") as caught:
        await app.start()
    assert len(caught.value.problems) == 2
    assert app.transport.state.status == "disconnected"
    assert app.state.status == "new"


async def test_a_stub_on_a_queue_that_is_consumed_is_refused() -> None:
    stub = SubscriberStub("ship", description="Ship it.")
    with pytest.raises(SubscriberIsStubError, match=r"'ship' of 'order\.placed'"):
        await make_app(None, stub).start()


@pytest.mark.parametrize("whose", ["application", "subscriber"])
async def test_a_delivery_mode_the_transport_lacks_is_refused(whose: str) -> None:
    transport = MemoryTransport(without=["at-most-once"])
    if whose == "application":
        app = make_app(transport, Handler(), delivery="at-most-once")
    else:
        app = make_app(transport, subscribed(Handler(), delivery="at-most-once"))
    with pytest.raises(UnsupportedError, match=f"{whose}.* asks for at-most-once"):
        await app.start()


def test_options_that_cannot_be_are_refused_at_once() -> None:
    schema = Schema({OrderPlaced: [subscribed(Handler())]})
    for options in (
        {"delivery": "exactly-once"},
        {"malformed": "explode"},
        {"unsupported_delays": "later"},
        {"max_message_size": 0},
        {"shutdown": -1},
    ):
        with pytest.raises(ConfigurationError):
            Matador("memory://", schema=schema, **options)  # pyright: ignore[reportArgumentType] - the error tested
    with pytest.raises(ConfigurationError, match="schema must be a Schema"):
        Matador("memory://", schema={OrderPlaced: []})  # pyright: ignore[reportArgumentType] - the error tested
    with pytest.raises(QueueNotFoundError, match="did you mean 'events'"):
        Matador("memory://", schema=schema, consume_from=["event"])
    with pytest.raises(ConfigurationError, match="no transport for carrier-pigeon://"):
        Matador("carrier-pigeon://roof", schema=schema)


def test_without_a_topology_there_is_one_queue() -> None:
    app = Matador("memory://", schema=Schema())
    assert (app.topology.namespace, [queue.name for queue in app.topology.queues]) == (
        "matador",
        ["events"],
    )


# -- a start that fails ------------------------------------------------------------------------


async def test_a_start_that_cannot_connect_can_be_tried_again() -> None:
    handler = Handler()
    transport = FaultyTransport()
    transport.connect_errors.append(ConnectionFailedError("nobody there"))
    app = make_app(transport, handler)
    with pytest.raises(ConnectionFailedError):
        await app.start()
    assert app.state.status == "new"
    with pytest.raises(NotStartedError):
        await app.send(OrderPlaced("o-1"))
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert handler.runs == 1


async def test_a_start_that_fails_halfway_leaves_nothing_behind() -> None:
    handler = Handler()
    transport = FaultyTransport()
    topology = Topology("shop", queues=["events", "billing"])
    app = make_app(transport, handler, topology=topology, consume_from=["events", "billing"])
    transport.subscribe_errors["shop.billing"] = QueueNotFoundError("no such queue")
    before = tasks()
    with pytest.raises(QueueNotFoundError):
        await app.start()
    assert transport.state.status == "disconnected"
    assert tasks() <= before, "no consumer of the first queue is left"
    transport.subscribe_errors.clear()
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert handler.runs == 1


# -- the moment of starting --------------------------------------------------------------------


async def test_a_message_that_waited_may_send_while_the_application_still_starts() -> None:
    handler = Handler()

    async def pass_on(envelope: Envelope[Any], ctx: Context) -> None:
        (await ctx.send(OrderPaid("o-1"))).raise_for_errors()

    class SlowStart(Hooks):
        async def on_start(self) -> None:
            await wait_for(lambda: first.runs == 1)

    first = Handler(pass_on)
    schema = Schema({OrderPlaced: [subscribed(first)], OrderPaid: [subscribed(handler)]})
    transport = MemoryTransport()
    async with make_app(transport, schema=schema, consume_from=()) as sender:
        await sender.send(OrderPlaced("o-1"))
    async with make_app(transport, schema=schema, hooks=SlowStart()) as app:
        await settled(app)
        assert (first.runs, handler.runs) == (1, 1)


async def test_what_is_told_of_the_start_may_send() -> None:
    handler = Handler()

    class Announce(Hooks):
        async def on_start(self) -> None:
            (await app.send(OrderPlaced("o-1"))).raise_for_errors()

    app = make_app(None, handler, hooks=Announce())
    async with app:
        await settled(app)
    assert handler.runs == 1


# -- sending before and after ------------------------------------------------------------------


async def test_sending_needs_a_started_application() -> None:
    app = make_app(None, Handler())
    with pytest.raises(NotStartedError):
        await app.send(OrderPlaced("o-1"))
    with pytest.raises(NotStartedError):
        await app.send_many([OrderPlaced("o-1")])
    async with app:
        pass
    with pytest.raises(ShuttingDownError):
        await app.send(OrderPlaced("o-1"))
    with pytest.raises(ShuttingDownError):
        await app.send_many([OrderPlaced("o-1")])


async def test_a_running_application_cannot_be_changed() -> None:
    async with make_app(None, Handler()) as app:
        with pytest.raises(LifecycleError):
            app.configure(transport=MemoryTransport())
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert memory(app).completed(QUEUE) == 1


# -- the configuration ----------------------------------------------------------------------------


async def test_another_application_differs_in_what_is_asked_for_and_in_nothing_else() -> None:
    heard, policy = Heard(), StandardRetryPolicy(max_attempts=7)
    app = make_app(None, Handler(), hooks=heard, retry=policy)
    other = app.with_(consume_from=(), send_errors="report")
    assert (app.consume_from, other.consume_from) == (("events",), ())
    assert (other.transport, other.schema, other.topology) == (
        app.transport,
        app.schema,
        app.topology,
    )
    assert (other._config.retry, other._config.hooks) == (policy, (heard,))
    assert app._config.send_errors == "raise"
    with pytest.raises(ConfigurationError, match=r"unknown option 'retries'.*'retry'"):
        app.with_(retries=3)  # pyright: ignore[reportCallIssue] - the error tested
    with pytest.raises(QueueNotFoundError):
        app.with_(consume_from=["event"])


async def test_a_producer_is_told_of_its_own_connection_alone() -> None:
    heard = Heard()
    app = make_app(None, Handler(), hooks=heard)
    for _ in range(3):
        async with app.producer():
            pass
    async with app:
        pass
    said = [event.state.status for event in heard.of("connection")]
    assert said == ["connected", "disconnected"] * 4, "each is told once"
