"""Notices new messages of other processes, and what becomes due, for those who wait.

Asks the file for its ``data_version`` a hundred times a second while anybody waits: a look into
shared memory of a few microseconds, no thread and no notification service needed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Protocol

from matador.transports.sqlite.claiming import NEXT_DUE
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.database import READY

_PERIOD = 0.008  # seconds between two looks

_IS_THERE = "SELECT EXISTS (SELECT 1 FROM queues WHERE id = ? AND name = ?)"
_IS_READY = f"SELECT EXISTS (SELECT 1 FROM messages WHERE queue = ? AND state = {READY})"


class Waiter(Protocol):
    """Somebody who waits for messages of a queue."""

    @property
    def queue(self) -> str:
        """The name of the queue."""
        ...

    @property
    def queue_id(self) -> int:
        """The number of the queue."""
        ...

    def wake(self) -> None:
        """There may be something to claim."""
        ...


class Watcher:
    """Wakes waiters. Belongs to the event loop."""

    def __init__(self, connection: sqlite3.Connection, clock: DatabaseClock) -> None:
        self._connection = connection
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Waiter, int] = {}
        self._version = -1
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter, next_due: int) -> None:
        """Wake ``waiter`` when another process writes to its queue, or at ``next_due``."""
        self._waiting[waiter] = next_due
        if self._timer is None:
            self._timer = self._loop.call_later(_PERIOD, self._look)

    def discard(self, waiter: Waiter) -> None:
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
