"""What is going on: counted, and waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.runtime.activity import Activity, AppState


class Going:
    """An activity, and whether something waits in this process."""

    def __init__(self) -> None:
        self.due = False
        self.activity = Activity(lambda: self.due)


@pytest.mark.parametrize("what", ["processing", "enqueuing"])
async def test_all_who_wait_are_woken_when_nothing_is_going_on(what: str) -> None:
    activity = Going().activity
    setattr(activity, what, 3)
    finished: Any = getattr(activity, f"finished_{what}")
    waiting = [asyncio.create_task(activity.wait_idle(None)) for _ in range(2)]
    await asyncio.sleep(0)
    finished(2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not activity.idle
    assert not any(one.done() for one in waiting)
    finished(1)
    assert activity.idle
    assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [True, True]


async def test_waiting_ends_with_its_time() -> None:
    activity = Going().activity
    assert await activity.wait_idle(0) is True
    activity.processing = 1
    assert await activity.wait_idle(0.01) is False
    assert not activity.idle
    with pytest.raises(ConfigurationError, match="timeout"):
        await activity.wait_idle(-1)
    activity.enqueuing = 1
    activity.finished_processing(1)
    assert await activity.wait_idle(0.01) is False
    activity.finished_enqueuing()
    assert await activity.wait_idle(0.01) is True


async def test_what_waits_in_the_process_is_looked_at_again() -> None:
    going = Going()
    going.due = True
    waiting = asyncio.create_task(going.activity.wait_idle(None))
    assert await going.activity.wait_idle(0.01) is False
    assert not going.activity.idle
    going.due = False  # somebody deleted it: nothing is finished
    assert await asyncio.wait_for(waiting, 10) is True


def test_a_state_is_idle_if_nothing_is() -> None:
    assert AppState("running", 0, 0).is_idle
    for busy in (AppState("", 1, 0), AppState("", 0, 1), AppState("", 0, 0, waiting=True)):
        assert not busy.is_idle
