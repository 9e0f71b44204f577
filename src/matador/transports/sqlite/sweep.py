"""Removes what is past its time, in small bites, and keeps the file and its log compact."""

from __future__ import annotations

import sqlite3
import time

from matador.transports.sqlite.database import (
    BLOCKED,
    DELAYED,
    DONE,
    IN_FLIGHT,
    NEVER,
    READY,
    waiting,
)
from matador.transports.sqlite.session import WriterSession
from matador.transports.sqlite.topology import SqliteQueue

_CHUNK = 1000  # rows, or pages, in one bite
_INTERVAL = 5.0  # seconds between two looks
_QUIET = 1.0  # seconds without work after which the log is folded into the file
_LARGE_LOG = 64 << 20  # bytes; under constant load the log is folded in only beyond this
_FEW_FREE_PAGES = 2048  # not worth giving back: the next messages need them
_SHORT_WAIT = 100  # ms to wait for readers, so that a hanging one does not hold up the writer

_EXPIRED = (
    "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages INDEXED BY by_queue "
    f"WHERE queue = ? ORDER BY seq LIMIT {_CHUNK}) AND stored_at <= ? AND state = {READY}"
)
_FORGOTTEN = (
    f"DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE queue = ? "
    f"AND {waiting(DONE)} AND due <= ? ORDER BY due LIMIT {_CHUNK})"
)
# Rows that another program wrote, in a state that nobody knows or due at a time that is none: to
# SQLite NULL comes before every number, text and bytes come after.
_IN_NO_STATE = (
    f"state < {READY}",
    *(f"state > {known} AND state < {known + 1}" for known in range(READY, BLOCKED)),
    f"state > {BLOCKED}",
)
_NEVER_DUE = tuple(
    f"{waiting(state)} AND {due}"
    for state in (DELAYED, IN_FLIGHT)
    for due in ("due IS NULL", f"due >= {NEVER}")
)
_STRAYS = " UNION ALL ".join(
    f"SELECT seq FROM messages WHERE queue = ?1 AND state <> {READY} AND {stray}"
    for stray in (*_IN_NO_STATE, *_NEVER_DUE)
)
_TAKE_IN = f"UPDATE messages SET state = {READY}, due = NULL, token = NULL WHERE seq IN ({_STRAYS})"


def take_in_strays(session: WriterSession, queue: SqliteQueue) -> int:
    """Make ready what would never become so by itself; how many there were."""
    return session.connection.execute(_TAKE_IN, (queue.id,)).rowcount


def sweep_expired(session: WriterSession, queue: SqliteQueue) -> int:
    """Delete the oldest dead letters that outlived the time to live; how many, 0 if all are."""
    if queue.ttl is None:
        return 0
    expired = (queue.id, session.now - queue.ttl)
    return session.connection.execute(_EXPIRED, expired).rowcount


def sweep_forgotten(session: WriterSession, queue: SqliteQueue) -> int:
    """Delete finished messages whose retention is over; how many, 0 if all are."""
    return session.connection.execute(_FORGOTTEN, (queue.id, session.now)).rowcount


def purge(session: WriterSession, queue: SqliteQueue) -> int:
    """Delete every message of a queue that is not held and not finished."""
    return session.connection.execute(
        "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages INDEXED BY by_queue "
        f"WHERE queue = ? AND state NOT IN ({IN_FLIGHT}, {DONE}))",
        (queue.id,),
    ).rowcount


class Caretaker:
    """Decides when the writer looks after the file. Belongs to the writer's thread."""

    def __init__(self) -> None:
        self._next_look = time.monotonic() + _INTERVAL
        self._last_work = 0.0
        self._log_used = False

    def worked(self) -> None:
        """The writer has carried out something."""
        self._last_work = time.monotonic()
        self._log_used = True

    def patience(self) -> float:
        """Seconds until the file wants looking after."""
        at = self._next_look
        if self._log_used:
            at = min(at, self._last_work + _QUIET)
        return max(at - time.monotonic(), 0.0)

    def look_after(self, session: WriterSession) -> None:
        """Sweep, give back free pages, fold in the log: whatever is due, a bite of each.

        Raises:
            sqlite3.Error: it failed; the next look tries again.
        """
        now = time.monotonic()
        quiet = now - self._last_work >= _QUIET
        if now < self._next_look and not (self._log_used and quiet):
            return
        # Before it is tried: what fails now must not be tried again at once.
        self._next_look = now + _INTERVAL
        self._log_used = self._log_used and not quiet
        if _bite(session):
            self._next_look = now
        elif quiet or _log_size(session) > _LARGE_LOG:
            _fold_in_log(session.connection)


def _bite(session: WriterSession) -> bool:
    """Sweep and give back a bit; is there more to do?"""
    session.begin()
    try:
        swept = 0
        for queue in session.queues.values():
            swept = max(swept, sweep_expired(session, queue), sweep_forgotten(session, queue))
            take_in_strays(session, queue)
        if swept:
            session.clock.remember(session.connection)
        given_back = _give_back_pages(session.connection)
        session.commit()
    except BaseException:
        session.rollback()
        raise
    return swept == _CHUNK or given_back


def _give_back_pages(connection: sqlite3.Connection) -> bool:
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if free < _FEW_FREE_PAGES or free * 2 < pages:
        return False
    # Works only as far as its rows are fetched.
    connection.execute(f"PRAGMA incremental_vacuum({_CHUNK})").fetchall()
    return True


def _log_size(session: WriterSession) -> int:
    log = session.path.with_name(session.path.name + "-wal")
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _fold_in_log(connection: sqlite3.Connection) -> None:
    (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {_SHORT_WAIT}")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")
