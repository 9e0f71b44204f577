"""``ManualClock`` moves when it is told to, and only then."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from matador.errors import ConfigurationError
from matador.testing import ManualClock
from matador.transports.clock import Alarms, Clock


def test_it_is_a_clock_with_alarms(manual_clock: ManualClock) -> None:
    clock: Clock = manual_clock
    assert isinstance(clock, Alarms)


def test_all_its_times_move_together(manual_clock: ManualClock) -> None:
    before = manual_clock.now()
    manual_clock.advance(timedelta(minutes=2))
    assert manual_clock.now() - before == timedelta(seconds=120)
    assert manual_clock.time() == manual_clock.now().timestamp()
    assert manual_clock.monotonic() == 120


def test_it_starts_when_it_is_told_to() -> None:
    start = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert ManualClock(start).now() == datetime(2026, 1, 1, 10, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match="time zone"):
        ManualClock(datetime(2026, 1, 1))  # noqa: DTZ001 - the error tested


def test_ids_are_the_same_in_every_run() -> None:
    ids = [ManualClock().new_id() for _ in range(2)]
    assert ids == ["00000000-0000-4000-8000-000000000001"] * 2
    clock = ManualClock()
    assert len({clock.new_id() for _ in range(100)}) == 100


def test_alarms_are_called_in_order_each_at_its_time(manual_clock: ManualClock) -> None:
    calls: list[tuple[str, float]] = []

    def note(name: str) -> None:
        calls.append((name, manual_clock.monotonic()))

    def first() -> None:
        note("first")
        manual_clock.call_later(1, lambda: note("follow-up"))

    manual_clock.call_later(5, lambda: note("last"))
    manual_clock.call_later(2, first)
    manual_clock.call_later(60, lambda: note("too late"))
    manual_clock.call_later(1, lambda: note("cancelled")).cancel()
    manual_clock.advance(10)
    assert calls == [("first", 2), ("follow-up", 3), ("last", 5)]
    assert manual_clock.monotonic() == 10
    assert manual_clock.alarms == 1


def test_setting_it_back_lets_no_time_pass(manual_clock: ManualClock) -> None:
    before = manual_clock.now()
    manual_clock.set_back(3600)
    assert before - manual_clock.now() == timedelta(hours=1)
    assert manual_clock.monotonic() == 0


def test_time_does_not_go_backwards(manual_clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError):
        manual_clock.advance(-1)


async def test_a_sleeper_wakes_at_its_time(manual_clock: ManualClock) -> None:
    sleeping = asyncio.create_task(manual_clock.sleep(10))
    await asyncio.sleep(0)
    manual_clock.advance(9)
    await asyncio.sleep(0)
    assert not sleeping.done()
    manual_clock.advance(1)
    await sleeping


async def test_a_cancelled_sleeper_is_forgotten(manual_clock: ManualClock) -> None:
    sleeping = asyncio.create_task(manual_clock.sleep(10))
    await asyncio.sleep(0)
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    assert manual_clock.alarms == 0
    manual_clock.advance(20)
