"""Delays between the attempts of a failing loop: each twice the previous one, up to a limit."""

from __future__ import annotations

import asyncio


class Backoff:
    """The delays of one loop. ``reset`` it after a success.

    Example:
        >>> backoff = Backoff(0.1, 0.3)
        >>> [backoff.next(), backoff.next(), backoff.next()]
        [0.1, 0.2, 0.3]
    """

    __slots__ = ("_first", "_longest", "_next")

    def __init__(self, first: float = 0.05, longest: float = 5.0) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def next(self) -> float:
        """How many seconds to wait now."""
        wait = self._next
        self._next = min(2 * wait, self._longest)
        return wait

    def reset(self) -> None:
        """Start again with the first delay."""
        self._next = self._first

    async def sleep(self) -> None:
        await asyncio.sleep(self.next())
