"""The waits of a loop that fails, and those between attempts to reconnect."""

from __future__ import annotations

import asyncio

from matador.model.backoff import BackoffStrategy, ReconnectBackoff

_AT_ONCE = 0.05  # seconds: a server that refuses at once must not keep a processor busy


class Backoff:
    """Waits for one loop. ``reset`` it after a success.

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
        """Start again with the first wait."""
        self._next = self._first

    async def sleep(self) -> None:
        """Wait."""
        await asyncio.sleep(self.next())


def reconnect_backoff(
    strategy: BackoffStrategy, *, base_delay: float, max_delay: float
) -> ReconnectBackoff:
    """The waits of the option ``reconnect``.

    Example:
        >>> reconnect_backoff("immediate", base_delay=1, max_delay=5).delay(attempt=9)
        0.05
    """
    if strategy == "immediate":
        return ReconnectBackoff("linear", base_delay=_AT_ONCE, max_delay=_AT_ONCE)
    return ReconnectBackoff(strategy, base_delay=base_delay, max_delay=max_delay)
