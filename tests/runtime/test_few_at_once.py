"""Many questions to a broker: a few at once, answers in order, nothing left behind."""

from __future__ import annotations

import asyncio

import pytest

from matador.runtime.few_at_once import AT_ONCE, few_at_once


async def test_answers_are_in_order_and_only_a_few_are_asked_at_once() -> None:
    asking, most = 0, 0

    async def ask(number: int) -> int:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        for _ in range(50 - number):  # the last ones answer first
            await asyncio.sleep(0)
        asking -= 1
        return number * 2

    assert await few_at_once(ask, range(50)) == [number * 2 for number in range(50)]
    assert most == AT_ONCE
    assert await few_at_once(ask, []) == []


async def test_the_first_error_ends_the_others() -> None:
    cancelled: list[int] = []

    async def ask(number: int) -> None:
        if number == 3:
            raise LookupError(number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    with pytest.raises(LookupError, match="3"):
        await few_at_once(ask, range(AT_ONCE))
    assert sorted(cancelled) == [0, 1, 2, 4, 5, 6, 7]


async def test_a_time_limit_ends_all() -> None:
    ended = asyncio.Event()

    async def ask(_: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await few_at_once(ask, range(2))
    assert ended.is_set()
