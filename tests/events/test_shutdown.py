"""How an application ends: in order, in bounded time, and saying what it had to abandon."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    QUEUE,
    Handler,
    OrderPaid,
    OrderPlaced,
    make_app,
    memory,
    settled,
    subscribed,
)

from matador import Context, Envelope, Hooks, Matador, Schema, Shutdown, Topology
from matador.errors import ShuttingDownError
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport


class Gate:
    """A callback that waits until it is let go, and says how it ended."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.started = 0
        self.finished = 0
        self.cancelled = 0

    async def __call__(self, envelope: Envelope[Any], ctx: Context) -> None:
        self.started += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished += 1


async def begun(app: Matador, gate: Gate) -> None:
    """Send one message and wait until its callback runs."""
    await app.send(OrderPlaced("o-1"))
    await wait_for(lambda: gate.started == 1)


# -- in good order -----------------------------------------------------------------------------


async def test_a_callback_may_send_while_the_shutdown_waits_for_it() -> None:
    gate = Gate()

    async def then_send(envelope: Envelope[Any], ctx: Context) -> None:
        await gate(envelope, ctx)
        (await ctx.send(OrderPaid("o-1"))).raise_for_errors()

    paid = subscribed(Handler(), "paid", queue="later")
    app = make_app(
        None,
        schema=Schema({OrderPlaced: [subscribed(then_send)], OrderPaid: [paid]}),
        topology=Topology("shop", queues=["events", "later"]),
    )
    await app.start()
    await begun(app, gate)
    ending = asyncio.create_task(app.shutdown())
    await wait_for(lambda: app.state.status == "waiting-handlers")
    gate.open.set()
    await ending
    assert len(memory(app).messages("shop.later")) == 1
    assert memory(app).completed(QUEUE) == 1


async def test_a_shutdown_waits_for_sends_that_are_under_way() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def enabled() -> bool:
        asked.set()
        await answer.wait()
        return True

    app = make_app(None, subscribed(Handler(), enabled=enabled), consume_from=())
    for send in (
        lambda: app.send(OrderPlaced("o-1")),
        lambda: app.send_many([OrderPlaced("o-1")]),
    ):
        asked.clear()
        answer.clear()
        await app.start()
        sending = asyncio.create_task(send())
        await asked.wait()
        assert app.state.enqueuing == 1
        ending = asyncio.create_task(app.shutdown())
        await wait_for(lambda: app.state.status == "waiting-handlers")
        answer.set()
        result = await sending
        await ending
        (one,) = result if isinstance(result, list) else [result]
        assert one.ok


async def test_sending_is_over_once_handlers_have_finished() -> None:
    statuses: list[str] = []

    class Slow(MemoryTransport):
        async def disconnect(self) -> None:
            statuses.append(app.state.status)
            with pytest.raises(ShuttingDownError):
                await app.send(OrderPlaced("o-1"))
            with pytest.raises(ShuttingDownError):
                await app.start()
            await super().disconnect()

    app = make_app(Slow(), Handler())
    async with app:
        pass
    assert statuses == ["disconnecting"]


# -- idle --------------------------------------------------------------------------------------


async def test_wait_idle_tells_whether_it_became_idle() -> None:
    gate = Gate()
    async with make_app(None, gate) as app:
        assert await app.wait_idle() is True
        await begun(app, gate)
        assert await app.wait_idle(0.01) is False
        waiting = asyncio.create_task(app.wait_idle(5))
        gate.open.set()
        assert await waiting is True
        assert app.state.is_idle


# -- by force ----------------------------------------------------------------------------------


async def test_the_timeout_can_be_given_to_the_application() -> None:
    gate = Gate()
    app = make_app(None, gate, shutdown=0.01)
    await app.start()
    await begun(app, gate)
    await app.shutdown()
    assert gate.cancelled == 1


async def test_a_sync_callback_cannot_be_stopped_and_is_left_unacknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, go, done = threading.Event(), threading.Event(), threading.Event()

    def stubborn(envelope: Envelope[Any]) -> None:
        started.set()
        go.wait(10)
        done.set()

    app = make_app(None, subscribed(stubborn))
    await app.start()
    await app.send(OrderPlaced("o-1"))
    await wait_for(started.is_set)
    await app.shutdown(0)
    (left,) = memory(app).messages(QUEUE)
    assert (left.state, left.delivery_count) == ("ready", 1), "counted: it may have run"
    assert "1 running" in caplog.text
    assert app.state.is_idle
    go.set()
    await wait_for(done.is_set)


async def test_a_callback_that_will_not_be_cancelled_does_not_hold_up_a_forced_shutdown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    async def deaf(envelope: Envelope[Any], ctx: Context) -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    app = make_app(None, deaf, shutdown=Shutdown(0, grace=0.05))
    await app.start()
    await app.send(OrderPlaced("o-1"))
    await started.wait()
    async with asyncio.timeout(60):
        await app.shutdown()
    assert app.state.status == "stopped"
    assert f"1 running in {QUEUE}" in caplog.text
    release.set()
    await asyncio.sleep(0)


async def test_a_shutdown_with_no_time_and_nothing_to_do_abandons_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with make_app(None, Handler()) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        await app.shutdown(0)
    assert "abandoned" not in caplog.text
    assert memory(app).completed(QUEUE) == 1


async def test_an_interrupted_hook_leaves_no_count_behind() -> None:
    asked = asyncio.Event()

    class Hanging(Hooks):
        async def get_retry_delay(self, envelope: Envelope[Any]) -> float:
            asked.set()
            await asyncio.Event().wait()
            return 1.0

    async def fail(envelope: Envelope[Any], ctx: Context) -> None:
        raise RuntimeError("broken")

    app = make_app(None, fail, hooks=Hanging())
    await app.start()
    await app.send(OrderPlaced("o-1"))
    await asked.wait()
    await app.shutdown(0)
    assert app.state.is_idle
    (left,) = memory(app).messages(QUEUE)
    assert left.state == "ready"


async def test_unsettled_outcomes_are_abandoned_when_the_broker_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = FaultyTransport()
    handler = Handler()
    app = make_app(transport, handler, shutdown=Shutdown(0.05, grace=0.05))
    await app.start()
    transport.settle_errors.extend(ConnectionError("gone") for _ in range(1000))
    await app.send(OrderPlaced("o-1"))
    await wait_for(lambda: handler.runs == 1)
    await app.shutdown()
    assert "1 unsettled" in caplog.text
    assert app.state.is_idle
