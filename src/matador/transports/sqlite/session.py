"""The writer's view of the database: its transaction, its time, and the table of queues."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from matador.errors import ConfigurationError, QueueNotFoundError, StorageCorruptError
from matador.model.message import TopologyNote
from matador.model.topology import Topology, dead_letter_name
from matador.transports.kit.errors import queue_not_found
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.database import FAILED_JOBS, JOBS, NO_JOBS, lock
from matador.transports.sqlite.routes import FileRoutes, TemporaryQueue, temporary_in

logger = logging.getLogger("matador.transports.sqlite")

_COLUMNS = "id, name, dead_letters, priorities, max_length, ttl, retention"
_INSERT = f"INSERT INTO queues ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_UPSERT = f"""{_INSERT}
ON CONFLICT (name) DO UPDATE SET dead_letters = excluded.dead_letters,
    priorities = excluded.priorities, max_length = excluded.max_length,
    ttl = excluded.ttl, retention = excluded.retention
WHERE (dead_letters, priorities, max_length, ttl, retention) IS NOT
    (excluded.dead_letters, excluded.priorities, excluded.max_length, excluded.ttl,
     excluded.retention)
"""
_OPEN_JOBS = (
    "INSERT INTO queues (name, dead_letters, priorities, jobs) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET jobs = excluded.jobs"
)
_CREATE_AGAIN = f"INSERT INTO queues ({_COLUMNS}, jobs, paused) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class SqliteQueue:
    """A row of the table of queues. Times are in milliseconds."""

    id: int
    name: str
    dead_letters: bool
    priorities: bool
    max_length: int | None
    ttl: int | None
    retention: int | None
    jobs: int = NO_JOBS
    paused: bool = False


def load_queues(connection: sqlite3.Connection, name: str | None = None) -> dict[str, SqliteQueue]:
    """All queues by name, or only the one with this name."""
    only, values = ("", ()) if name is None else (" WHERE name = ?", (name,))
    rows = connection.execute(f"SELECT {_COLUMNS}, jobs, paused FROM queues{only}", values)
    return {
        name: SqliteQueue(
            id_, name, bool(dead), bool(priorities), length, ttl, kept, jobs, bool(paused)
        )
        for id_, name, dead, priorities, length, ttl, kept, jobs, paused in rows
    }


def no_such_queue(name: str, known: Iterable[str], path: Path) -> QueueNotFoundError:
    """The error for a queue that does not exist."""
    return queue_not_found(name, f"{path}; add it to the topology and apply it", known)


class WriterSession:
    """Used by the writer's thread only.

    Attributes:
        connection: the writer's connection; a transaction is open while an operation runs.
        now: the database time at the start of the transaction, in milliseconds.
        queues: all queues by name, as they are in this transaction.
        warned: the names of queues whose overflow has been logged.
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
        self._file = file_identity(path)
        self.path = path
        self.clock = clock
        self.now = clock.now()
        self.queues: dict[str, SqliteQueue] = {}
        self._declared: set[str] = set()  # created again if another program deletes them
        self._temporary: dict[str, TemporaryQueue] = {}  # the same, while they are consumed here
        self._consumed: dict[str, set[object]] = {}  # temporary queues and their consumers
        self.routes = FileRoutes(connection)
        self.warned: set[str] = set()
        self._version = -1

    def anchor(self) -> None:
        """Set the clock from the file. Called once, before anything else."""
        if not self.clock.adopt(self.connection):
            self._lock()
            self.clock.anchor(self.connection)
            self.commit()

    def close(self) -> None:
        """Store the current time, and close the connection."""
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
        # Changes only when another process has written. Only then can the queues have changed.
        (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self.routes.changed_elsewhere()
            self._reload()
            self._version = version

    def commit(self) -> None:
        """Make the changes of this transaction durable."""
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the changes of this transaction, unless SQLite has already done so."""
        self._version = -1
        self.routes.forget()
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def queue(self, name: str) -> SqliteQueue:
        """A queue by its full name.

        Raises:
            QueueNotFoundError: it does not exist.
        """
        found = self.queues.get(name)
        if found is None and name in self._consumed and name in self._temporary:
            found = self._make_temporary(self._temporary[name])
        if found is None:
            raise no_such_queue(name, self.queues, self.path)
        return found

    def declare(self, topology: Topology) -> list[TopologyNote]:
        """Create what a topology describes, or update settings. Deletes nothing.

        ``exact`` queues are created too: no other application shares the file.
        """
        rows: list[tuple[None, str, bool, bool, int | None, int | None, int | None]] = []
        for queue in topology.queues:
            name, retention = topology.full_name(queue.name), _milliseconds(queue.retention)
            ttl = _milliseconds(queue.message_ttl)
            rows.append((None, name, False, queue.priorities, queue.max_length, ttl, retention))
        for queue, kind, name in topology.dead_letter_names():
            settings = topology.letters_of(queue)[kind]
            ttl = _milliseconds(settings.ttl)
            rows.append((None, name, True, False, settings.max_length, ttl, None))
        self.connection.executemany(_UPSERT, rows)
        self._reload()
        temporary = {queue.name: queue for queue in temporary_in(topology)}
        names = {name for _, name, *_ in rows}
        self._declared = (self._declared | names) - temporary.keys()
        for name in names:
            self._temporary.pop(name, None)
        self._temporary.update(temporary)
        return self.routes.apply(topology, self.now)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its bindings and messages.

        Raises:
            ConfigurationError: it is a queue of jobs.
        """
        queue = self.queues.get(name)
        if queue is not None and queue.jobs:
            raise ConfigurationError(f"{self.path}: queue {name!r} has jobs; use delete_jobs")
        self._declared.discard(name)
        self._temporary.pop(name, None)
        self.routes.remove_queue(name, lasting=self.routes.expiry_of(name) is None, now=self.now)
        if queue is not None:
            self.connection.execute("DELETE FROM messages WHERE queue = ?", (queue.id,))
            self.connection.execute("DELETE FROM queues WHERE id = ?", (queue.id,))
            self._reload()

    def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Remove a binding."""
        known = self._temporary.get(queue)
        if known is not None:
            left = [
                one for one in known.bindings if (one.exchange, one.pattern) != (exchange, pattern)
            ]
            self._temporary[queue] = replace(known, bindings=tuple(left))
        self.routes.unbind(exchange, queue, pattern)

    # -- temporary queues -------------------------------------------------------------------------

    def open_temporary(self, queue: TemporaryQueue) -> None:
        """Create a temporary queue, such as one for replies."""
        self._temporary[queue.name] = queue
        self._make_temporary(queue)

    def _make_temporary(self, queue: TemporaryQueue) -> SqliteQueue:
        row = (None, queue.name, False, False, None, None, None)
        self.connection.execute(_UPSERT, row)
        self.routes.keep(queue, self.now)
        self._reload()
        return self.queues[queue.name]

    def consume(self, name: str, consumer: object) -> bool:
        """Keep a temporary queue from now on. False: it is not temporary. Idempotent."""
        if self.routes.expiry_of(name) is None:
            return False
        self._consumed.setdefault(name, set()).add(consumer)
        self.routes.touch([name], self.now, always=True)
        return True

    def leave(self, name: str, consumer: object) -> None:
        """Undo ``consume``. Idempotent."""
        consumers = self._consumed.get(name, set())
        consumers.discard(consumer)
        if not consumers:
            self._consumed.pop(name, None)
        self.routes.touch([name], self.now, always=True)

    def keep_temporary(self) -> None:
        """Renew the temporary queues that this process uses, and delete expired ones."""
        for name in self._consumed:
            # It may have expired while this process was stopped.
            if name not in self.queues and name in self._temporary:
                self._make_temporary(self._temporary[name])
        self.routes.touch(self._consumed, self.now)
        for name in self.routes.expired(self.now):
            queue = self.queues.get(name)
            if queue is not None and queue.jobs:  # created again since, as a queue of jobs
                self.routes.remove_queue(name, lasting=False, now=self.now)
            else:
                self.delete_queue(name)

    def shortest_expiry(self) -> float:
        """Seconds until the first of the temporary queues consumed here would be deleted."""
        known = map(self._temporary.get, self._consumed)
        return min((queue.expires / 1000 for queue in known if queue is not None), default=math.inf)

    def open_jobs(self, name: str) -> None:
        """Create a queue of jobs, and its dead letters for failed ones, unless they exist.

        Raises:
            ConfigurationError: the queue exists, and is not one of jobs.
        """
        failed = dead_letter_name(name, "undeliverable")
        queue, letters = self.queues.get(name), self.queues.get(failed)
        if queue is not None and queue.jobs != JOBS:
            raise ConfigurationError(
                f"{self.path}: queue {name!r} exists and is not a queue of jobs; use another name"
            )
        if queue is None or letters is None or letters.jobs != FAILED_JOBS:
            rows = [(name, False, True, JOBS), (failed, True, False, FAILED_JOBS)]
            self.connection.executemany(_OPEN_JOBS, rows)
            self._reload()
        self._declared.update((name, failed))

    def pause(self, queue: SqliteQueue, paused: bool) -> None:
        """Pause a queue, or end the pause."""
        if queue.paused is not paused:
            row = (paused, queue.id)
            self.connection.execute("UPDATE queues SET paused = ? WHERE id = ?", row)
            self._reload()

    def jobs(self, name: str) -> SqliteQueue:
        """A queue of jobs by its full name.

        Raises:
            QueueNotFoundError: there is no such queue, or it is not one of jobs.
        """
        found = self.queues.get(name)
        if found is None or found.jobs != JOBS:
            raise no_such_queue(name, self.queues, self.path)
        return found

    def failed_jobs(self, queue: SqliteQueue) -> SqliteQueue:
        """The dead letters of a queue of jobs.

        Raises:
            QueueNotFoundError: another program has renamed or deleted them.
        """
        return self.queue(dead_letter_name(queue.name, "undeliverable"))

    def _reload(self) -> None:
        """Read the queues, and create again those that another program has deleted."""
        before, self.queues = self.queues, load_queues(self.connection)
        for name in (self._declared & before.keys()) - self.queues.keys():
            if self.routes.expiry_of(name) is not None:
                self._declared.discard(name)  # deleted on purpose, by another process
                continue
            logger.warning("%s: queue %s was deleted; creating it again", self.path, name)
            _, *settings = astuple(before[name])
            self.connection.execute(_CREATE_AGAIN, (None, *settings))
            self.queues = load_queues(self.connection)

    def _lock(self) -> None:
        check_same_file(self.path, self._file)
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")  # an earlier attempt failed
        lock(self.connection, self._busy_timeout)


def check_same_file(path: Path, opened: tuple[int, int] | None) -> None:
    """Check that the path still names the file that was opened: a deleted file stays usable.

    Raises:
        StorageCorruptError: it names no file, or another one.
    """
    if file_identity(path) != opened:
        raise StorageCorruptError(
            f"{path} was deleted or replaced while it was open: new messages would "
            f"be lost; put the file back or restart"
        )


def file_identity(path: Path) -> tuple[int, int] | None:
    """The identity of a file, whatever its name; None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the time of Path.stat, once per transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
