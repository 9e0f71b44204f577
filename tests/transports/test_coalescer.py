"""The coalescer: who arrives together travels together, and everybody has an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from matador.testing import wait_for
from matador.transports.coalescer import Coalescer


class Store:
    """Remembers the batches; each waits until it is let go."""

    def __init__(self, *, waits: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[asyncio.Event] = []
        self._waits = waits

    async def __call__(self, items: Sequence[int]) -> list[str]:
        gate = asyncio.Event()
        self.batches.append(list(items))
        self.gates.append(gate)
        if self._waits:
            await gate.wait()
        return [f"stored {item}" for item in items]


async def test_items_that_come_together_are_one_batch() -> None:
    store = Store()
    coalescer: Coalescer[int, str] = Coalescer(store)
    assert await asyncio.gather(*map(coalescer.submit, range(3))) == [
        "stored 0",
        "stored 1",
        "stored 2",
    ]
    assert store.batches == [[0, 1, 2]]


async def test_what_comes_during_a_flush_is_the_next_batch() -> None:
    store = Store(waits=True)
    coalescer: Coalescer[int, str] = Coalescer(store, max_batch=2)
    first = coalescer.submit_many(range(3))
    await wait_for(lambda: store.gates)
    late = coalescer.submit(3)
    assert coalescer.pending == 2
    for number in range(2):
        await wait_for(lambda number=number: len(store.gates) > number)
        store.gates[number].set()
    assert await asyncio.gather(*first, late) == [f"stored {n}" for n in range(4)]
    assert store.batches == [[0, 1], [2, 3]]


async def test_several_batches_may_be_on_their_way_and_end_in_any_order() -> None:
    store = Store(waits=True)
    coalescer: Coalescer[int, str] = Coalescer(store, max_batch=2, at_once=3)
    waiting = coalescer.submit_many(range(8))
    await wait_for(lambda: len(store.gates) == 3)
    assert store.batches == [[0, 1], [2, 3], [4, 5]]
    assert coalescer.pending == 2
    store.gates[1].set()
    await asyncio.gather(*waiting[2:4])
    assert not waiting[0].done()
    await wait_for(lambda: len(store.gates) == 4)
    assert store.batches[3] == [6, 7]
    draining = asyncio.create_task(coalescer.drain())
    for gate in store.gates:
        assert not draining.done()
        gate.set()
    await draining
    assert all(future.done() for future in waiting)


async def test_callers_of_one_turn_share_a_flush_though_more_could_start() -> None:
    store = Store()
    coalescer: Coalescer[int, str] = Coalescer(store, at_once=5)
    await asyncio.gather(*map(coalescer.submit, range(10)))
    assert store.batches == [list(range(10))]


async def test_a_flush_that_fails_tells_its_own_callers_only() -> None:
    async def flush(items: Sequence[int]) -> list[str]:
        if 0 in items:
            raise ValueError("no room")
        return ["stored"] * len(items)

    coalescer: Coalescer[int, str] = Coalescer(flush, max_batch=1, at_once=2)
    bad, good = coalescer.submit_many([0, 1])
    with pytest.raises(ValueError, match="no room"):
        await bad
    assert await good == "stored"


async def test_a_cancelled_caller_leaves_its_item_in_the_batch() -> None:
    store = Store(waits=True)
    coalescer: Coalescer[int, str] = Coalescer(store)
    gone, stays = coalescer.submit_many([1, 2])
    gone.cancel()
    await wait_for(lambda: store.gates)
    store.gates[0].set()
    assert await stays == "stored 2"
    assert store.batches == [[1, 2]]


async def test_draining_waits_for_the_last_of_several_batches() -> None:
    store = Store(waits=True)
    coalescer: Coalescer[int, str] = Coalescer(store, max_batch=1, at_once=2)
    first, second = coalescer.submit_many(range(2))
    await wait_for(lambda: len(store.gates) == 2)
    draining = asyncio.create_task(coalescer.drain())
    store.gates[0].set()
    assert await first == "stored 0"
    for _ in range(5):  # the first batch is over: its end must not count for both
        await asyncio.sleep(0)
    assert not draining.done()
    store.gates[1].set()
    await draining
    assert second.done()


async def test_an_item_without_an_outcome_gets_an_error() -> None:
    async def forgetful(items: Sequence[int]) -> list[str]:
        return [f"stored {item}" for item in items[1:]]

    coalescer: Coalescer[int, str] = Coalescer(forgetful)
    outcomes = coalescer.submit_many(range(3))
    with pytest.raises(ValueError, match="shorter"):
        await outcomes[2]
    await coalescer.drain()


async def test_nobody_waits_for_what_was_given_up() -> None:
    go = asyncio.Event()
    flushed: list[int] = []

    async def flush(items: Sequence[int]) -> Sequence[int]:
        flushed.extend(items)
        await go.wait()
        return items

    coalescer = Coalescer(flush, max_batch=1)
    first, second = coalescer.submit_many([1, 2])
    await wait_for(lambda: flushed == [1])
    assert coalescer.give_up(-1, -2) == [1, 2]
    assert (await first, await second) == (-2, -1)
    go.set()
    await coalescer.drain()
    assert flushed == [1]
    assert await coalescer.submit(3) == 3
