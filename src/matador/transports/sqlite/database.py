"""Opens the file: connection settings, schema, version."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from matador.errors import ConnectionFailedError, StorageCorruptError, UnsupportedError
from matador.transports.sqlite.errors import code_of

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]

APPLICATION_ID = 0x4D545244  # "MTRD", by which this transport and `file(1)` recognize a file
VERSION = 1
OLDEST_SQLITE = (3, 38, 0)  # STRICT tables, RETURNING, and JSON built in
_RETRY_DELAY = (0.0002, 0.0015)  # seconds

# States of a message. BLOCKED: an earlier message with its ordering key is unfinished, or a job
# waits for its children. PARKED: as many jobs with its key are running as may. Neither is READY, so
# that a claim never has to skip messages.
READY, DELAYED, IN_FLIGHT, DONE, BLOCKED, PARKED = range(6)
NEVER = 1 << 62
"""Later than any ``due`` that comes to pass."""
LATEST = 253_402_300_799_000
"""The last second of the year 9999 in milliseconds; no ``datetime`` can be later."""

# What a queue has to do with jobs: nothing, it has jobs, or it has the failed jobs of another one.
NO_JOBS, JOBS, FAILED_JOBS = range(3)

# A job is a message whose `job` is not NULL. Most are plain: kept for an hour when they complete,
# within the latest 10,000. Brief ones are deleted then. For special ones there is more to do, which
# their headers say.
PLAIN_JOB, SPECIAL_JOB, BRIEF_JOB = range(3)

# The constraints hold against every program that writes to the file, so that no code has to deal
# with a row that breaks one. What they cannot say is checked when a row is read: whether headers
# are JSON, and whether text is UTF-8. Ordering keys and limit keys are BLOBs, which are compared
# byte by byte whatever they contain.
#
# `due` is when a DELAYED message becomes ready, the lease of one IN_FLIGHT ends, or a DONE one is
# deleted (milliseconds of the database clock). `rank` is the effective priority: NULL on queues
# without priorities. `token` identifies the claim that holds the message.
#
# `finished_at` is set in completed jobs (DONE) and in failed ones (READY, among the dead letters),
# and `expires_at` if they are kept for some time only. `job_children` has what a parent waits for,
# and the results. `limit_key` is the key whose jobs run a few at a time, and `job_rates` counts the
# jobs of the present window of a rate limit. Partial indexes: messages that are not jobs are in
# none of those for jobs.
#
# A temporary queue is deleted when no process has used it for `expires` milliseconds. `once_ids`
# has the ids of messages that were sent "once", until their part of the scope is sealed. `routes`
# counts the changes of exchanges and bindings.
_TABLES = (
    f"""CREATE TABLE meta (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        boot_id TEXT,
        clock_offset REAL NOT NULL DEFAULT 0 CHECK (abs(clock_offset) <= {LATEST}),
        last_time INTEGER NOT NULL DEFAULT 0 CHECK (last_time >= 0),
        routes INTEGER NOT NULL DEFAULT 0
    ) STRICT""",
    """CREATE TABLE queues (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        dead_letters INTEGER NOT NULL CHECK (dead_letters IN (0, 1)),
        priorities INTEGER NOT NULL CHECK (priorities IN (0, 1)),
        max_length INTEGER CHECK (max_length >= 0),
        ttl INTEGER CHECK (ttl >= 0),
        retention INTEGER CHECK (retention >= 0),
        jobs INTEGER NOT NULL DEFAULT 0 CHECK (jobs BETWEEN 0 AND 2),
        paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
        all_completed INTEGER NOT NULL DEFAULT 0 CHECK (all_completed >= 0),
        all_failed INTEGER NOT NULL DEFAULT 0 CHECK (all_failed >= 0)
    ) STRICT""",
    f"""CREATE TABLE messages (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        queue INTEGER NOT NULL,
        state INTEGER NOT NULL,
        due INTEGER CHECK (due >= 0),
        token INTEGER,
        deliveries INTEGER NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
        priority INTEGER,
        rank INTEGER,
        stored_at INTEGER NOT NULL CHECK (stored_at >= 0),
        ordering_key BLOB,
        id TEXT NOT NULL,
        headers BLOB,
        body BLOB NOT NULL,
        job INTEGER CHECK (job BETWEEN 0 AND 2),
        processed_at INTEGER,
        finished_at INTEGER,
        expires_at INTEGER,
        progress BLOB,
        result BLOB,
        limit_key BLOB,
        CONSTRAINT state CHECK (CASE state
            WHEN {READY} THEN due IS NULL AND token IS NULL
            WHEN {DELAYED} THEN due IS NOT NULL AND token IS NULL
            WHEN {IN_FLIGHT} THEN due IS NOT NULL AND token IS NOT NULL AND deliveries > 0
            WHEN {DONE} THEN token IS NULL AND (due IS NOT NULL OR finished_at IS NOT NULL)
            WHEN {BLOCKED} THEN token IS NULL AND (ordering_key IS NOT NULL OR job IS NOT NULL)
            WHEN {PARKED} THEN due IS NULL AND token IS NULL AND limit_key IS NOT NULL
            ELSE FALSE END)
    ) STRICT""",
    "CREATE INDEX by_queue ON messages (queue)",
    f"CREATE INDEX ready ON messages (queue, rank DESC, seq) WHERE state = {READY}",
    f"CREATE INDEX waiting ON messages (queue, state, due) WHERE state <> {READY}",
    f"""CREATE INDEX keyed ON messages (queue, ordering_key, seq)
        WHERE ordering_key IS NOT NULL AND state <> {DONE}""",
    "CREATE INDEX job_ids ON messages (queue, id) WHERE job IS NOT NULL",
    "CREATE INDEX finished ON messages (queue, finished_at) WHERE finished_at IS NOT NULL",
    "CREATE INDEX expiring ON messages (expires_at) WHERE expires_at IS NOT NULL",
    """CREATE INDEX limited ON messages (queue, state, limit_key, rank DESC, seq)
        WHERE limit_key IS NOT NULL""",
    # Messages belong to the number of their queue, which a new queue of that name would not have.
    """CREATE TRIGGER queue_is_empty BEFORE DELETE ON queues
        WHEN OLD.jobs <> 0 OR EXISTS (SELECT 1 FROM messages WHERE queue = OLD.id)
        BEGIN SELECT RAISE(ABORT, 'the queue is not empty, or has jobs'); END""",
    """CREATE TABLE job_rates (
        queue INTEGER PRIMARY KEY, started INTEGER NOT NULL,
        taken INTEGER NOT NULL CHECK (taken >= 0)
    ) STRICT""",
    """CREATE TABLE job_keys (
        queue INTEGER NOT NULL, key TEXT NOT NULL, id TEXT NOT NULL, until INTEGER,
        PRIMARY KEY (queue, key)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX ending_keys ON job_keys (until) WHERE until IS NOT NULL",
    """CREATE TABLE job_children (
        queue INTEGER NOT NULL, parent TEXT NOT NULL, child TEXT NOT NULL,
        done INTEGER NOT NULL DEFAULT 0 CHECK (done IN (0, 1)), result BLOB,
        PRIMARY KEY (queue, parent, child)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE schedules (
        queue INTEGER NOT NULL, key TEXT NOT NULL, next_at REAL NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (queue, key)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE exchanges (
        name TEXT PRIMARY KEY NOT NULL,
        type TEXT NOT NULL CHECK (type IN ('topic', 'direct', 'fanout'))
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE bindings (
        queue TEXT NOT NULL, exchange TEXT NOT NULL, pattern TEXT NOT NULL,
        PRIMARY KEY (queue, exchange, pattern)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE temporary_queues (
        name TEXT PRIMARY KEY NOT NULL, expires INTEGER NOT NULL CHECK (expires > 0),
        used_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE once_scopes (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, sealed INTEGER NOT NULL DEFAULT -1
    ) STRICT""",
    """CREATE TABLE once_ids (
        scope INTEGER NOT NULL, batch INTEGER NOT NULL, id TEXT NOT NULL,
        PRIMARY KEY (scope, batch, id)
    ) STRICT, WITHOUT ROWID""",
    "INSERT INTO meta (id) VALUES (1)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)


def waiting(state: int) -> str:
    """The condition for a state other than READY. SQLite uses a partial index only if the
    condition of the index is repeated word for word."""
    return f"state = {state} AND state <> {READY}"


def open_for_writing(
    path: Path, *, synchronous: Synchronous, busy_timeout: float
) -> sqlite3.Connection:
    """The connection of the one writer; creates the file and its tables if necessary.

    Raises:
        StorageCorruptError: the file belongs to another application.
        ConnectionFailedError: its schema has another version.
        sqlite3.Error: any error of SQLite.
    """
    require_sqlite()
    make_private_file(path)
    connection = _open(path, busy_timeout)
    try:
        retry_while_locked(
            lambda: _prepare(connection, path, synchronous, busy_timeout), busy_timeout
        )
    except BaseException:
        connection.close()
        raise
    return connection


def require_sqlite() -> None:
    """Check the version of the SQLite library.

    Raises:
        UnsupportedError: the library is too old.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise UnsupportedError(
            f"SQLite {sqlite3.sqlite_version} is too old: at least "
            f"{'.'.join(map(str, OLDEST_SQLITE))} is needed; use a newer Python or operating system"
        )


def open_for_reading(path: Path, *, busy_timeout: float) -> sqlite3.Connection:
    """A connection that cannot change anything, for one thread at a time."""
    connection = _open(path, busy_timeout)
    connection.execute("PRAGMA query_only = ON")
    return connection


def log_size(path: Path) -> int:
    """The size of the write-ahead log in bytes, 0 if there is none."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except OSError:
        return 0


def make_private_file(path: Path) -> None:
    """Create an empty file that only its owner can read, if there is none; SQLite creates its log
    and its shared memory with the same mode.

    The file is not opened: closing it would drop every lock that this process has on it, if another
    thread has already opened the new file.
    """
    # If the path is wrong, opening the file fails and says why.
    with contextlib.suppress(OSError):
        os.mknod(path.resolve(), stat.S_IFREG | 0o600)


def _open(path: Path, busy_timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    connection.text_factory = _text
    return connection


def _text(stored: bytes) -> str:
    """Text as far as it is UTF-8. By default, text that is not would fail the whole query."""
    return stored.decode("utf-8", "replace")


def _prepare(
    connection: sqlite3.Connection, path: Path, synchronous: Synchronous, busy_timeout: float
) -> None:
    if not _has_tables(connection, path):
        # Has no effect after the first table is created.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # Needs exclusive access to a new file and does not wait: another process may be opening it.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # Debian turns this on: it overwrites every deleted message with zeros.
    connection.execute("PRAGMA secure_delete = OFF")
    # The rollback data of a large batch must not go through a temporary file.
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    # Fewer, larger checkpoints: a page that is filled and emptied in between is written once.
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA cache_size = -16000")
    # From here on, `lock` waits instead of SQLite.
    connection.execute("PRAGMA busy_timeout = 0")
    if not _has_tables(connection, path):
        lock(connection, busy_timeout)
        try:
            # Again, under the lock: another process may have done it meanwhile.
            if not _has_tables(connection, path):
                for statement in _TABLES:
                    connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def lock(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Start a transaction that may write. Waits, and raises, as ``retry_while_locked`` does."""
    retry_while_locked(lambda: connection.execute("BEGIN IMMEDIATE"), busy_timeout)


def retry_while_locked(work: Callable[[], object], busy_timeout: float) -> None:
    """Repeat ``work`` while another process holds a lock.

    SQLite itself waits up to 100 ms between two tries, so that a process among busy ones would
    starve for seconds. It does not wait at all while another process switches a new file to a
    write-ahead log, or recovers the log of an old one.

    Raises:
        sqlite3.OperationalError: still locked after ``busy_timeout`` seconds, or anything else.
    """
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            work()
            return
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(*_RETRY_DELAY))


def _has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has our tables; False if it is empty.

    Raises:
        StorageCorruptError: the file belongs to another application.
        ConnectionFailedError: its schema has another version.
    """
    # In one statement: another process may be creating the tables now.
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if tables == 0 and application == 0:
        return False
    if application != APPLICATION_ID:
        raise StorageCorruptError(f"{path} is a database of another application; use another file")
    if version != VERSION:
        raise ConnectionFailedError(
            f"{path} has schema version {version}, and this release reads version {VERSION} only; "
            f"use the release of matador-events that created it, or another file"
        )
    return True
