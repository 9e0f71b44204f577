"""``app.sync()``: the application for code without an event loop, from any number of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import QUEUE, Handler, OrderPlaced, make_app, memory, subscribed

from matador import Envelope, SendResult, SyncContext
from matador.errors import ConnectionFailedError, InvalidEventError, LifecycleError


def wait(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.001)


def test_plain_code_can_send_and_its_callbacks_run() -> None:
    handler = Handler()
    with make_app(None, handler).sync() as shop:
        result = shop.send(OrderPlaced("o-1"), correlation_id="c-1")
        results = shop.send_many([OrderPlaced("o-2"), OrderPlaced("o-3")])
        wait(lambda: handler.runs == 3)
        assert shop.wait_idle(5) is True
        assert shop.state.is_idle
        shop.pause()
    assert isinstance(result, SendResult)
    assert (result.sent, [one.sent for one in results]) == (1, [1, 1])
    assert {one.order_id for one in handler.data} == {"o-1", "o-2", "o-3"}


def test_errors_come_out_as_they_are() -> None:
    with make_app(None, Handler()).sync() as shop, pytest.raises(InvalidEventError, match="amount"):
        shop.send(OrderPlaced("o-1", "x"))  # pyright: ignore[reportArgumentType] - the error tested


def test_the_first_call_starts_it_and_after_a_shutdown_only_a_start_does() -> None:
    app = make_app(None, Handler())
    shop = app.sync()
    assert shop.health().status == "unhealthy"
    shop.send(OrderPlaced("o-1"))
    assert shop.health().status == "healthy"
    assert app.sync() is shop  # so that all views of a server share the connection
    shop.shutdown()
    shop.shutdown()
    with pytest.raises(LifecycleError, match=r"sync\(\) again"):
        shop.send(OrderPlaced("o-1"))
    with app.sync() as again:
        assert again is not shop
        assert again.send(OrderPlaced("o-1")).ok
    with shop:
        assert shop.send(OrderPlaced("o-1")).ok


def test_it_lives_until_the_last_with_block_ends() -> None:
    shop = make_app(None, Handler()).sync()
    with shop:
        with shop, ThreadPoolExecutor(1) as thread:
            thread.submit(shop.__enter__).result(5)
            thread.submit(shop.__exit__, None, None, None).result(5)
        assert shop.send(OrderPlaced("o-1")).ok
    assert "matador-sync" not in {thread.name for thread in threading.enumerate()}


def test_it_can_be_used_again_and_leaves_no_thread_behind() -> None:
    handler = Handler()
    shop = make_app(None, handler).sync()
    for runs in (1, 2):
        with shop:
            shop.start()
            shop.send(OrderPlaced("o-1"))
            wait(lambda: handler.runs == runs)  # noqa: B023 - called at once
        assert "matador-sync" not in {thread.name for thread in threading.enumerate()}


def test_a_start_that_fails_leaves_no_thread_behind_and_can_be_tried_again() -> None:
    transport = FaultyTransport()
    transport.connect_errors.append(ConnectionFailedError("nobody there"))
    shop = make_app(transport, Handler()).sync()
    with pytest.raises(ConnectionFailedError):
        shop.start()
    assert "matador-sync" not in {thread.name for thread in threading.enumerate()}
    with shop:
        assert shop.send(OrderPlaced("o-1")).ok


def test_many_threads_may_send_at_once() -> None:
    app = make_app(None, Handler(), consume_from=())
    with app.sync() as shop, ThreadPoolExecutor(8) as threads:
        events = [OrderPlaced("o", number) for number in range(200)]
        results = list(threads.map(shop.send, events))
        assert all(result.ok for result in results)
        assert len(memory(app).messages(QUEUE)) == 200


@pytest.mark.parametrize("round_", range(5))
def test_no_thread_waits_for_ever_when_another_shuts_down(round_: int) -> None:
    app = make_app(None, Handler(), consume_from=())
    shop = app.sync()
    shop.start()
    go_on = threading.Event()
    sent: list[SendResult] = []
    ended: list[type[BaseException]] = []

    def send_on() -> None:
        try:
            while True:
                sent.append(shop.send(OrderPlaced("o")).raise_for_errors())
                go_on.set()
        except BaseException as error:
            ended.append(type(error))

    # Whoever is let in has its event stored; the others are told why not.
    threads = [threading.Thread(target=send_on, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert go_on.wait(5)
    shop.shutdown()
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads), "a send never came back"
    assert len(ended) == 6
    assert all(issubclass(kind, LifecycleError) for kind in ended), ended
    assert len(memory(app).messages(QUEUE)) == len(sent)


def test_two_threads_may_start_and_end_it() -> None:
    shop = make_app(None, Handler()).sync()
    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(shop.start) for _ in range(4)]:
            future.result(5)
        assert shop.send(OrderPlaced("o-1")).ok
        for future in [threads.submit(shop.shutdown) for _ in range(4)]:
            future.result(5)
    assert "matador-sync" not in {thread.name for thread in threading.enumerate()}


def test_sync_callbacks_get_a_sync_context() -> None:
    seen: list[Any] = []

    def handle(envelope: Envelope[OrderPlaced], ctx: SyncContext) -> None:
        seen.append((type(ctx), ctx.envelope is envelope, ctx.queue, ctx.attempt))

    with make_app(None, subscribed(handle)).sync() as shop:
        shop.send(OrderPlaced("o-1"))
        wait(lambda: len(seen) == 1)
    assert seen == [(SyncContext, True, QUEUE, 1)]
