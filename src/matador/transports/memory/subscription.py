"""A receiver of one queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from matador.errors import ConfigurationError
from matador.model.job_limits import NO_LIMITS, JobLimits
from matador.model.message import Delivery
from matador.transports.kit.errors import queue_not_found
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.memory.entry import delivery_of
from matador.transports.memory.queue import MemoryQueue
from matador.transports.memory.store import MemoryStore


class MemorySubscription(BaseSubscription):
    """Takes messages only in ``receive``, never in advance.

    ``settled``: the messages it returns are already finished, as replies are.
    """

    def __init__(
        self,
        queue: MemoryQueue,
        store: MemoryStore,
        on_close: Callable[[MemorySubscription], object],
        *,
        settled: bool = False,
    ) -> None:
        super().__init__(queue.name)
        self._queue = queue
        self._store = store
        self._on_close = on_close
        self._settled = settled
        self._limits = NO_LIMITS
        self._wakeup = Wakeup()
        queue.receivers += 1

    def set_limits(self, limits: JobLimits) -> None:
        self._limits = NO_LIMITS if limits == NO_LIMITS else limits
        self._wakeup.wake()

    @property
    def limited(self) -> bool:
        return self._queue.limited

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Lets other tasks run first, even if messages are ready."""
        if limit < 1:
            raise ConfigurationError(f"receive: limit must be at least 1, got {limit}")
        await asyncio.sleep(0)
        while self._active:
            if self._queue.deleted:
                raise queue_not_found(self._queue.name, "memory")
            holds = self._store.take_next(self._queue, limit, self._limits)
            if holds:
                if self._settled:
                    for hold in holds:  # removed: replies do not count as completed
                        self._queue.remove(hold.entry)
                name = self._queue.name
                return [delivery_of(name, hold) for hold in holds]
            await self._wait()
        return ()

    async def _wait(self) -> None:
        taking = False
        try:
            await self._queue.waiters.wait(self._wakeup)
            taking = self._active
        finally:
            # Woken, then canceled or closed: wake another receiver for the message.
            if not taking:
                self._wakeup.clear()
                self._queue.wake()

    async def close(self) -> None:
        if self._active:
            self._active = False
            self._queue.receivers -= 1
            self._store.left(self._queue)
        self._on_close(self)
        self._wakeup.wake()
