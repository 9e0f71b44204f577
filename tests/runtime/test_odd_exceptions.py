"""Whatever a callback raises is a failure like any other: counted, and its slot goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.shop import OrderPlaced, dead, make_app, settled, subscribed

from matador import Context, Envelope, StandardRetryPolicy, Topology
from matador.model.topology import WorkQueue
from matador.runtime.calls import Calls
from matador.runtime.interruption import Interruption
from matador.runtime.threads import Threads
from matador.testing import wait_for

ONE_SLOT = Topology("shop", queues=[WorkQueue("events", concurrency=1)])
TWO_TRIES = StandardRetryPolicy(max_attempts=2, base_delay=0)


class Odd(BaseException):
    """Neither an ``Exception`` nor anything that ends a process."""


def group(text: str) -> BaseException:
    return BaseExceptionGroup(text, [Odd("one"), GeneratorExit()])


ODD = [StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, Odd, group]


class Runs:
    """Callbacks of every shape that raise for order ``bad`` and count their runs."""

    def __init__(self, error: Callable[[str], BaseException]) -> None:
        self.error = error
        self.bad = 0
        self.good: list[str] = []

    def handle(self, envelope: Envelope[OrderPlaced]) -> None:
        if envelope.data.order_id == "bad":
            self.bad += 1
            raise self.error("over")
        self.good.append(envelope.data.order_id)

    async def plain(self, envelope: Envelope[OrderPlaced]) -> None:
        self.handle(envelope)

    async def with_context(self, envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        self.handle(envelope)

    async def through_a_future(self, envelope: Envelope[OrderPlaced]) -> None:
        """The error is that of something awaited."""
        if envelope.data.order_id == "bad" and self.error is not StopIteration:
            self.bad += 1
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            loop.call_soon(future.set_exception, self.error("over"))
            await future
        self.handle(envelope)

    def in_a_thread(self, envelope: Envelope[OrderPlaced]) -> None:
        self.handle(envelope)

    def in_a_step(self, envelope: Envelope[OrderPlaced], ctx: Any) -> None:
        ctx.io("step", lambda: self.handle(envelope))


@pytest.mark.parametrize(
    "shape", ["plain", "with_context", "through_a_future", "in_a_thread", "in_a_step"]
)
@pytest.mark.parametrize("error", ODD)
async def test_it_is_counted_and_the_slot_goes_on(
    error: Callable[[str], BaseException], shape: str
) -> None:
    runs = Runs(error)
    callback = subscribed(getattr(runs, shape))
    app = make_app(None, callback, topology=ONE_SLOT, retry=TWO_TRIES)
    async with app:
        await app.send_many([OrderPlaced("bad"), *(OrderPlaced(f"o-{n}") for n in range(5))])
        await settled(app)
        (letter,) = dead(app)
    if (error, shape) == (GeneratorExit, "through_a_future"):  # Python tears down the whole task
        assert runs.bad == 1
        assert "its task was torn down" in str(letter.reason)
    else:
        assert runs.bad == 2, "once an attempt, and no more"
        assert letter.reason == "max attempts exceeded (2)"
    assert sorted(runs.good) == [f"o-{n}" for n in range(5)]


@pytest.mark.parametrize("swallows", [True, False])
@pytest.mark.parametrize("waits", [True, False])
async def test_a_callback_that_cancels_its_own_task_has_failed_or_not_and_the_slot_goes_on(
    swallows: bool, waits: bool
) -> None:
    bad, good = 0, 0

    async def cancel_myself(envelope: Envelope[OrderPlaced]) -> None:
        nonlocal bad, good
        if envelope.data.order_id != "bad":
            async with asyncio.timeout(60):  # does not mistake a leftover for its own
                await asyncio.sleep(0)
            mine = asyncio.current_task()
            assert mine is not None
            assert mine.cancelling() == 0, "nothing is left over of another message"
            good += 1
            return
        bad += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if not swallows:
                    raise

    app = make_app(None, cancel_myself, topology=ONE_SLOT, retry=TWO_TRIES)
    async with app:
        await app.send_many([OrderPlaced("bad"), *(OrderPlaced(f"o-{n}") for n in range(5))])
        await wait_for(lambda: good == 5)
        await settled(app)
        failed = waits and not swallows
        assert len(dead(app)) == (1 if failed else 0)
        assert bad == (2 if failed else 1)


async def test_a_task_that_cancels_the_slot_between_messages_does_not_end_it() -> None:
    slots: list[asyncio.Task[Any]] = []
    handled: list[str] = []

    async def note(envelope: Envelope[OrderPlaced]) -> None:
        task = asyncio.current_task()
        assert task is not None
        slots.append(task)
        handled.append(envelope.data.order_id)

    app = make_app(None, note, topology=ONE_SLOT)
    async with app:
        for n in range(3):
            await app.send(OrderPlaced(f"o-{n}"))
            await wait_for(lambda n=n: len(handled) == n + 1)
            await settled(app)
            slots[-1].cancel()  # it waits for the next message now
    assert handled == ["o-0", "o-1", "o-2"]
    assert len(set(slots)) == 1


async def test_a_callback_that_ends_the_process_is_named(caplog: pytest.LogCaptureFixture) -> None:
    threads = Threads(1)
    calls = Calls(threads, Interruption())

    async def leave() -> None:
        sys.exit("enough")

    with pytest.raises(SystemExit):
        await calls.run(leave())
    threads.close()
    assert "raised SystemExit (enough), which ends this process" in caplog.text
