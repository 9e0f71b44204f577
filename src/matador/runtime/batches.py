"""Batches: several messages for one call of their handler.

Each message goes through the pipeline on its own: it has its own attempt, its own decision and its
own settlement. Only the call is shared: messages join a batch and wait until it was handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from itertools import islice, takewhile
from types import TracebackType
from typing import Any


class Batches:
    """Gathers the messages of one handler.

    A batch starts once it is full, or once an iteration of the event loop added no message: it
    waits for no further messages. Messages that join during a call make the next batch, so slow
    handlers get larger batches.

    Args:
        run: calls the handler with the items of a batch; returns its error. It is canceled once
            every caller of the batch was canceled.
        size: the maximum size of a batch.
        at_once: how many batches are handled at the same time.
        name: of the tasks that handle them.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Awaitable[Exception | None]],
        *,
        size: int,
        at_once: int,
        name: str,
    ) -> None:
        self._run = run
        self._size = size
        self._at_once = at_once
        self._name = name
        self._context = copy_context()  # a batch has the context variables of none of its messages
        self._waiting: list[_Member] = []
        self._running: set[asyncio.Task[None]] = set()
        self._looking = False

    async def join(self, item: Any, *, alone: bool = False) -> None:
        """Join the next batch, or make one ``alone``, and wait until it was handled.

        A call that is canceled while its batch runs returns when the batch has ended.

        Raises:
            Exception: the handler's error, raised to every caller of the batch.
        """
        me = _Member(item, alone)
        self._waiting.append(me)
        self._look()
        try:
            error = await me.done
        except asyncio.CancelledError:
            await self._leave(me)
            raise
        if error is not None:
            try:  # with the traceback of the handler alone, which each raise makes longer
                raise error.with_traceback(me.batch.traceback if me.batch else None)
            finally:
                del error

    async def _leave(self, me: _Member) -> None:
        batch = me.batch
        if batch is None:
            self._waiting.remove(me)
            return
        batch.members.remove(me)
        if not batch.members:
            batch.task.cancel()
        await asyncio.wait([batch.task])

    def _look(self) -> None:
        """Start the batches that can start, and check the rest again once no more items join."""
        while self._waiting and len(self._running) < self._at_once:
            members = self._next()
            if len(members) < self._size and not members[0].alone:
                if not self._looking:
                    self._looking = True
                    asyncio.get_running_loop().call_soon(self._look_again, 0)
                return
            self._start(members)

    def _look_again(self, before: int) -> None:
        if len(self._waiting) > before:
            asyncio.get_running_loop().call_soon(self._look_again, len(self._waiting))
            return
        self._looking = False
        if self._waiting and len(self._running) < self._at_once:
            self._start(self._next())
            self._look()

    def _next(self) -> list[_Member]:
        if self._waiting[0].alone:
            return self._waiting[:1]
        return list(islice(takewhile(lambda one: not one.alone, self._waiting), self._size))

    def _start(self, members: list[_Member]) -> None:
        del self._waiting[: len(members)]
        batch = _Batch(members)
        for one in members:
            one.batch = batch
        batch.task = asyncio.create_task(
            self._handle(batch), name=self._name, context=self._context.copy()
        )
        self._running.add(batch.task)

    async def _handle(self, batch: _Batch) -> None:
        error = None
        try:
            error = await self._run([one.item for one in batch.members])
            batch.traceback = None if error is None else error.__traceback__
        finally:
            self._running.discard(batch.task)
            for one in batch.members:
                if not one.done.done():
                    one.done.set_result(error)
            del error  # break the reference cycle through its traceback
            self._look()


class _Member:
    """An item of a batch. ``batch``: set once the batch has started."""

    __slots__ = ("alone", "batch", "done", "item")

    def __init__(self, item: Any, alone: bool) -> None:
        self.item = item
        self.alone = alone
        self.done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.batch: _Batch | None = None


class _Batch:
    """The items of one call. ``members``: those whose callers still wait."""

    __slots__ = ("members", "task", "traceback")

    task: asyncio.Task[None]

    def __init__(self, members: list[_Member]) -> None:
        self.members = members
        self.traceback: TracebackType | None = None
