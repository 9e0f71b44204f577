"""The life of a service: started once, ended in time, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import Handler, Heard, OrderPlaced, make_app, memory, settled

from matador import Context, Deduplication, Envelope, Hooks
from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    NotStartedError,
    ShuttingDownError,
)
from matador.model.message import ConnectionState, Message
from matador.model.topology import Topology
from matador.runtime.connection import Connection
from matador.runtime.dedup import MemoryDuplicateStore
from matador.runtime.health import ConsumerHealth, health_status
from matador.runtime.outbox import Parcel
from matador.runtime.service import Service, Shutdown
from matador.testing import wait_for
from matador.transports.base import Transport
from matador.transports.memory import MemoryTransport

TOPOLOGY = Topology("shop", queues=["events"])
QUEUE = "shop.events"


async def nothing() -> None:
    pass


class Post(Service):
    """A service that sends, and counts how often it is opened and closed."""

    def __init__(
        self,
        transport: Transport | None = None,
        opens: Callable[[], Awaitable[None]] = nothing,
        **options: Any,
    ) -> None:
        self.given = transport or MemoryTransport()
        super().__init__("Post", Connection(self.given, "Post", owned=True), **options)
        self._opens = opens
        self.opened = self.closed = 0
        self.store = Duplicates()

    async def _open(self, transport: Transport) -> None:
        self.opened += 1
        await transport.apply_topology(TOPOLOGY)
        self._open_outbox(transport)
        await self._open_dedup(Deduplication(store=self.store))
        await self._opens()

    async def _close(self, deadline: Any) -> None:
        self.closed += 1

    @property
    def status(self) -> str:
        return self._status

    async def send(self, text: str = "hello") -> int:
        outbox = self._may_send()
        return await outbox.send(Parcel(Message(text, QUEUE, text.encode()), None, None))


class Duplicates(MemoryDuplicateStore):
    """Knows whether it is open."""

    is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False


def observers(post: Post) -> int:
    assert isinstance(post.given, MemoryTransport)
    return len(post.given._observers)


# -- start ---------------------------------------------------------------------------------------


async def test_it_is_started_once() -> None:
    heard = Heard()
    post = Post(hooks=heard)
    assert not post.is_running
    await asyncio.gather(*(post.start() for _ in range(5)))
    await post.start()
    async with post:
        assert (post.opened, post.is_running, post.status) == (1, True, "running")
        assert await post.send() == 1
        assert observers(post) == 2, "its own, and that of its outbox"
    assert (post.closed, post.is_running, post.status) == (1, False, "stopped")
    assert heard.names.count("start") == heard.names.count("stop") == 1
    assert observers(post) == 0
    assert post.given.state.status == "disconnected"


async def test_all_who_start_it_wait_for_the_same_start_and_get_its_error() -> None:
    go = asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise ConnectionFailedError("the broker went away")

    post = Post(opens=fail)
    starts = [asyncio.create_task(post.start()) for _ in range(3)]
    await wait_for(lambda: post.opened == 1)
    go.set()
    errors = await asyncio.gather(*starts, return_exceptions=True)
    assert [str(error) for error in errors] == ["the broker went away"] * 3
    assert post.opened == 1


async def test_a_start_goes_on_if_the_first_who_asked_for_it_gives_up() -> None:
    go = asyncio.Event()
    post = Post(opens=lambda: wait(go))
    first, second = (asyncio.create_task(post.start()) for _ in range(2))
    await wait_for(lambda: post.opened == 1)
    first.cancel()
    go.set()
    await second
    assert first.cancelled()
    assert (post.is_running, post.opened) == (True, 1)
    await post.shutdown()


async def wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_before_it_is_started_nothing_can_be_sent() -> None:
    post = Post()
    with pytest.raises(NotStartedError, match="Post has not been started"):
        await post.send()
    async with post:
        pass
    with pytest.raises(ShuttingDownError, match=r"Post .* has been shut down"):
        await post.send()


async def test_it_can_be_started_again_after_a_shutdown() -> None:
    post = Post()
    for number in range(3):
        async with post:
            assert await post.send() == 1
            assert observers(post) == 2
        assert (post.opened, post.closed) == (number + 1, number + 1)
    assert post.metrics().messages_sent == 3


def test_in_another_event_loop_too() -> None:
    post = Post()

    async def use() -> None:
        async with post:
            assert await post.send() == 1
            ending = asyncio.create_task(post.shutdown())
            await post.shutdown(timeout=0)  # which hurries: that needs an event of this loop
            await ending

    for _ in range(3):
        asyncio.run(use())
    assert post.opened == 3


@pytest.mark.parametrize(
    "options",
    [{"connect_timeout": -1}, {"connect_timeout": "soon"}, {"shutdown": -1}, {"hooks": "me"}],
    ids=str,
)
def test_options_are_checked_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Post(**options)


# -- a start that fails --------------------------------------------------------------------------


async def fail() -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize("when", ["connect", "check", "open"])
async def test_a_start_that_fails_leaves_nothing_open(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, heard = FaultyTransport(), Heard()
    post = Post(transport, hooks=heard)
    if when == "connect":
        transport.connect_errors.append(OSError("the disk is full"))
    elif when == "check":
        monkeypatch.setattr(post, "_check", _fails)
    else:
        post._opens = fail
    tasks = asyncio.all_tasks()
    with pytest.raises(OSError, match="the disk is full"):
        await post.start()
    assert post.status == "new"
    assert transport.state.status == "disconnected"
    assert observers(post) == 0
    assert not post.store.is_open
    assert (post._outbox, post._dedup, post._workers) == (None, None, [])
    assert asyncio.all_tasks() == tasks
    assert "start" not in heard.names
    monkeypatch.undo()
    post._opens = nothing
    async with post:  # and it can be started after that
        assert await post.send() == 1


def _fails() -> None:
    raise OSError("the disk is full")


async def test_a_start_that_fails_after_it_consumes_gives_back_what_it_received() -> None:
    handled = asyncio.Event()

    async def hang(envelope: Envelope[Any], ctx: Context) -> None:
        handled.set()
        await asyncio.Event().wait()

    transport = FaultyTransport()
    app = make_app(
        transport,
        hang,
        topology=Topology("shop", queues=["events", "more"]),
        consume_from=["events", "more"],
        shutdown=Shutdown(30, grace=0.1),
    )
    async with app.producer() as producer:
        await producer.send(OrderPlaced("o-1"))
        real = transport.subscribe

        async def subscribe(queue: str, *, prefetch: int) -> Any:
            if queue == "shop.more":
                await handled.wait()  # the other queue is being consumed by now
                raise ConnectionFailedError("no more")
            return await real(queue, prefetch=prefetch)

        transport.subscribe = subscribe
        with pytest.raises(ConnectionFailedError, match="no more"):
            await app.start()
        assert app.state.status == "new"
        assert app._workers == []
    assert len(transport.messages(QUEUE)) == 1


async def test_a_start_that_fails_ends_even_if_the_broker_does_not_answer() -> None:
    transport = FaultyTransport()
    transport.subscribe_errors["shop.more"] = ConnectionFailedError("no more")
    transport.slow_close.clear()
    app = make_app(
        transport,
        Handler(),
        topology=Topology("shop", queues=["events", "more"]),
        consume_from=["events", "more"],
        shutdown=Shutdown(30, grace=0.1),
    )
    async with asyncio.timeout(60):
        with pytest.raises(ConnectionFailedError, match="no more"):
            await app.start()
    transport.slow_close.set()
    assert app._workers == []


# -- the first connection ------------------------------------------------------------------------


async def test_the_first_connection_is_tried_once_unless_asked() -> None:
    transport = FaultyTransport()
    transport.connect_errors.extend([ConnectionFailedError("nobody there")] * 3)
    with pytest.raises(ConnectionFailedError, match="nobody there"):
        await Post(transport).start()
    assert len(transport.connect_errors) == 2


@pytest.mark.parametrize("timeout", [30, timedelta(seconds=30)])
async def test_the_first_connection_is_tried_for_as_long_as_asked(
    timeout: Any, caplog: pytest.LogCaptureFixture
) -> None:
    transport = FaultyTransport()
    transport.connect_errors.extend([ConnectionFailedError("nobody there")] * 3)
    async with Post(transport, connect_timeout=timeout) as post:
        assert await post.send() == 1
        assert observers(post) == 2
    assert caplog.text.count("nobody there; trying again for") == 3


async def test_and_no_longer() -> None:
    class Away(MemoryTransport):
        tries = 0

        async def connect(self) -> None:
            self.tries += 1
            raise ConnectionFailedError("nobody there")

    transport = Away()
    post, began = Post(transport, connect_timeout=0.25), time.monotonic()
    with pytest.raises(ConnectionFailedError, match="nobody there"):
        await post.start()
    assert 0.25 <= time.monotonic() - began < 10
    assert transport.tries > 1
    assert (observers(post), post.status) == (0, "new")


async def test_another_error_is_not_tried_again() -> None:
    transport = FaultyTransport()
    transport.connect_errors.append(ConfigurationError("a wrong option"))
    with pytest.raises(ConfigurationError):
        await Post(transport, connect_timeout=30).start()


# -- a shutdown during a start -------------------------------------------------------------------


async def test_a_shutdown_waits_for_a_start_and_ends_it() -> None:
    go = asyncio.Event()
    post = Post(opens=lambda: wait(go))
    starting = asyncio.create_task(post.start())
    await wait_for(lambda: post.opened == 1)
    ending = asyncio.create_task(post.shutdown())
    await asyncio.sleep(0)
    go.set()
    await starting
    await ending
    assert (post.status, post.closed, observers(post)) == ("stopped", 1, 0)


class Hanging(Hooks):
    """Never lets a service start."""

    reached = False

    async def on_start(self) -> None:
        self.reached = True
        await asyncio.Event().wait()


@pytest.mark.parametrize("where", ["connect", "open", "on_start"])
async def test_a_start_that_takes_too_long_is_ended_by_a_shutdown(where: str) -> None:
    transport, hooks = FaultyTransport(), Hanging()
    options: dict[str, Any] = {}
    if where == "connect":
        transport.connect_errors.extend([ConnectionFailedError("nobody there")] * 1000)
        options = {"connect_timeout": 600}
    elif where == "on_start":
        options = {"hooks": hooks}
    post = Post(transport, **options)
    if where == "open":
        post._opens = lambda: wait(asyncio.Event())
    starting = asyncio.create_task(post.start())
    await wait_for(
        lambda: {
            "connect": len(transport.connect_errors) < 1000,
            "open": post.opened == 1,
            "on_start": hooks.reached,
        }[where]
    )
    async with asyncio.timeout(60):
        await post.shutdown(0.01)
        with pytest.raises(ShuttingDownError, match="Post was shut down before it started"):
            await starting
    assert transport.state.status == "disconnected"
    assert (post.status, observers(post), post.store.is_open) == ("new", 0, False)


# -- shutdown ------------------------------------------------------------------------------------


async def test_a_shutdown_of_what_does_not_run_does_nothing() -> None:
    heard = Heard()
    post = Post(hooks=heard)
    await post.shutdown()
    assert (post.status, heard.names) == ("new", [])
    async with post:
        pass
    await asyncio.gather(post.shutdown(), post.shutdown(0))
    assert (post.closed, heard.names.count("stop")) == (1, 1)


async def test_while_it_shuts_down_it_cannot_be_started() -> None:
    go = asyncio.Event()

    class Slow(Post):
        async def _close(self, deadline: Any) -> None:
            await go.wait()

    post = Slow()
    await post.start()
    ending = asyncio.create_task(post.shutdown())
    await wait_for(lambda: post.status == "disconnecting")
    with pytest.raises(ShuttingDownError, match="start it again afterwards"):
        await post.start()
    with pytest.raises(ShuttingDownError):
        await post.send()
    go.set()
    await ending
    await post.start()
    await post.shutdown()


async def test_a_shutdown_goes_on_if_the_first_who_asked_for_it_gives_up() -> None:
    go, heard = asyncio.Event(), Heard()

    class Slow(Post):
        async def _close(self, deadline: Any) -> None:
            await go.wait()

    post = Slow(hooks=heard)
    await post.start()
    first = asyncio.create_task(post.shutdown())
    await wait_for(lambda: post.status == "disconnecting")
    first.cancel()
    second = asyncio.create_task(post.shutdown())
    await asyncio.sleep(0)
    go.set()
    await second
    assert (post.status, heard.names.count("stop")) == ("stopped", 1)


def test_a_shutdown_has_thirty_seconds_unless_told_otherwise() -> None:
    assert Post()._shutdown_options == Shutdown(timeout=30, grace=5)
    assert Post(shutdown=7)._shutdown_options.timeout == 7


async def test_a_shutdown_that_was_hurried_does_not_hurry_the_next_one() -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def hang(envelope: Envelope[Any], ctx: Context) -> None:
        started.set()
        await go.wait()

    heard = Heard()
    app = make_app(None, hang, hooks=heard)
    await app.start()
    await app.send(OrderPlaced("o-1"))
    await started.wait()
    patient = asyncio.create_task(app.shutdown())
    await wait_for(lambda: app.state.status == "waiting-handlers")
    await app.shutdown(0)
    await patient
    started.clear()
    await app.start()
    await started.wait()
    patient = asyncio.create_task(app.shutdown())
    await wait_for(lambda: app.state.status == "waiting-handlers")
    for _ in range(100):
        await asyncio.sleep(0)
    assert app.state.status == "waiting-handlers"
    go.set()
    await patient
    assert len(heard.of("success")) == 1, "it was waited for"


async def test_a_part_that_cannot_be_released_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Post):
        async def _close(self, deadline: Any) -> None:
            raise OSError("cannot close")

    post = Broken()
    async with post:
        await post.send()
    assert "Post: could not release everything" in caplog.text
    assert not post.store.is_open
    assert (post.status, post.given.state.status, observers(post)) == ("stopped", "disconnected", 0)


async def test_a_shutdown_waits_for_handlers_if_a_subscription_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport = FaultyTransport()
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(envelope: Envelope[Any], ctx: Context) -> None:
        begun.set()
        await go.wait()

    async def fail() -> None:
        raise ConnectionFailedError("gone")

    app = make_app(transport, handle)
    await app.start()
    await app.send(OrderPlaced("o-1"))
    await begun.wait()
    monkeypatch.setattr(app._workers[0].consumers[0]._subscription, "close", fail)
    ending = asyncio.create_task(app.shutdown())
    await wait_for(lambda: app.state.status == "waiting-handlers")
    go.set()
    await ending
    assert len(transport.settled) == 1
    assert "could not stop receiving: gone" in caplog.text


# -- how it is doing -----------------------------------------------------------------------------


def consumer(*, receiving: bool = True, last_poll: float = 0.0) -> ConsumerHealth:
    return ConsumerHealth(QUEUE, 10, 0, 0, 0, receiving, last_poll)


@pytest.mark.parametrize(
    ("connection", "circuit", "consumers", "status"),
    [
        ("connected", None, None, "healthy"),
        ("connected", "closed", None, "healthy"),
        ("connected", "half-open", None, "healthy"),
        ("connected", "open", None, "unhealthy"),
        ("connected", None, (consumer(),), "healthy"),
        ("connected", None, (consumer(receiving=False),), "healthy"),
        ("connected", None, (consumer(last_poll=3600),), "healthy"),
        ("connected", None, (consumer(), consumer(receiving=False, last_poll=61)), "degraded"),
        ("connected", None, (), "degraded"),
        ("reconnecting", None, (consumer(),), "unhealthy"),
        ("disconnected", None, None, "unhealthy"),
        ("failed", None, None, "unhealthy"),
    ],
)
def test_its_health_is_one_of_three(
    connection: Any, circuit: Any, consumers: tuple[ConsumerHealth, ...] | None, status: str
) -> None:
    """``consumers``: None if it consumes nothing."""
    consumes = consumers is not None
    assert health_status(connection, circuit, consumers or (), consumes=consumes) == status


async def test_a_lost_connection_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "matador.transport")
    async with Post() as post:
        for attempt in (1, 2, 3):
            error = ConnectionFailedError("the cable")
            state = ConnectionState("reconnecting", attempt=attempt, error=error)
            post.connection_changed("memory", state)
        assert post.health().disconnected_since is not None
        assert post.health().last_error == "the cable"
        assert post.metrics().connection_recoveries == 0
        post.connection_changed("memory", ConnectionState("connected"))
        assert post.health().disconnected_since is None
        assert post.metrics().connection_losses == post.metrics().connection_recoveries == 1
        post.connection_changed("memory", ConnectionState("connected"))
        assert post.metrics().connection_recoveries == 1


async def test_connections_of_a_group_are_counted_separately(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "matador.transport")
    async with Post() as post:
        for name in ("rabbitmq", "redis"):
            post.connection_changed(name, ConnectionState("reconnecting", attempt=1))
        for recoveries, name in enumerate(("rabbitmq", "redis"), 1):
            post.connection_changed(name, ConnectionState("connected"))
            assert post.metrics().connection_recoveries == recoveries
        assert post.metrics().connection_losses == 2


async def test_pausing_before_a_start_holds_after_it() -> None:
    handler = Handler()
    app = make_app(None, handler)
    await app.pause()
    async with app:
        await app.send(OrderPlaced("o-1"))
        assert app.health().status == "healthy"
        assert (await memory(app).depth(QUEUE)).ready == 1
        await app.resume()
        await settled(app)
        assert handler.runs == 1


async def test_a_paused_service_starts_without_running_anything() -> None:
    handler, transport = Handler(), FaultyTransport()
    queues = ["events", "more"]
    app = make_app(
        transport, handler, topology=Topology("shop", queues=queues), consume_from=queues
    )
    async with app.producer() as producer:
        await producer.send(OrderPlaced("o-1"))
        subscribe = transport.subscribe

        async def slowly(queue: str, *, prefetch: int) -> Any:
            for _ in range(50):  # the other queue is being consumed meanwhile
                await asyncio.sleep(0)
            return await subscribe(queue, prefetch=prefetch)

        transport.subscribe = slowly
        await app.pause()
        async with app:
            assert handler.runs == 0
            await app.resume()
            await wait_for(lambda: handler.runs == 1)
