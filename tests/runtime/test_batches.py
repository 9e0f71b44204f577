"""Batches: what joins together runs together, and each learns what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from matador.runtime.batches import Batches
from matador.testing import wait_for

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


class Runs:
    """Notes each batch, and ends it when it is told to."""

    def __init__(self, *, held: bool = False, error: Exception | None = None) -> None:
        self.began: list[list[int]] = []
        self.ended: list[list[int]] = []
        self.cancelled: list[list[int]] = []
        self.tenants: list[str] = []
        self.names: list[str] = []
        self.error = error
        self.go = asyncio.Event()
        if not held:
            self.go.set()

    async def __call__(self, items: Sequence[Any]) -> Exception | None:
        self.began.append(list(items))
        self.tenants.append(TENANT.get())
        task = asyncio.current_task()
        self.names.append("" if task is None else task.get_name())
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(list(items))
            raise
        self.ended.append(list(items))
        return self.error


def batches(runs: Runs, *, size: int = 3, at_once: int = 1) -> Batches:
    return Batches(runs, size=size, at_once=at_once, name="batch")


async def test_what_joins_in_one_turn_is_cut_into_full_batches() -> None:
    runs = Runs()
    together = batches(runs, at_once=10)
    await asyncio.gather(*(together.join(n) for n in range(8)))
    assert runs.began == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert set(runs.names) == {"batch"}
    await together.join(8)
    assert runs.began[3:] == [[8]]


async def test_a_batch_waits_while_a_turn_brings_more() -> None:
    runs = Runs()
    together = batches(runs)

    async def later(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
        await together.join(number)

    await asyncio.gather(*map(later, range(3)))
    assert runs.began == [[0, 1, 2]]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_no_more_run_at_once_than_may(at_once: int) -> None:
    runs = Runs(held=True)
    together = batches(runs, at_once=at_once)
    joined = [asyncio.create_task(together.join(n)) for n in range(7)]
    await wait_for(lambda: len(runs.began) == at_once)
    joined.append(asyncio.create_task(together.join(7)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(runs.began) == at_once
    assert not any(one.done() for one in joined)
    runs.go.set()
    await asyncio.gather(*joined)
    assert runs.began == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_one_alone_runs_alone_in_its_place() -> None:
    runs = Runs()
    together = batches(runs)
    joining = [together.join(n, alone=n in (1, 4)) for n in range(6)]
    await asyncio.gather(*joining)
    assert runs.began == [[0], [1], [2, 3], [4], [5]]


async def test_everyone_in_a_batch_gets_its_error_with_the_traceback_of_the_handler() -> None:
    async def fails(items: Sequence[Any]) -> Exception | None:
        try:
            raise ValueError("no")
        except ValueError as raised:
            return raised

    together = Batches(fails, size=2, at_once=1, name="batch")
    depths: list[int] = []

    async def join(number: int) -> None:
        with pytest.raises(ValueError, match="no") as caught:
            await together.join(number)
        names = [entry.name for entry in caught.traceback]
        assert names.count("fails") == 1
        depths.append(len(names))

    await asyncio.gather(*map(join, range(4)))
    assert len(depths) == 4
    assert len(set(depths)) == 1, "each raise begins with the traceback of the handler alone"


async def test_one_that_is_cancelled_before_its_batch_leaves_it() -> None:
    runs = Runs(held=True)
    together = batches(runs)
    first = asyncio.create_task(together.join(0))
    await wait_for(lambda: len(runs.began) == 1)
    joined = [asyncio.create_task(together.join(n)) for n in range(1, 5)]
    await asyncio.sleep(0)
    joined[1].cancel()
    runs.go.set()
    await asyncio.gather(first, *joined, return_exceptions=True)
    assert runs.began == [[0], [1, 3, 4]]
    assert joined[1].cancelled()


async def test_a_batch_is_cancelled_with_the_last_that_waits_for_it() -> None:
    runs = Runs(held=True)
    together = batches(runs)
    joined = [asyncio.create_task(together.join(n)) for n in range(3)]
    await wait_for(lambda: len(runs.began) == 1)
    for one in joined[:2]:
        one.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(one.done() for one in joined), "they return when the batch has ended"
    assert runs.cancelled == []
    joined[2].cancel()
    await asyncio.gather(*joined, return_exceptions=True)
    assert all(one.cancelled() for one in joined)
    assert (runs.cancelled, runs.ended) == ([[0, 1, 2]], [])
    runs.go.set()
    await together.join(9)
    assert runs.ended == [[9]], "the next one runs"


async def test_a_batch_has_the_context_of_none_of_its_messages() -> None:
    runs = Runs()
    together = batches(runs)

    async def join(number: int) -> None:
        TENANT.set(f"tenant {number}")
        await together.join(number)

    await asyncio.gather(*map(join, range(4)))
    assert runs.tenants == ["nobody"] * 2
