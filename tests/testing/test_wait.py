"""``wait_for`` waits as long as it takes, and no longer than it may."""

from __future__ import annotations

import asyncio
import builtins
import time

import pytest

from matador.errors import TimeoutError
from matador.testing import wait_for


async def test_it_returns_what_the_condition_gave() -> None:
    found: list[str] = []
    asyncio.get_running_loop().call_later(0.01, found.append, "a")
    assert await wait_for(lambda: found) == ["a"]


async def test_the_condition_may_be_a_coroutine_function() -> None:
    turns = 0

    async def third_time() -> int | None:
        nonlocal turns
        turns += 1
        return turns if turns == 3 else None

    assert await wait_for(third_time) == 3


async def test_it_gives_up_and_says_what_it_waited_for() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        await wait_for(lambda: 0, timeout=0.05, message="three receipts")
    assert 0.04 <= time.monotonic() - started < 20
    expected = "timed out after 0.05 s waiting for three receipts; the last value was 0"
    assert str(caught.value) == expected
    assert isinstance(caught.value, builtins.TimeoutError)


async def test_a_condition_that_hangs_is_cut_off() -> None:
    async def hang() -> bool:
        await asyncio.Event().wait()
        return True

    with pytest.raises(TimeoutError, match="hang"):
        await wait_for(hang, timeout=0.05)


async def test_an_error_of_the_condition_ends_the_wait() -> None:
    def broken() -> bool:
        raise builtins.TimeoutError("its own")

    with pytest.raises(builtins.TimeoutError, match="its own"):
        await wait_for(broken)


async def test_it_does_not_block_the_loop_or_spin() -> None:
    calls = 0

    def count() -> bool:
        nonlocal calls
        calls += 1
        return False

    with pytest.raises(TimeoutError):
        await wait_for(count, timeout=0.2)
    assert calls < 150
