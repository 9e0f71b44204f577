"""Batches calls that arrive together, while each caller awaits its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Coalescer(Generic[Item, Outcome]):
    """Collects items and flushes them in one call, then flushes the next batch as soon as that call
    ends.

    A single item only waits for the next iteration of the event loop; the slower the broker, the
    larger the batches. Items stay in order. Nothing is dropped: if a caller is canceled, its items
    stay in the batch.

    Args:
        flush: stores a batch and returns the outcomes, in order.
        max_batch: the largest number of items per call.
        at_once: the maximum number of concurrent calls, started in order. Their callers do not wait
            for each other.

    Example:
        >>> sends = Coalescer(transport.send, max_batch=1000)
        >>> error = await sends.submit(message)
    """

    __slots__ = (
        "_at_once",
        "_flush",
        "_flushing",
        "_idle",
        "_loop",
        "_max_batch",
        "_pending",
        "_running",
        "_starting",
    )

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]],
        *,
        max_batch: int = 1000,
        at_once: int = 1,
    ) -> None:
        self._flush = flush
        self._max_batch = max_batch
        self._at_once = at_once
        self._loop: asyncio.AbstractEventLoop  # set by ``_start``
        self._pending: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._flushing: dict[int, list[tuple[Item, asyncio.Future[Outcome]]]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._starting = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """The number of items that are not in a flush yet."""
        return len(self._pending)

    def submit(self, item: Item) -> asyncio.Future[Outcome]:
        """Put an item in the next batch and return a future for its outcome.

        If the flush raises, every item of the batch gets that exception. So do all of them if the
        flush returns the wrong number of outcomes.
        """
        if not self._starting and len(self._running) < self._at_once:
            self._start()
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._pending.append((item, future))
        return future

    def submit_many(self, items: Sequence[Item]) -> list[asyncio.Future[Outcome]]:
        """Submit several items, which stay together and in order."""
        return [self.submit(item) for item in items]

    async def drain(self) -> None:
        """Wait until everything submitted so far has its outcome."""
        await self._idle.wait()

    def give_up(self, unsent: Outcome, unknown: Outcome) -> list[Item]:
        """Resolve all pending futures; return the items that had no outcome.

        Items that are not in a flush yet are dropped with the outcome ``unsent``. Items in a
        running flush get the outcome ``unknown``; the flush continues.
        """
        pending, self._pending = self._pending, []
        left: list[Item] = []
        for batch, outcome in (
            *((one, unknown) for one in self._flushing.values()),
            (pending, unsent),
        ):
            for item, future in batch:
                if not future.done():
                    future.set_result(outcome)
                    left.append(item)
        return left

    def _start(self) -> None:
        """Schedule a flush for the next iteration of the event loop."""
        self._loop = asyncio.get_running_loop()  # asking for each item costs a system call
        self._starting = True
        self._idle.clear()
        self._running.add(self._loop.create_task(self._run()))

    async def _run(self) -> None:
        self._starting = False
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._pending:
                batch = self._pending[: self._max_batch]
                del self._pending[: self._max_batch]
                if self._pending and not self._starting and len(self._running) < self._at_once:
                    self._start()
                await self._flush_batch(batch)
        finally:
            self._running.discard(task)
            if not self._running:
                self._idle.set()

    async def _flush_batch(self, batch: list[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        self._flushing[id(batch)] = batch
        try:
            outcomes = await self._flush([item for item, _ in batch])
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    if isinstance(error, asyncio.CancelledError):
                        future.cancel()
                    else:
                        future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            del self._flushing[id(batch)]
