"""Counts the work in progress of an application, and wakes tasks that wait until it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from matador.model.options import Seconds, optional_seconds


@dataclass(frozen=True, slots=True)
class AppState:
    """A snapshot of the work in progress.

    Attributes:
        status: the lifecycle state of the service, such as ``running`` or ``paused``.
        processing: messages received and not yet settled.
        enqueuing: sends that are not confirmed yet.
        waiting: whether due messages wait in this process to be handled here.
    """

    status: str
    processing: int
    enqueuing: int
    waiting: bool = False

    @property
    def is_idle(self) -> bool:
        """Nothing is being processed or sent, and nothing that is due waits in this process."""
        return self.processing == 0 and self.enqueuing == 0 and not self.waiting


_LOOK_AGAIN = 0.05  # seconds; messages that wait in the process may also be deleted


class Activity:
    """Counts what is being processed and sent; wakes tasks that wait until it is idle.

    ``waiting``: whether due messages wait in this process while none is being handled.
    """

    __slots__ = ("_waiters", "enqueuing", "processing", "waiting")

    def __init__(self, waiting: Callable[[], bool] = lambda: False) -> None:
        self.processing = 0
        self.enqueuing = 0
        self.waiting = waiting
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is being processed or sent."""
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
        """Wait until the application is idle. False if ``timeout`` seconds passed first."""
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
