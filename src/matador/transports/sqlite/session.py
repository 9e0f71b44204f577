"""What the writer's operations work with: the connection, the queues, and one "now" a turn."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from matador.errors import QueueNotFoundError, StorageCorruptError
from matador.model.options import suggestion
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.database import lock


@dataclass(frozen=True, slots=True)
class Queue:
    """A row of the table of queues. Times are in milliseconds."""

    id: int
    name: str
    dead_letters: bool
    priorities: bool
    max_length: int | None
    ttl: int | None
    retention: int | None


class Session:
    """The writer's view of the database. Belongs to the writer's thread alone.

    Attributes:
        connection: the writer's connection; a transaction is open while an operation runs.
        now: the time of the database at the start of the transaction, in milliseconds.
        queues: all queues by name, as they are in this transaction.
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
        self.queues: dict[str, Queue] = {}
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

    def reload(self) -> None:
        """Read the queues again."""
        self.queues = load_queues(self.connection)

    def queue(self, name: str) -> Queue:
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
                f"{self.path} was deleted or replaced while it was open: what is stored now would "
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


def load_queues(connection: sqlite3.Connection) -> dict[str, Queue]:
    """All queues by name."""
    rows = connection.execute(
        "SELECT id, name, dead_letters, priorities, max_length, ttl, retention FROM queues"
    )
    return {
        name: Queue(id_, name, bool(dead), bool(priorities), max_length, ttl, retention)
        for id_, name, dead, priorities, max_length, ttl, retention in rows
    }


def no_such_queue(name: str, known: dict[str, Queue], path: Path) -> QueueNotFoundError:
    """The error for a queue that is not there."""
    return QueueNotFoundError(
        f"there is no queue {name!r} in {path}{suggestion(name, known)}; "
        f"add it to the topology and apply it"
    )
