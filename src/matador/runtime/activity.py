"""What an application is busy with, and who waits until it is not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from matador.model.options import Seconds, optional_seconds


@dataclass(frozen=True, slots=True)
class AppState:
    """A look at what is going on.

    Attributes:
        status: where the application stands in its life.
        processing: messages received and not yet settled.
        enqueuing: sends that were not confirmed yet.
    """

    status: str
    processing: int
    enqueuing: int

    @property
    def is_idle(self) -> bool:
        """Nothing is being processed and nothing is being sent."""
        return self.processing == 0 and self.enqueuing == 0


class Activity:
    """Counts what is being processed and sent; wakes those who wait for the end of it."""

    __slots__ = ("_waiters", "enqueuing", "processing")

    def __init__(self) -> None:
        self.processing = 0
        self.enqueuing = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def idle(self) -> bool:
        """Is nothing going on?"""
        return self.processing == 0 and self.enqueuing == 0

    def finished_processing(self, count: int) -> None:
        """``count`` messages are settled."""
        self.processing -= count
        if self._waiters and self.idle:
            self._wake()

    def finished_enqueuing(self, count: int = 1) -> None:
        """``count`` sends have their outcome."""
        self.enqueuing -= count
        if self._waiters and self.idle:
            self._wake()

    async def wait_idle(self, timeout: Seconds | None) -> bool:
        """Wait until nothing is going on. False if ``timeout`` seconds passed first."""
        limit = optional_seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                while not self.idle:
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
