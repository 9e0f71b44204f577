"""Waits for a condition, so that tests need no sleeps."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar, overload

from matador.errors import TimeoutError

T = TypeVar("T")

_EAGER_TURNS = 50
_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02


@overload
async def wait_for(
    condition: Callable[[], Awaitable[T]], *, timeout: float = 5.0, message: str | None = None
) -> T: ...
@overload
async def wait_for(
    condition: Callable[[], T], *, timeout: float = 5.0, message: str | None = None
) -> T: ...
async def wait_for(
    condition: Callable[[], object], *, timeout: float = 5.0, message: str | None = None
) -> object:
    """Wait until ``condition()`` is true and return its value. The condition may be async.

    Checks on every iteration of the event loop at first, later every 20 ms. An exception in the
    condition ends the wait.

    Args:
        condition: a function or a coroutine function without parameters.
        timeout: seconds; also ends a condition that hangs.
        message: what is expected, for the error.

    Raises:
        TimeoutError: it did not become true in time; the error has the last value.

    Example:
        >>> await wait_for(lambda: len(received) == 3, message="three receipts")
        True
    """
    last: object = "nothing yet"
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            turn, pause = 0, _FIRST_PAUSE
            while True:
                found = condition()
                last = await found if isawaitable(found) else found
                if last:
                    return last
                turn += 1
                if turn <= _EAGER_TURNS:
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LONGEST_PAUSE)
    except builtins.TimeoutError as error:
        if not limit.expired():  # the condition's own
            raise
        what = message or getattr(condition, "__qualname__", "the condition")
        raise TimeoutError(
            f"timed out after {timeout:g} s waiting for {what}; the last value was {last!r}"
        ) from error
