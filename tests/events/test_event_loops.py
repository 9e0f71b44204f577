"""An application belongs to one event loop: from another it is refused, before anything is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import QUEUE, Handler, OrderPlaced, make_app, memory, subscribed

from matador import Context, Envelope, Matador, SendOptions
from matador.errors import ConnectionFailedError, LifecycleError, WrongLoopError
from matador.runtime.dead_letters import Selection
from matador.testing import wait_for

Use = Callable[[Matador], Coroutine[Any, Any, Any]]


async def browse(app: Matador) -> list[Any]:
    return [letter async for letter in app.dead_letters.browse()]


async def publish(app: Matador) -> None:
    events = [(app.schema.event("order.placed"), OrderPlaced("o"), SendOptions())]
    await app.publish(events)


USES: dict[str, Use] = {
    "start": lambda app: app.start(),
    "async-with": lambda app: app.__aenter__(),
    "pause": lambda app: app.pause(),
    "resume": lambda app: app.resume(),
    "wait_idle": lambda app: app.wait_idle(1),
    "shutdown": lambda app: app.shutdown(),
    "stop_sending": lambda app: app.stop_sending(),
    "send": lambda app: app.send(OrderPlaced("o")),
    "send-with-options": lambda app: app.send(OrderPlaced("o"), correlation_id="c"),
    "send_many": lambda app: app.send_many([OrderPlaced("o")]),
    "publish": publish,
    "apply_topology": lambda app: app.apply_topology(),
    "browse": browse,
    "choose": lambda app: app.dead_letters.choose(Selection()),
    "redrive": lambda app: app.dead_letters.redrive([]),
    "purge": lambda app: app.dead_letters.purge([]),
}


def elsewhere(use: Callable[[], Coroutine[Any, Any, Any]]) -> BaseException | None:
    """Run it in a loop of its own, in another thread; what it raised."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            asyncio.run(use())
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it hangs"
    return raised[0]


@pytest.mark.parametrize("name", USES)
async def test_in_another_loop_nothing_is_done_and_the_error_says_what_to_do(name: str) -> None:
    async with make_app(None, Handler(), consume_from=()) as app:
        error = await asyncio.to_thread(elsewhere, lambda: USES[name](app))
        assert isinstance(error, WrongLoopError)
        assert isinstance(error, LifecycleError)
        assert "app.producer()" in str(error)
        assert "app.sync()" in str(error)
        assert memory(app).messages(QUEUE) == []
        assert app.state.status == "running"
        assert app.state.is_idle
        assert (await app.send(OrderPlaced("o-1"))).ok  # nor is anything spoiled here


async def test_while_it_starts_it_belongs_to_its_loop_already() -> None:
    going = asyncio.Event()
    go_on = asyncio.Event()

    class Slow(FaultyTransport):
        async def connect(self) -> None:
            going.set()
            await go_on.wait()
            await super().connect()

    app = make_app(Slow(), Handler())
    starting = asyncio.create_task(app.start())
    await going.wait()
    for use in (app.start, app.shutdown):
        assert isinstance(await asyncio.to_thread(elsewhere, use), WrongLoopError)
    go_on.set()
    await starting
    await app.shutdown()


def test_a_loop_that_is_closed_is_said_to_be() -> None:
    app = make_app(None, Handler(), consume_from=())
    asyncio.run(app.start())  # and nobody shuts it down
    for use in USES.values():
        with pytest.raises(WrongLoopError, match="closed"):
            asyncio.run(use(app))


def test_after_a_shutdown_it_may_be_started_in_another_loop() -> None:
    app = make_app(None, Handler(), consume_from=())

    async def use() -> None:
        async with app:
            assert (await app.send(OrderPlaced("o-1"))).ok
        await app.shutdown()

    for _ in range(3):
        asyncio.run(use())
    asyncio.run(app.shutdown())
    assert len(memory(app).messages(QUEUE)) == 3


def test_a_start_that_failed_binds_it_to_nothing() -> None:
    transport = FaultyTransport()
    transport.connect_errors.append(ConnectionFailedError("nobody there"))
    app = make_app(transport, Handler(), consume_from=())
    with pytest.raises(ConnectionFailedError):
        asyncio.run(app.start())

    async def use() -> None:
        async with app:
            assert (await app.send(OrderPlaced("o-1"))).ok

    asyncio.run(use())


def test_what_need_not_be_started_can_be_used_anywhere() -> None:
    app = make_app(None, Handler(), consume_from=())

    async def use() -> None:
        assert len((await app.plan_send(OrderPlaced("o"))).outgoing) == 1
        assert await app.wait_idle(1)
        await app.pause()
        await app.resume()

    asyncio.run(use())
    asyncio.run(use())


async def test_the_application_behind_sync_is_free_for_another_loop(tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path}/shop.db", Handler(), consume_from=())
    with pytest.raises(WrongLoopError, match=r"would block .* `await app\.send\(\.\.\.\)`"):
        app.sync().send(OrderPlaced("o-1"))
    async with app:  # each has a connection of its own
        assert (await asyncio.to_thread(app.sync().send, OrderPlaced("o-1"))).ok
        assert (await app.send(OrderPlaced("o-1"))).ok
    await asyncio.to_thread(app.sync().shutdown)


def test_sync_called_in_its_own_loop_is_refused_and_does_not_hang() -> None:
    raised: list[BaseException] = []

    async def pay(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        for use in (
            lambda: shop.send(OrderPlaced("o-2")),
            shop.wait_idle,
            shop.start,
            shop.shutdown,
        ):
            try:
                use()
            except WrongLoopError as error:
                raised.append(error)

    handler = Handler(pay)
    app = make_app(None, subscribed(handler))
    shop = app.sync()
    with shop:
        shop.send(OrderPlaced("o-1"))
        asyncio.run(wait_for(lambda: len(raised) == 4))
        assert shop.wait_idle(5)
    assert "ctx.send" in str(raised[0])
