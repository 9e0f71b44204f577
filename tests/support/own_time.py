"""Time as this process has it: for tests of how soon something happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

_TICK = 0.01


class OwnTime:
    """Counts seconds while it is entered, without those in which the loop got no turn.

    On a busy machine a process may stand still for seconds. That is not the fault of what is timed.
    ``longest`` is the longest time from one turn to the next, with those seconds.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.longest = 0.0
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._ticking is not None
        self._ticking.cancel()
        await asyncio.wait([self._ticking])

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_TICK)
            taken = loop.time() - before
            self.seconds += min(taken, 2 * _TICK)
            self.longest = max(self.longest, taken)


async def within(seconds: float, work: Awaitable[T]) -> T:
    """What ``work`` gives. TimeoutError, as of ``asyncio.timeout``, after so much own time."""
    running = asyncio.ensure_future(work)
    async with OwnTime() as own:
        while not running.done() and own.seconds < seconds:
            await asyncio.wait([running], timeout=_TICK)
    if not running.done():
        running.cancel()
        await asyncio.wait([running])
        raise TimeoutError
    return running.result()
