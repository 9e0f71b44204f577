"""What an application is busy with, and who waits until it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from matador.model.options import Seconds, optional_seconds


@dataclass(frozen=True, slots=True)
class AppState:
    """A look at what is going on.

    Attributes:
        status: where the service stands in its life, such as ``running`` or ``paused``.
        processing: messages received and not yet settled.
        enqueuing: sends that were not confirmed yet.
        waiting: messages that are due wait in this process, to be handled here.
    """

    status: str
    processing: int
    enqueuing: int
    waiting: bool = False

    @property
    def is_idle(self) -> bool:
        """Nothing is being processed or sent, and nothing that is due waits in this process."""
        return self.processing == 0 and self.enqueuing == 0 and not self.waiting


_LOOK_AGAIN = 0.05  # seconds; what waits in the process may also be deleted


class Activity:
    """Counts what is being processed and sent; wakes those who wait for the end of it.

    ``waiting``: whether messages that are due wait in this process, between two that are handled.
    """

    __slots__ = ("_waiters", "enqueuing", "processing", "waiting")

    def __init__(self, waiting: Callable[[], bool] = lambda: False) -> None:
        self.processing = 0
        self.enqueuing = 0
        self.waiting = waiting
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def idle(self) -> bool:
        """Is nothing going on?"""
        return self.processing == 0 and self.enqueuing == 0 and not self.waiting()

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
                    between = self.processing == 0 and self.enqueuing == 0
                    await asyncio.wait([waiter], timeout=_LOOK_AGAIN if between else None)
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
