"""Everything of a transport that is there only while it is connected."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from matador.errors import MatadorError
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.database import Synchronous, open_for_reading, open_for_writing
from matador.transports.sqlite.errors import translate
from matador.transports.sqlite.session import WriterSession
from matador.transports.sqlite.subscription import FileWatcher, SqliteSubscription
from matador.transports.sqlite.topology import load_queues, no_such_queue
from matador.transports.sqlite.writer import Writer

Result = TypeVar("Result")


class SqliteConnection:
    """Three connections to the file: one that writes, one that looks, one that watches.

    Made by ``open``; belongs to the event loop.
    """

    def __init__(
        self,
        path: Path,
        clock: DatabaseClock,
        writer: Writer,
        *,
        watching: sqlite3.Connection,
        reading: sqlite3.Connection,
        name: str,
    ) -> None:
        self._path = path
        self._reading = reading
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-reader")
        self.clock = clock
        self.writer = writer
        self.watcher = FileWatcher(watching, clock)
        self.subscriptions: set[SqliteSubscription] = set()

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: DatabaseClock,
        *,
        synchronous: Synchronous,
        busy_timeout: float,
        name: str,
    ) -> SqliteConnection:
        """Open the file; make it if it is not there.

        Raises:
            MatadorError: the file is not ours.
            sqlite3.Error: whatever SQLite says.
        """

        def start() -> WriterSession:
            connection = open_for_writing(path, synchronous=synchronous, busy_timeout=busy_timeout)
            try:
                session = WriterSession(connection, path, clock, busy_timeout=busy_timeout)
                session.anchor()
            except BaseException:
                connection.close()
                raise
            return session

        writer = Writer(start, f"{name}-writer")
        try:
            await writer.start()
            watching = open_for_reading(path, busy_timeout=0)
            reading = open_for_reading(path, busy_timeout=busy_timeout)
        except BaseException:
            writer.abandon()
            raise
        return cls(path, clock, writer, watching=watching, reading=reading, name=name)

    def wake(self, queues: set[str]) -> None:
        """Wake the subscriptions of these queues."""
        if queues:
            for subscription in self.subscriptions:
                if subscription.queue in queues:
                    subscription.wake()

    def submit(
        self, work: Callable[[WriterSession], Result]
    ) -> asyncio.Future[Sequence[Result | MatadorError]]:
        """Run one operation in the writer; it must refuse, if it does, before it writes."""

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
        """

        def work() -> Result:
            try:
                queues = load_queues(self._reading)
                if queue not in queues:
                    raise no_such_queue(queue, queues, self._path)
                return look(self._reading, queues[queue], *arguments, self.clock.now())
            except sqlite3.Error as error:
                raise translate(error, self._path) from error

        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def close(self) -> None:
        """Finish everything, then let the file go; the writer last, so that it folds in the log."""
        self.watcher.close()
        self._reader.submit(self._reading.close)
        await asyncio.to_thread(self._reader.shutdown)
        await self.writer.stop()
