"""Services as a process: what starts, what ends, and which error is raised."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from matador.runtime.process import _run, _slots_are_stuck
from matador.testing import wait_for


class Fake:
    """A service that notes what it is told, and may be slow or fail."""

    def __init__(
        self,
        *,
        starts: Callable[[], Awaitable[object]] | None = None,
        ends: Callable[[float | None], Awaitable[object]] | None = None,
    ) -> None:
        self.told: list[object] = []
        self._starts = starts
        self._ends = ends

    async def start(self) -> None:
        self.told.append("start")
        if self._starts is not None:
            await self._starts()
        self.told.append("started")

    async def shutdown(self, timeout: float | None = None) -> None:
        self.told.append(timeout)
        if self._ends is not None:
            await self._ends(timeout)
        self.told.append("ended")

    @property
    def runs(self) -> bool:
        return self.told[-1:] == ["started"]


@asynccontextmanager
async def running(
    *services: Fake, around: Any = None, meanwhile: Any = None
) -> AsyncGenerator[asyncio.Task[None]]:
    """What ``run`` does, in the loop of the test."""

    @asynccontextmanager
    async def nothing() -> AsyncGenerator[None]:
        yield

    task = asyncio.create_task(_run(services, around or nothing(), meanwhile))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def handles_signals() -> bool:
    return signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def send(number: signal.Signals = signal.SIGTERM) -> None:
    assert handles_signals(), "or the signal would end the tests"
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_all_that_runs(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    left: list[str] = []

    @asynccontextmanager
    async def around() -> AsyncGenerator[None]:
        left.append("entered")
        yield
        left.append(f"left after {[one.told[-1] for one in services]}")

    services = [Fake(), Fake()]
    async with running(*services, around=around()) as task:
        await wait_for(lambda: all(one.runs for one in services))
        assert not task.done()
        send(number)
        await task
    assert [one.told for one in services] == [["start", "started", None, "ended"]] * 2
    assert left == ["entered", "left after ['ended', 'ended']"]
    assert f"{number.name}: shutting down, once running callbacks have finished" in caplog.text
    assert not handles_signals()


async def test_a_second_signal_forces_the_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    forced = asyncio.Event()

    async def ends(timeout: float | None) -> None:
        if timeout == 0:
            forced.set()
        await forced.wait()

    slow, quick = Fake(ends=ends), Fake()
    async with running(slow, quick) as task:
        await wait_for(lambda: slow.runs and quick.runs)
        send()
        await wait_for(lambda: slow.told[-1] is None and quick.told[-1] == "ended")
        assert not task.done()
        send(signal.SIGINT)
        await task
    assert slow.told == ["start", "started", None, 0, "ended", "ended"]
    assert "SIGINT again: shutting down at once" in caplog.text


async def test_a_start_that_fails_ends_the_others_and_raises_its_error() -> None:
    hanging = asyncio.Event()

    async def fails() -> None:
        await wait_for(lambda: fine.runs and slow.told == ["start"])
        raise OSError("port in use")

    fine, slow, broken = Fake(), Fake(starts=hanging.wait), Fake(starts=fails)
    async with running(fine, slow, broken) as task:
        with pytest.raises(OSError, match="port in use"):
            await task
    assert fine.told == ["start", "started", None, "ended"]
    assert slow.told == ["start", 0, "ended"], "what has not started is ended at once"
    assert broken.told == ["start", None, "ended"]
    assert not handles_signals()


async def test_a_signal_ends_a_start() -> None:
    slow, fine = Fake(starts=asyncio.Event().wait), Fake()
    beside: list[str] = []

    async def meanwhile() -> None:
        beside.append("began")

    async with running(slow, fine, meanwhile=meanwhile) as task:
        await wait_for(lambda: fine.runs)
        send()
        await task
    assert slow.told == ["start", 0, "ended"]
    assert fine.told == ["start", "started", None, "ended"]
    assert beside == [], "nothing runs beside what has not started"


async def test_what_runs_beside_is_cancelled_with_them() -> None:
    beside: list[str] = []

    async def meanwhile() -> None:
        beside.append(str(one.runs))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            beside.append(f"cancelled after {one.told[-1]}")
            raise

    one = Fake()
    async with running(one, meanwhile=meanwhile) as task:
        await wait_for(lambda: beside == ["True"])
        send()
        await task
    assert beside == ["True", "cancelled after ended"]


@pytest.mark.parametrize("ends_badly", [False, True])
async def test_an_error_of_what_runs_beside_ends_them(
    ends_badly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def ends(timeout: float | None) -> None:
        if ends_badly:
            raise OSError("stuck")

    async def meanwhile() -> None:
        raise ValueError("no terminal")

    one = Fake(ends=ends)
    async with running(one, meanwhile=meanwhile) as task:
        with pytest.raises(ValueError, match="no terminal"):
            await task
    assert one.told[:3] == ["start", "started", None]
    assert ("could not shut down after a start that failed" in caplog.text) == ends_badly


async def test_what_runs_beside_may_end_by_itself() -> None:
    began = asyncio.Event()

    async def meanwhile() -> None:
        began.set()

    one = Fake()
    async with running(one, meanwhile=meanwhile) as task:
        await began.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert one.runs
        assert not task.done()
        send()
        await task
    assert one.told[-1] == "ended"


async def test_a_shutdown_that_fails_raises_its_error_once_all_have_ended() -> None:
    async def ends(timeout: float | None) -> None:
        raise OSError("stuck")

    broken, fine = Fake(ends=ends), Fake()
    async with running(broken, fine) as task:
        await wait_for(lambda: broken.runs and fine.runs)
        send()
        with pytest.raises(OSError, match="stuck"):
            await task
    assert fine.told == ["start", "started", None, "ended"]


async def test_a_callback_that_cannot_be_cancelled_is_stuck() -> None:
    go = asyncio.Event()
    slot = asyncio.create_task(go.wait(), name="matador-slot-shop.events")
    other = asyncio.create_task(go.wait(), name="other")
    assert _slots_are_stuck()
    go.set()
    await asyncio.gather(slot, other)
    assert not _slots_are_stuck()
