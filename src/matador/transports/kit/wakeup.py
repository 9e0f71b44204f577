"""Wakes receivers that wait for messages. All objects belong to one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Wakeup:
    """Wakes one waiter. A call of ``wake`` before ``wait`` is not lost.

    Several calls before the waiter runs count as one. Cheaper than an event: it creates a future
    only if there is a waiter.
    """

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    @property
    def is_set(self) -> bool:
        """Whether ``wake`` was called since the last ``wait``."""
        return self._set

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        """Forget a wake-up that came early."""
        self._set = False

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until woken; False: ``timeout`` seconds have passed instead. One waiter at a time.

        A wait that is canceled after ``wake`` leaves the object set: the next ``wait`` returns at
        once.
        """
        if not self._set:
            self._future = asyncio.get_running_loop().create_future()
            try:
                if timeout is None:
                    await self._future
                else:
                    await asyncio.wait([self._future], timeout=timeout)
            finally:
                self._future = None
        woken, self._set = self._set, False
        return woken


async def wait_in_lines(wakeup: Wakeup, lines: Iterable[Waiters]) -> None:
    """Wait in several lines at once until ``wakeup`` is woken. See ``Waiters.wait``."""
    entered = list(lines)
    for line in entered:
        line.enter(wakeup)
    try:
        await wakeup.wait()
    finally:
        for line in entered:
            line.leave(wakeup)


class Waiters:
    """Receivers that wait for items of one queue, the longest waiting first."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: dict[Wakeup, None] = {}

    def __len__(self) -> int:
        return len(self._line)

    def wake(self, count: int = 1) -> None:
        """Wake up to ``count`` of them: as many as there are items."""
        line = self._line
        while count > 0 and line:
            first = next(iter(line))
            del line[first]
            if not first.is_set:
                first.wake()
                count -= 1

    async def wait(self, wakeup: Wakeup) -> None:
        """Wait in line until ``wakeup`` is woken, by ``wake`` or by its owner.

        A waiter that was woken and takes nothing must ``wake`` another.
        """
        await wait_in_lines(wakeup, [self])

    def enter(self, wakeup: Wakeup) -> None:
        """Put it at the end of the line. Idempotent."""
        self._line[wakeup] = None

    def leave(self, wakeup: Wakeup) -> None:
        """Take it out of the line. Idempotent."""
        self._line.pop(wakeup, None)
