"""Time, passed in: transports and the runtime ask a clock, tests move one."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, runtime_checkable

# A separate generator: ids must not repeat when a program seeds the shared one, or forks.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)
_VERSION_4 = 4 << 76 | 2 << 62
_RANDOM_BITS = (1 << 128) - 1 ^ (15 << 76 | 3 << 62)


class Clock(Protocol):
    """The source of time and new ids."""

    def time(self) -> float:
        """Seconds since 1970. May jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. Never jumps."""
        ...

    def now(self) -> datetime:
        """The current time in UTC."""
        ...

    def new_id(self) -> str:
        """A new UUID."""
        ...


class Alarm(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing if it was already made."""
        ...


@runtime_checkable
class Alarms(Clock, Protocol):
    """A clock that can also schedule calls; a test clock makes them when a test advances it."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Alarm:
        """Call ``callback`` from the running loop in ``delay`` seconds, perhaps a little late."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    # Called several times per message, so there is no Python function in between.
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)
    now = staticmethod(partial(datetime.now, UTC))

    def new_id(self) -> str:
        """A UUID of version 4, made in a third of the time ``uuid4`` takes."""
        digits = (_random.getrandbits(128) & _RANDOM_BITS | _VERSION_4).to_bytes(16, "big").hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def call_later(self, delay: float, callback: Callable[[], object]) -> Alarm:
        return asyncio.get_running_loop().call_later(delay, callback)


async def sleep(clock: Clock, delay: float) -> None:
    """Sleep by the time of ``clock``; a test clock decides when the time has passed."""
    if not isinstance(clock, Alarms):
        await asyncio.sleep(delay)
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    alarm = clock.call_later(delay, lambda: woken.done() or woken.set_result(None))
    try:
        await woken
    finally:
        alarm.cancel()
