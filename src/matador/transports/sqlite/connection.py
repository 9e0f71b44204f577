"""The connections of a transport to its file: one writes, one reads, one watches for changes."""

from __future__ import annotations

import asyncio
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from matador.errors import MatadorError
from matador.transports.kit.wakeup import Wakeup
from matador.transports.sqlite.claim import IS_PARKED, NEXT_DUE
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.database import (
    NEVER,
    READY,
    open_for_reading,
    open_for_writing,
)
from matador.transports.sqlite.errors import translate
from matador.transports.sqlite.options import SqliteOptions
from matador.transports.sqlite.session import (
    SqliteQueue,
    WriterSession,
    check_same_file,
    file_identity,
    load_queues,
    no_such_queue,
)
from matador.transports.sqlite.writer import Writer

Result = TypeVar("Result")

_PERIOD = 0.008  # seconds between two looks at the file

_IS_PAUSED = "SELECT paused FROM queues WHERE id = ? AND name = ?"
_IS_READY = f"SELECT EXISTS (SELECT 1 FROM messages WHERE queue = ? AND state = {READY})"


class SqliteConnection:
    """A writer, a reader and a watcher of one file. Belongs to the event loop."""

    def __init__(self, path: Path, clock: DatabaseClock, options: SqliteOptions) -> None:
        self.path = path
        self._options = options
        name = f"matador-{options.name}"
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-reader")
        self.clock = clock
        self.writer = Writer(self._open_session, f"{name}-writer")
        # Ends the thread of a connection whose event loop was closed without a disconnect.
        weakref.finalize(self, self.writer.abandon).atexit = False

    async def open(self) -> None:
        """Open the file; create it if it does not exist. Called once.

        Raises:
            MatadorError: the file belongs to another application.
            sqlite3.Error: any error of SQLite.
        """
        try:
            await self.writer.start()
            self.watcher = FileWatcher(open_for_reading(self.path, busy_timeout=0), self.clock)
            timeout = self._options.busy_timeout
            self._reading = open_for_reading(self.path, busy_timeout=timeout)
            self._file = file_identity(self.path)
        except BaseException:
            self.writer.abandon()
            raise

    def _open_session(self) -> WriterSession:
        path, timeout = self.path, self._options.busy_timeout
        synchronous = self._options.synchronous
        connection = open_for_writing(path, synchronous=synchronous, busy_timeout=timeout)
        try:
            session = WriterSession(connection, path, self.clock, busy_timeout=timeout)
            session.anchor()
        except BaseException:
            connection.close()
            raise
        return session

    def submit(
        self, work: Callable[[WriterSession], Result]
    ) -> asyncio.Future[Sequence[Result | MatadorError]]:
        """Run one operation in the writer. It may raise a MatadorError only before it writes."""

        def one(session: WriterSession, items: Sequence[None]) -> list[Result | MatadorError]:
            try:
                return [work(session) for _ in items]
            except MatadorError as refusal:
                return [refusal]  # as an outcome, it does not undo the group

        return self.writer.submit(one, [None])

    async def write(self, work: Callable[[WriterSession], Result]) -> Result:
        """``submit``, wait for it, and raise its error."""
        (outcome,) = await self.submit(work)
        if isinstance(outcome, MatadorError):
            raise outcome
        return outcome

    async def read(self, queue: str, look: Callable[..., Result], *arguments: object) -> Result:
        """Run ``look(connection, queue, *arguments, now)`` in the reader's thread.

        Raises:
            QueueNotFoundError: there is no such queue.
            StorageCorruptError: the file was deleted or replaced.
        """

        def work() -> Result:
            found = load_queues(self._reading, queue).get(queue)
            if found is None:
                raise no_such_queue(queue, load_queues(self._reading), self.path)
            return look(self._reading, found, *arguments, self.clock.now())

        return await self._look(work)

    async def read_all(
        self, look: Callable[[sqlite3.Connection, dict[str, SqliteQueue], int], Result]
    ) -> Result:
        """Run ``look(connection, all queues by name, now)`` in the reader's thread.

        Raises:
            StorageCorruptError: the file was deleted or replaced.
        """
        return await self._look(
            lambda: look(self._reading, load_queues(self._reading), self.clock.now())
        )

    async def _look(self, work: Callable[[], Result]) -> Result:
        def looked() -> Result:
            check_same_file(self.path, self._file)
            try:
                return work()
            except sqlite3.Error as error:
                raise translate(error, self.path) from error

        return await asyncio.get_running_loop().run_in_executor(self._reader, looked)

    async def close(self) -> None:
        """Finish all work and close the file; the writer last, so that it folds in the log."""
        self.watcher.close()
        try:
            self._reader.submit(self._reading.close)
            await asyncio.to_thread(self._reader.shutdown)
        except RuntimeError:  # the program ends, and executors do nothing more
            self._reading.close()
        await self.writer.stop()


