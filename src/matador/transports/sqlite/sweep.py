"""Deletes expired messages, a few at a time, and keeps the file and its log small."""

from __future__ import annotations

import sqlite3
import time

from matador.model.job import KEEP_AN_HOUR
from matador.model.topology import dead_letter_name
from matador.transports.sqlite.database import (
    DONE,
    IN_FLIGHT,
    JOBS,
    PLAIN_JOB,
    READY,
    log_size,
    waiting,
)
from matador.transports.sqlite.session import SqliteQueue, WriterSession

_CHUNK = 1000  # rows or pages at a time
_INTERVAL = 5.0  # seconds between two runs
_QUIET = 1.0  # seconds without work before the log is folded into the file
_LARGE_LOG = 64 << 20  # bytes; under constant load only a larger log is folded in
_FEW_FREE_PAGES = 2048  # not worth releasing: the next messages need them
_SHORT_WAIT = 100  # ms to wait for readers, so that one that hangs does not block the writer

_EXPIRED = (
    "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages INDEXED BY by_queue "
    f"WHERE queue = ? ORDER BY seq LIMIT {_CHUNK}) AND stored_at <= ? AND state = {READY}"
)
_FORGOTTEN = (
    f"DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE queue = ? "
    f"AND {waiting(DONE)} AND due <= ? ORDER BY due LIMIT {_CHUNK})"
)
_EXPIRED_JOBS = (
    "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE expires_at <= ? "
    f"AND expires_at IS NOT NULL AND state <> {IN_FLIGHT} LIMIT {_CHUNK}) RETURNING queue, id"
)
# Jobs that were told how long they are kept are not plain ones.
_SURPLUS_JOBS = (
    f"DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE queue = ? "
    f"AND finished_at IS NOT NULL AND job = {PLAIN_JOB} ORDER BY finished_at DESC "
    f"LIMIT {_CHUNK} OFFSET {KEEP_AN_HOUR.count})"
)
_ENDED_KEYS = (
    "DELETE FROM job_keys WHERE (queue, key) IN (SELECT queue, key FROM job_keys "
    f"WHERE until <= ? AND until IS NOT NULL LIMIT {_CHUNK})"
)
_CHILDREN_OF = (
    "DELETE FROM job_children WHERE queue = (SELECT id FROM queues WHERE name = "
    "(SELECT substr(name, 1, length(name) - ?) FROM queues WHERE id = ?)) AND parent = ?"
)
_SUFFIX = len(dead_letter_name("", "undeliverable"))


def sweep_expired(session: WriterSession, queue: SqliteQueue) -> int:
    """Delete the oldest dead letters past their time to live. Returns how many; 0: done."""
    if queue.ttl is None:
        return 0
    expired = (queue.id, session.now - queue.ttl)
    return session.connection.execute(_EXPIRED, expired).rowcount


def sweep_forgotten(session: WriterSession, queue: SqliteQueue) -> int:
    """Delete finished messages past their retention. Returns how many; 0: done."""
    return session.connection.execute(_FORGOTTEN, (queue.id, session.now)).rowcount


def sweep_jobs(session: WriterSession) -> int:
    """Delete finished jobs, and unique keys, that are past their time. Returns how many."""
    execute = session.connection.execute
    rows = execute(_EXPIRED_JOBS, (session.now,)).fetchall()
    # Completed jobs have no children any more. What failed ones have waited for goes with them.
    session.connection.executemany(_CHILDREN_OF, [(_SUFFIX, *row) for row in rows])
    return max(len(rows), execute(_ENDED_KEYS, (session.now,)).rowcount)


def sweep_surplus(session: WriterSession, queue: SqliteQueue) -> int:
    """Delete completed jobs beyond the number that is kept by default. Returns how many."""
    if queue.jobs != JOBS:
        return 0
    return session.connection.execute(_SURPLUS_JOBS, (queue.id,)).rowcount


def purge(session: WriterSession, queue: SqliteQueue) -> int:
    """Delete all messages of a queue that are neither in flight nor finished."""
    return session.connection.execute(
        "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages INDEXED BY by_queue "
        f"WHERE queue = ? AND state NOT IN ({IN_FLIGHT}, {DONE}))",
        (queue.id,),
    ).rowcount


class Maintenance:
    """Decides when the writer cleans up the file. Used by the writer's thread only."""

    def __init__(self) -> None:
        self._last_look = time.monotonic()
        self._next_look = self._last_look + _INTERVAL
        self._last_work = 0.0
        self._log_used = False

    def note_work(self) -> None:
        """The writer has done some work."""
        self._last_work = time.monotonic()
        self._log_used = True

    def seconds_to_wait(self, session: WriterSession) -> float:
        """Seconds until the next clean-up."""
        at = self._next(session)
        if self._log_used:
            at = min(at, self._last_work + _QUIET)
        return max(at - time.monotonic(), 0.0)

    def _next(self, session: WriterSession) -> float:
        """When to look again. Temporary queues must be kept well before they expire."""
        return min(self._next_look, self._last_look + session.shortest_expiry() / 3)

    def run_if_due(self, session: WriterSession) -> None:
        """Sweep, release free pages, fold in the log: whatever is due, a part of each.

        Raises:
            sqlite3.Error: it failed; the next call tries again.
        """
        now = time.monotonic()
        quiet = now - self._last_work >= _QUIET
        if now < self._next(session) and not (self._log_used and quiet):
            return
        # Set first: what fails now must not be tried again at once.
        self._next_look, self._last_look = now + _INTERVAL, now
        self._log_used = self._log_used and not quiet
        if _sweep_part(session):
            self._next_look = now
        elif quiet or log_size(session.path) > _LARGE_LOG:
            _checkpoint_log(session.connection)


def _sweep_part(session: WriterSession) -> bool:
    """Sweep and release a part. Returns whether there is more to do."""
    session.begin()
    try:
        session.keep_temporary()
        swept = sweep_jobs(session)
        for queue in session.queues.values():
            swept = max(
                swept,
                sweep_expired(session, queue),
                sweep_forgotten(session, queue),
                sweep_surplus(session, queue),
            )
        if swept:
            session.clock.remember(session.connection)
        released = _release_pages(session.connection)
        session.commit()
    except BaseException:
        session.rollback()
        raise
    return swept == _CHUNK or released


def _release_pages(connection: sqlite3.Connection) -> bool:
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if free < _FEW_FREE_PAGES or free * 2 < pages:
        return False
    # Works only while its rows are fetched.
    connection.execute(f"PRAGMA incremental_vacuum({_CHUNK})").fetchall()
    return True


def _checkpoint_log(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {_SHORT_WAIT}")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute("PRAGMA busy_timeout = 0")  # as `open_for_writing` set it
