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

    Example:
        >>> sends = Coalescer(transport.send, max_batch=1000)
        >>> error = await sends.submit(message)
    """

    __slots__ = ("_flush", "_flushing", "_idle", "_max_batch", "_pending")

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]],
        *,
        max_batch: int = 1000,
    ) -> None:
        self._flush = flush
        self._max_batch = max_batch
        self._pending: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Items that are not in a flush yet."""
        return len(self._pending)

    def submit(self, item: Item) -> asyncio.Future[Outcome]:
        """Put an item in the next batch; the future is its own outcome.

        If the flush itself raises, every item of the batch gets that exception.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pending.append((item, future))
        if self._flushing is None:
            self._idle.clear()
            self._flushing = asyncio.create_task(self._run())
        return future

    def submit_many(self, items: Sequence[Item]) -> list[asyncio.Future[Outcome]]:
        """``submit`` for several items, which stay together and in order."""
        return [self.submit(item) for item in items]

    async def drain(self) -> None:
        """Wait until everything submitted so far has its outcome."""
        await self._idle.wait()

    async def _run(self) -> None:
        try:
            while self._pending:
                batch = self._pending[: self._max_batch]
                del self._pending[: self._max_batch]
                await self._flush_batch(batch)
        finally:
            self._flushing = None
            self._idle.set()

    async def _flush_batch(self, batch: list[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._flush([item for item, _ in batch])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    if isinstance(error, asyncio.CancelledError):
                        future.cancel()
                    else:
                        future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if not future.done():
                future.set_result(outcome)