class _Wait(NamedTuple):
    """What a subscription waits for."""

    queue: SqliteQueue
    next_due: int
    not_before: int
    parked: bool


class FileWatcher:
    """Wakes subscriptions when there may be something to claim. Belongs to the event loop.

    While a subscription waits, it reads the file's ``data_version`` a hundred times a second. That
    reads shared memory, takes a few microseconds, and needs no thread.
    """

    def __init__(self, connection: sqlite3.Connection, clock: DatabaseClock) -> None:
        self._connection = connection
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Wakeup, _Wait] = {}
        self._version = -1
        self._changes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def changes(self) -> int:
        """How many changes of the file were noticed: take it before a claim, for ``wait``."""
        return self._changes

    async def wait(
        self,
        wakeup: Wakeup,
        queue: SqliteQueue,
        next_due: int,
        *,
        since: int,
        not_before: int = 0,
        parked: bool = False,
    ) -> None:
        """Wait until another process writes to the queue, until ``next_due``, or until woken.

        ``since``: the ``changes`` before the claim that found nothing. ``not_before``: there is
        nothing to claim until then. ``parked``: a change by another process may make a parked job
        ready.
        """
        if since != self._changes:
            self._version = -1  # a change that woke other subscriptions may concern this queue
        self._waiting[wakeup] = _Wait(queue, next_due, not_before, parked)
        if self._timer is None:
            self._timer = self._loop.call_later(_PERIOD, self._look)
        try:
            await wakeup.wait()
        finally:
            self._waiting.pop(wakeup, None)

    def close(self) -> None:
        """Stop watching."""
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
            # The next claim meets the same problem in the writer, and reports it.
            for wakeup in list(self._waiting):
                wakeup.wake()
        self._timer = self._loop.call_later(_PERIOD, self._look)

    def _wake_where_due(self) -> None:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._changes += 1
            due_of = {
                place: self._next_due(*place)
                for place in {(one.queue, one.parked) for one in self._waiting.values()}
            }
            for wakeup, one in self._waiting.items():
                self._waiting[wakeup] = one._replace(next_due=due_of[one.queue, one.parked])
        now = self._clock.now()
        for wakeup, one in list(self._waiting.items()):
            if max(one.next_due, one.not_before) <= now:
                wakeup.wake()

    def _next_due(self, queue: SqliteQueue, parked: bool) -> int:
        execute = self._connection.execute
        there = execute(_IS_PAUSED, (queue.id, queue.name)).fetchone()
        if there is None:
            return 0  # the next claim creates it again, or reports that it is missing
        if there[0]:
            return NEVER  # the end of the pause changes the file
        (ready,) = execute(_IS_READY, (queue.id,)).fetchone()
        if parked and not ready:
            (ready,) = execute(IS_PARKED, (queue.id,)).fetchone()
        return 0 if ready else execute(NEXT_DUE, (queue.id,)).fetchone()[0]
