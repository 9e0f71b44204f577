"""What a run of a callback leaves behind: nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.support.shop import OrderPlaced, subscribed

from matador import Envelope, Hooks, Matador, Schema, StandardRetryPolicy
from matador.errors import TimeoutError
from matador.runtime.calls import Calls, InOwnContext
from matador.runtime.facts import Received
from matador.runtime.hooks import Proceed
from matador.runtime.interruption import Interruption
from matador.runtime.threads import Threads
from matador.testing import ManualClock, wait_for


class Failure(Exception):
    """Can be referred to weakly, unlike those of Python itself."""


class Wrapped(Hooks):
    async def on_worker_wrap(self, event: Received, proceed: Proceed) -> None:
        await proceed()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Cycles stay: whoever makes one is found out."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def fail() -> None:
    raise Failure


async def plain(calls: Calls) -> None:
    fail()


async def waiting(calls: Calls) -> None:
    await asyncio.sleep(0)
    fail()


async def limited(calls: Calls) -> None:
    await calls.limited(waiting(calls), 60, "it")


async def in_a_thread(calls: Calls) -> None:
    await calls.in_thread(fail, limit=None, who="it")


@pytest.mark.parametrize("callback", [plain, waiting, limited, in_a_thread])
@pytest.mark.usefixtures("no_collector")
async def test_a_failure_is_not_kept_by_its_own_traceback(callback: Callable[..., Any]) -> None:
    threads = Threads(1)
    calls = Calls(threads, Interruption())
    ran = await calls.run(InOwnContext(callback(calls)))
    threads.close()
    assert isinstance(ran.error, Failure)
    held = weakref.ref(ran.error)
    del ran
    if callback is in_a_thread:  # a future knows it, too: a knot that can be undone
        await asyncio.sleep(0)
        gc.collect()
    assert held() is None


@pytest.mark.parametrize("hooks", [(), (Wrapped(),)])
@pytest.mark.usefixtures("no_collector")
async def test_the_failure_of_a_message_is_not_kept(hooks: Sequence[Hooks]) -> None:
    held: list[weakref.ref[Failure]] = []

    async def handle(envelope: Envelope[OrderPlaced]) -> None:
        if envelope.docket.attempts == 1:
            error = Failure(envelope.id)
            held.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

    schema = Schema({OrderPlaced: [subscribed(handle)]})
    retry = StandardRetryPolicy(base_delay=0)
    app = Matador("memory://", schema=schema, consume_from=["events"], hooks=hooks, retry=retry)
    async with app:
        await app.send(OrderPlaced("o-1", 5))
        await wait_for(lambda: len(held) == 1)
        await app.wait_idle()
    assert held[0]() is None


async def test_a_slot_that_is_cancelled_after_its_worker_was_closed_ends() -> None:
    # The event loop ends in the middle of a shutdown: tasks are cancelled in any order.
    interruption = Interruption()
    interruption.start()
    assert not interruption.happened
    await interruption.stop()
    assert interruption.happened


@pytest.mark.parametrize("fails", [False, True])
async def test_a_limit_that_was_kept_is_forgotten(fails: bool) -> None:
    clock, threads = ManualClock(), Threads(1)
    calls = Calls(threads, Interruption(), clock)

    async def work() -> str:
        clock.advance(9)
        if fails:
            raise ValueError("no")
        return "done"

    (outcome,) = await asyncio.gather(calls.limited(work(), 10, "work"), return_exceptions=True)
    assert str(outcome) == ("no" if fails else "done")
    clock.advance(100)  # an alarm that was left would end what has ended already
    threads.close()


async def test_a_limit_that_was_not_kept_is_the_callbacks_own_error() -> None:
    clock, threads = ManualClock(), Threads(1)
    calls = Calls(threads, Interruption(), clock)

    async def work() -> None:
        clock.advance(10)
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="work took longer than its timeout of 10 s") as caught:
        await calls.limited(work(), 10, "work")
    assert caught.value.interrupted
    threads.close()
