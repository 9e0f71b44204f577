"""What the writer's operations work with: the connection, the queues, and one "now" a turn."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

from matador.errors import StorageCorruptError
from matador.model.topology import Topology
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.database import lock
from matador.transports.sqlite.topology import (
    SqliteQueue,
    declare,
    load_queues,
    no_such_queue,
    put_back,
)

logger = logging.getLogger("matador.transports.sqlite")


class WriterSession:
    """The writer's view of the database. Belongs to the writer's thread alone.

    Attributes:
        connection: the writer's connection; a transaction is open while an operation runs.
        now: the time of the database at the start of the transaction, in milliseconds.
        queues: all queues by name, as they are in this transaction.
        declared: those of the topologies that were applied; they are there for good.
        warned: names of queues whose overflow was logged already.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        clock: DatabaseClock,
        *,
        busy_timeout: float,
    ) -> None:
        self.connection = connection
        self._busy_timeout = busy_timeout
        self._file = _identity(path)
        self.path = path
        self.clock = clock
        self.now = clock.now()
        self.queues: dict[str, SqliteQueue] = {}
        self.declared: set[str] = set()
        self.warned: set[str] = set()
        self._version = -1

    def anchor(self) -> None:
        """Let the file set the clock. Called once, before anything else."""
        if not self.clock.adopt(self.connection):
            self._lock()
            self.clock.anchor(self.connection)
            self.commit()

    def close(self) -> None:
        """Note how late it is, and close the connection."""
        try:
            self.begin()
            self.clock.remember(self.connection)
            self.commit()
        finally:
            self.connection.close()

    def begin(self) -> None:
        """Start a transaction that may write; waits for other processes to end theirs."""
        self._lock()
        self.now = self.clock.now()
        # Changes only when another process has written: only then may the queues be others.
        (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self.reload()
            self._version = version

    def commit(self) -> None:
        """Make everything of this transaction durable."""
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo everything of this transaction, if SQLite has not done so already."""
        self._version = -1
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def declare(self, topology: Topology) -> None:
        """Make the queues of a topology, or update their settings."""
        names = declare(self.connection, topology)
        self.reload()
        self.declared.update(names)

    def reload(self) -> None:
        """Read the queues again, and put back what somebody deleted by hand."""
        before, self.queues = self.queues, load_queues(self.connection)
        for name in self.declared:
            if name in before and before[name].id != self._id_of(name):
                self._put_back(before[name])

    def _id_of(self, name: str) -> int | None:
        return self.queues[name].id if name in self.queues else None

    def _put_back(self, queue: SqliteQueue) -> None:
        """Make a queue again that was deleted, so that its messages belong to it as before."""
        taken = any(other.id == queue.id for other in self.queues.values())
        if queue.name not in self.queues:
            logger.warning("%s: queue %s was deleted; creating it again", self.path, queue.name)
            put_back(self.connection, queue, same_id=not taken)
            self.queues = load_queues(self.connection)
        elif not taken:  # another process was quicker: its queue gets the messages of ours
            moved = (self.queues[queue.name].id, queue.id)
            self.connection.execute("UPDATE messages SET queue = ? WHERE queue = ?", moved)

    def queue(self, name: str) -> SqliteQueue:
        """A queue by its full name.

        Raises:
            QueueNotFoundError: there is none.
        """
        found = self.queues.get(name)
        if found is None:
            raise no_such_queue(name, self.queues, self.path)
        return found

    def _lock(self) -> None:
        if _identity(self.path) != self._file:
            raise StorageCorruptError(
                f"{self.path} was deleted or replaced while it was open: new messages would "
                f"be lost; put the file back or restart"
            )
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")  # an earlier attempt to do so failed
        lock(self.connection, self._busy_timeout)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - half the time of Path.stat, once a transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino
