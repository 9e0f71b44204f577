"""Makes batches out of calls that arrive together, while each caller awaits its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Coalescer(Generic[Item, Outcome]):
    """Collects items and flushes them in one call, again as soon as the last flush is done.

    So a lone item waits only until the loop's next turn, and batches grow exactly as much as the
    broker is slow. The order of items is kept. Nothing is dropped: a caller that is cancelled
    leaves its items in the batch.

    Args:
        flush: stores a batch; what it returns are the outcomes, in order.
        max_batch: items of one call at most.
        at_once: calls that may be under way at a time; each has an outcome of its own, so that the
            callers of one need not wait for those of another. Started in order.

    Example:
        >>> sends = Coalescer(transport.send, max_batch=1000)
        >>> error = await sends.submit(message)
    """

    __slots__ = ("_at_once", "_flush", "_idle", "_max_batch", "_pending", "_running", "_starting")

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
        self._pending: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._starting = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Items that are not in a flush yet."""
        return len(self._pending)

    def submit(self, item: Item) -> asyncio.Future[Outcome]:
        """Put an item in the next batch; the future is its own outcome.

        If the flush itself raises, every item of the batch gets that exception; so does one for
        which there is no outcome.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pending.append((item, future))
        if not self._starting and len(self._running) < self._at_once:
            self._start()
        return future

    def submit_many(self, items: Sequence[Item]) -> list[asyncio.Future[Outcome]]:
        """``submit`` for several items, which stay together and in order."""
        return [self.submit(item) for item in items]

    async def drain(self) -> None:
        """Wait until everything submitted so far has its outcome."""
        await self._idle.wait()

    def _start(self) -> None:
        """Begin a flush at the loop's next turn, with what has come until then."""
        self._starting = True
        self._idle.clear()
        self._running.add(asyncio.create_task(self._run()))

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
