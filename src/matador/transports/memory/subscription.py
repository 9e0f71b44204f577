"""A receiver of one queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from matador.errors import ConfigurationError
from matador.model.message import Delivery
from matador.transports.memory.entry import Hold
from matador.transports.memory.queue import MemoryQueue
from matador.transports.memory.views import delivery_of

TakeNext: TypeAlias = Callable[[MemoryQueue, int], list[Hold]]


class MemorySubscription:
    """Takes messages at the moment they are asked for, never before: nothing is held back."""

    def __init__(
        self,
        queue: MemoryQueue,
        take_next: TakeNext,
        on_close: Callable[[MemorySubscription], object],
    ) -> None:
        self._queue = queue
        self._take_next = take_next
        self._on_close = on_close
        self._active = True
        self._waiting: asyncio.Future[None] | None = None

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue.name

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Gives others a turn first, even if messages are there."""
        if limit < 1:
            raise ConfigurationError(f"receive: limit must be at least 1, got {limit}")
        await asyncio.sleep(0)
        while self._active:
            holds = self._take_next(self._queue, limit)
            if holds:
                name = self._queue.name
                return [delivery_of(name, hold) for hold in holds]
            await self._wait()
        return ()

    async def _wait(self) -> None:
        self._waiting = waiting = asyncio.get_running_loop().create_future()
        self._queue.waiters[waiting] = None
        taking = False
        try:
            await waiting
            taking = self._active
        finally:
            self._waiting = None
            self._queue.waiters.pop(waiting, None)
            # Woken, but cancelled or closed at once: the message is for somebody else.
            if not taking:
                self._queue.wake()

    async def close(self) -> None:
        """See ``Subscription``."""
        self._active = False
        self._on_close(self)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
