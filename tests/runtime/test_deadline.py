"""Steps of an end: they share the time, and one that hangs holds nobody up."""

from __future__ import annotations

import asyncio
import logging

import pytest

from matador.runtime.deadline import Deadline
from matador.testing import wait_for


async def test_a_step_that_is_done_in_time() -> None:
    deadline = Deadline(60, "it")
    assert await deadline.do(asyncio.sleep(0), "sleep")
    assert await deadline.do_last(asyncio.sleep(0), "sleep")
    assert 0 < deadline.left <= 60


async def test_a_step_that_hangs_goes_on_without_us(caplog: pytest.LogCaptureFixture) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        await go.wait()
        ended.set()

    deadline = Deadline(60, "the client")
    assert not await deadline.do(hang(), "say goodbye", 0.01)
    assert caplog.messages == ["the client: could not say goodbye in time; going on without"]
    assert not ended.is_set()
    go.set()
    await wait_for(ended.is_set)


async def test_the_last_step_has_a_second_and_no_more_after_a_late_one() -> None:
    loop = asyncio.get_running_loop()
    hang = asyncio.Event()
    deadline = Deadline(600, "it")
    await deadline.do(hang.wait(), "stop", 0.01)
    began = loop.time()
    assert not await deadline.do_last(hang.wait(), "disconnect")
    assert 0.9 < loop.time() - began < 60, "not for what is left of ten minutes"
    hang.set()


async def test_a_last_step_may_be_late() -> None:
    deadline = Deadline(0, "it")
    assert deadline.left == 0
    assert await deadline.do_last(asyncio.sleep(0), "disconnect")


async def test_what_a_step_raises_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Deadline(60, "it").do(fail(), "try")


async def test_what_a_step_raises_later_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "matador")
    go = asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise ValueError("no")

    await Deadline(0.01, "it").do(fail(), "try")
    go.set()
    await wait_for(lambda: "an abandoned step has failed: no" in caplog.text)


async def test_who_is_cancelled_cancels_the_step() -> None:
    cancelled = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiting = asyncio.create_task(Deadline(60, "it").do(hang(), "wait"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await wait_for(cancelled.is_set)
