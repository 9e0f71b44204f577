"""The SQLite file of a history. Workers write it and the dashboard reads it; several processes may
share it.

All methods block and may be called by any thread. A file that cannot be written raises
``HistoryError``; the worker continues without it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from matador.errors import HistoryError
from matador.observe.history.records import (
    BOUNDS,
    BUCKET,
    FailedAttempt,
    OutcomeKey,
    OutcomeTotals,
    WorkerState,
)

KEPT: Final = 8 * 86_400
"""Seconds after which rows are deleted."""

MOST_FAILURES: Final = 100_000
_MOST_FOUND = 200
_VERSION = 1
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_SCHEMA = """
CREATE TABLE IF NOT EXISTS outcomes (
    at INTEGER NOT NULL, source TEXT NOT NULL, worker TEXT NOT NULL, queue TEXT NOT NULL,
    event_key TEXT NOT NULL, subscriber TEXT NOT NULL, outcome TEXT NOT NULL,
    count INTEGER NOT NULL, total_ms REAL NOT NULL, max_ms REAL NOT NULL, wait_ms REAL NOT NULL,
    buckets BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS outcomes_at ON outcomes (at);
CREATE TABLE IF NOT EXISTS failures (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, correlation_id TEXT, started_at REAL NOT NULL,
    record BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS failures_id ON failures (id);
CREATE INDEX IF NOT EXISTS failures_correlation ON failures (correlation_id);
CREATE TABLE IF NOT EXISTS workers (
    name TEXT PRIMARY KEY, seen_at REAL NOT NULL, record BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS depths (
    at INTEGER NOT NULL, queue TEXT NOT NULL, ready INTEGER, delayed INTEGER, in_flight INTEGER,
    dead INTEGER, PRIMARY KEY (at, queue)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (
    key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

_counts = msgspec.msgpack.Decoder(list[int]).decode
_failure = msgspec.msgpack.Decoder(FailedAttempt).decode
_worker = msgspec.msgpack.Decoder(WorkerState).decode
_encode = msgspec.msgpack.Encoder().encode

Depth = tuple[str, int | None, int | None, int | None, int | None]
"""A queue with its numbers of ready, delayed, in-flight and dead messages, as far as known."""


class HistoryStore:
    """The file of a history, made on first use and readable by its owner only.

    Example:
        >>> store = HistoryStore("history.db")
        >>> store.workers(since=0)
        []
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    # -- what workers add -------------------------------------------------------------------------

    def record(
        self,
        source: str,
        worker: WorkerState | None,
        name: str,
        outcomes: Mapping[tuple[int, OutcomeKey], OutcomeTotals],
        failures: Sequence[FailedAttempt] = (),
        note: tuple[str, str] | None = None,
    ) -> None:
        """Add what happened, in one transaction. Outcomes are keyed by the start of their bucket.

        Raises:
            HistoryError: the file cannot be written.
        """
        rows = [
            (
                *(at, source, name, key.queue, key.event_key, key.subscriber, key.outcome),
                *(one.count, one.total_ms, one.max_ms, one.wait_ms, _encode(one.buckets)),
            )
            for (at, key), one in outcomes.items()
        ]
        with self._using() as file, file:
            file.executemany(f"INSERT INTO outcomes VALUES ({', '.join('?' * 12)})", rows)
            file.executemany(
                "INSERT INTO failures (id, correlation_id, started_at, record) VALUES (?, ?, ?, ?)",
                [(one.id, one.correlation_id, one.started_at, _encode(one)) for one in failures],
            )
            if worker is not None:
                file.execute(
                    "INSERT OR REPLACE INTO workers VALUES (?, ?, ?)",
                    (worker.name, worker.seen_at, _encode(worker)),
                )
            if note is not None:
                file.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", note)

    def add_depths(self, at: float, depths: Iterable[Depth]) -> None:
        """Add how many messages each queue held at a time."""
        moment = int(at) - int(at) % BUCKET
        with self._using() as file, file:
            file.executemany(
                "INSERT OR REPLACE INTO depths VALUES (?, ?, ?, ?, ?, ?)",
                [(moment, *one) for one in depths],
            )

    def prune(self, now: float) -> None:
        """Delete rows that are too old or too many."""
        before = now - KEPT
        with self._using() as file, file:
            file.execute("DELETE FROM outcomes WHERE at < ?", (before,))
            file.execute("DELETE FROM depths WHERE at < ?", (before,))
            file.execute("DELETE FROM workers WHERE seen_at < ?", (before,))
            file.execute(
                "DELETE FROM failures WHERE started_at < ? OR number <= "
                "(SELECT coalesce(max(number), 0) - ? FROM failures)",
                (before, MOST_FAILURES),
            )

    # -- what the dashboard reads -----------------------------------------------------------------

    def outcomes(self, since: float, step: int) -> list[tuple[int, OutcomeKey, OutcomeTotals]]:
        """Counts since a time, in steps of ``step`` seconds.

        Uses the counts recorded by workers if there are any, otherwise those of the journal.
        """
        with self._using() as file:
            ours = file.execute(
                "SELECT 1 FROM outcomes WHERE at >= ? AND source = 'worker' LIMIT 1", (since,)
            ).fetchone()
            found = file.execute(
                "SELECT at - at % ?, queue, event_key, subscriber, outcome, count, total_ms, "
                "max_ms, wait_ms, buckets FROM outcomes WHERE at >= ? AND source = ?",
                (step, since, "worker" if ours else "journal"),
            ).fetchall()
        made: dict[tuple[int, OutcomeKey], OutcomeTotals] = {}
        for at, queue, event, subscriber, outcome, count, total, most, waited, buckets in found:
            key = (at, OutcomeKey(queue, event, subscriber, outcome))
            counts = _counts(buckets)
            if len(counts) != len(BOUNDS) + 1:
                continue  # of another version
            made.setdefault(key, OutcomeTotals()).include(
                OutcomeTotals(count, total, most, waited, counts)
            )
        return [(at, key, totals) for (at, key), totals in sorted(made.items(), key=_by_time)]

    def failures(self, wanted: str) -> list[FailedAttempt]:
        """The failed attempts of a message or of a correlation id, in order."""
        with self._using() as file:
            found = file.execute(
                "SELECT record FROM failures WHERE id = ?1 OR correlation_id = ?1 "
                "ORDER BY started_at DESC LIMIT ?2",
                (wanted, _MOST_FOUND),
            ).fetchall()
        return [_failure(record) for (record,) in reversed(found)]

    def workers(self, since: float) -> list[WorkerState]:
        """Workers that reported since a time, the latest start first."""
        with self._using() as file:
            found = file.execute(
                "SELECT record FROM workers WHERE seen_at >= ? ORDER BY seen_at DESC LIMIT 500",
                (since,),
            ).fetchall()
        return sorted((_worker(one) for (one,) in found), key=lambda one: -one.started_at)

    def attempts_by_worker(self, since: float, source: str) -> list[tuple[str, int, int, int]]:
        """The workers of a source: name, time of the last report, attempts and failed attempts."""
        with self._using() as file:
            return file.execute(
                "SELECT worker, max(at), sum(count), "
                "sum(CASE outcome WHEN 'success' THEN 0 ELSE count END) FROM outcomes "
                "WHERE at >= ? AND source = ? GROUP BY worker ORDER BY 2 DESC LIMIT 500",
                (since, source),
            ).fetchall()

    def depths(self, since: float, step: int) -> list[tuple[int, str, int, int]]:
        """Waiting messages and dead letters of each queue, the most in each step."""
        with self._using() as file:
            return file.execute(
                "SELECT at - at % ?, queue, max(coalesce(ready, 0)), max(coalesce(dead, 0)) "
                "FROM depths WHERE at >= ? GROUP BY 1, 2 ORDER BY 1",
                (step, since),
            ).fetchall()

    def latest_failures(self, limit: int) -> list[FailedAttempt]:
        """The failed attempts that were recorded last, the latest first."""
        with self._using() as file:
            rows = file.execute(
                "SELECT record FROM failures ORDER BY number DESC LIMIT ?", (limit,)
            ).fetchall()
            return [_failure(record) for (record,) in rows]

    def dead_since(self, queue: str) -> float | None:
        """The time since which a queue continuously has dead letters, as far as depths were
        recorded."""
        with self._using() as file:
            row = file.execute(
                "SELECT min(at) FROM depths WHERE queue = ?1 AND dead > 0 AND at > coalesce("
                "(SELECT max(at) FROM depths WHERE queue = ?1 AND dead = 0), -1)",
                (queue,),
            ).fetchone()
        return row[0]

    def note(self, key: str) -> str | None:
        """A note stored by ``record``."""
        with self._using() as file:
            row = file.execute("SELECT value FROM notes WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    # -- internals --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _using(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._opened()
                yield self._connection
            except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
                raise HistoryError(f"the history in {self.path} cannot be used: {error}") from error

    def _opened(self) -> sqlite3.Connection:
        if not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        made = sqlite3.connect(self.path, timeout=5.0, check_same_thread=False)
        try:
            if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
                raise sqlite3.NotSupportedError(
                    f"SQLite {sqlite3.sqlite_version} is too old: at least "
                    f"{'.'.join(map(str, _OLDEST_SQLITE))} is needed; use a newer Python"
                )
            if not _is_history(made):  # before anything is written to it
                raise sqlite3.DatabaseError("it is another database, or of another version")
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("PRAGMA synchronous = NORMAL")
            # Several processes may open a new file at once: the first one creates the tables.
            made.execute("BEGIN IMMEDIATE")
            (version,) = made.execute("PRAGMA user_version").fetchone()
            if not version:
                for statement in _SCHEMA.split(";"):
                    made.execute(statement)
                made.execute(f"PRAGMA user_version = {_VERSION}")
            made.commit()
        except BaseException:
            made.close()
            raise
        return made


def _is_history(file: sqlite3.Connection) -> bool:
    """Whether a file is a history of this version, or empty."""
    file.execute("BEGIN")  # both queries see the same state
    (version,) = file.execute("PRAGMA user_version").fetchone()
    (tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
    file.rollback()
    return version == _VERSION or not (version or tables)


def _by_time(item: tuple[tuple[int, OutcomeKey], Any]) -> tuple[int, str, str, str, str]:
    (at, key), _ = item
    return at, key.queue, key.event_key, key.subscriber, key.outcome
