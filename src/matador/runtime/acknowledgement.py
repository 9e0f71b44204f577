"""Manual acknowledgement: the handler itself acknowledges its message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from matador.errors import DontRetry, DoRetry

log = logging.getLogger("matador.worker")

T = TypeVar("T")

UNDECIDED = 300.0
"""Seconds after which a handler in manual mode that called neither ``ack`` nor ``nack`` has failed.
"""


class Acknowledgement:
    """The decision of a handler in manual mode. Used from any thread."""

    __slots__ = ("_loop", "_waiter", "decided", "requeue")

    def __init__(self) -> None:
        self.decided = False
        """Whether the handler has called ``ack`` or ``nack``."""
        self.requeue: bool | None = None
        """None after ``ack``; after ``nack``, whether to requeue."""
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def decide(self, requeue: bool | None) -> None:
        """Record the decision of the handler; only the first call counts.

        Raises:
            RuntimeError: the event loop is closed.
        """
        if self.decided:
            return
        self.requeue = requeue
        self.decided = True  # set before checking for a waiter; `wait` uses the reverse order
        if self._waiter is not None:
            self._loop.call_soon_threadsafe(self._wake)

    async def wait(self) -> None:
        """Wait until the handler has decided, which may be after its return."""
        self._waiter = self._loop.create_future()
        if not self.decided:
            await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def decided(work: Awaitable[T], ack: Acknowledgement, limit: float | None) -> T | None:
    """Run ``work`` in manual mode, and wait for ``ack`` or ``nack``, which may be called later.

    The decision counts, whatever the handler raises afterwards.

    Raises:
        DoRetry: the handler called ``nack(requeue=True)``.
        DontRetry: it called ``nack()``, or neither for too long.
    """
    result = None
    try:
        result = await work
    except Exception:
        if not ack.decided:
            raise
        log.exception("a handler failed after it had called ack() or nack(), which counts")
    if not ack.decided:
        limit = limit or UNDECIDED
        try:
            async with asyncio.timeout(limit):
                await ack.wait()
        except TimeoutError:
            raise DontRetry(f"the handler called neither ack() nor nack() in {limit:g} s") from None
    if ack.requeue is not None:
        error = DoRetry if ack.requeue else DontRetry
        raise error("the handler called nack()")
    return result
