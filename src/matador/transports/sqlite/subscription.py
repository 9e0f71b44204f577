"""Subscriptions: they claim when asked to, and sleep until a watcher sees something to claim.

The watcher asks the file for its ``data_version`` a hundred times a second while anybody waits: a
look into shared memory of a few microseconds, no thread and no notification service needed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import MatadorError
from matador.model.message import Delivery
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.sqlite.claim import NEXT_DUE, Claim
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.database import READY
from matador.transports.sqlite.topology import SqliteQueue

_PERIOD = 0.008  # seconds between two looks

_IS_THERE = "SELECT EXISTS (SELECT 1 FROM queues WHERE id = ? AND name = ?)"
_IS_READY = f"SELECT EXISTS (SELECT 1 FROM messages WHERE queue = ? AND state = {READY})"


class SqliteSubscription(BaseSubscription):
    """See ``matador.transports.base.Subscription``. Made by ``SqliteTransport.subscribe``."""

    def __init__(
        self,
        queue: SqliteQueue,
        *,
        claim: Callable[[str, int], asyncio.Future[Sequence[Claim | MatadorError]]],
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        watcher: FileWatcher,
        clock: DatabaseClock,
        patience: int,
        closed: Callable[[SqliteSubscription], None],
    ) -> None:
        super().__init__(queue.name)
        self._queue = queue
        self._new_claim = claim
        self._give_back = give_back
        self._watcher = watcher
        self._clock = clock
        self._patience = patience
        self._closed = closed
        self._woken = Wakeup()
        # Outlives a cancelled receive(): the next one, or close(), takes care of what it brings.
        self._claim: asyncio.Future[Sequence[Claim | MatadorError]] | None = None

    @property
    def queue_id(self) -> int:
        """The number of the queue in the file."""
        return self._queue.id

    def wake(self) -> None:
        """There may be something to claim."""
        self._woken.wake()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``."""
        while self._active:
            if self._claim is None:
                self._woken.clear()
                self._claim = self._new_claim(self.queue, limit)
            pending = self._claim
            await asyncio.wait([pending])  # does not cancel it when we are cancelled
            if self._claim is not pending:
                break  # close() has taken it over
            self._claim = None
            (claim,) = pending.result()
            if isinstance(claim, MatadorError):
                raise claim
            self._queue = claim.queue  # of another number, if it was deleted and made again
            if claim.deliveries:
                kept = await self._keep(claim, limit)
                if kept:
                    return kept
            else:
                await self._sleep(claim.next_due)
        return []

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self._active:
            return
        self._active = False
        self._woken.wake()
        pending, self._claim = self._claim, None
        self._closed(self)
        if pending is not None:
            (claim,) = await pending
            if isinstance(claim, Claim) and claim.deliveries:
                await self._give_back(claim.deliveries)

    async def _keep(self, claim: Claim, limit: int) -> Sequence[Delivery]:
        # Both happen only to what a cancelled receive() left behind.
        kept = claim.deliveries[:limit]
        if self._clock.now() > claim.held_until - self._patience:
            kept = []  # too old to be worked on safely
        if len(kept) < len(claim.deliveries):
            await self._give_back(claim.deliveries[len(kept) :])
        return kept

    async def _sleep(self, next_due: int) -> None:
        self._watcher.add(self, next_due)
        try:
            await self._woken.wait()
        finally:
            self._watcher.discard(self)


class FileWatcher:
    """Wakes waiters. Belongs to the event loop."""

    def __init__(self, connection: sqlite3.Connection, clock: DatabaseClock) -> None:
        self._connection = connection
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[SqliteSubscription, int] = {}
        self._version = -1
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: SqliteSubscription, next_due: int) -> None:
        """Wake ``waiter`` when another process writes to its queue, or at ``next_due``."""
        self._waiting[waiter] = next_due
        if self._timer is None:
            self._timer = self._loop.call_later(_PERIOD, self._look)

    def discard(self, waiter: SqliteSubscription) -> None:
        """It waits no more."""
        self._waiting.pop(waiter, None)

    def close(self) -> None:
        """Wake nobody any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._connection.close()

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        try:
            self._wake_where_due()
        except sqlite3.Error:
            # The writer will meet the same trouble, and reports it to those who claim.
            for waiter in list(self._waiting):
                waiter.wake()
        self._timer = self._loop.call_later(_PERIOD, self._look)

    def _wake_where_due(self) -> None:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._look_into_queues()
        now = self._clock.now()
        for waiter, due in list(self._waiting.items()):
            if due <= now:
                waiter.wake()

    def _look_into_queues(self) -> None:
        execute = self._connection.execute
        seen: dict[int, int] = {}
        for waiter in self._waiting:
            queue = waiter.queue_id
            if queue not in seen:
                (there,) = execute(_IS_THERE, (queue, waiter.queue)).fetchone()
                (ready,) = execute(_IS_READY, (queue,)).fetchone()
                # A queue that is gone is made again, or missed, by whoever claims from it.
                now = ready or not there
                seen[queue] = 0 if now else execute(NEXT_DUE, (queue,)).fetchone()[0]
            self._waiting[waiter] = seen[queue]
