"""Opens the file: connection settings, schema, version. Knows nothing of what is stored in it."""

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

APPLICATION_ID = 0x4D545244  # "MTRD"; `file(1)` and we recognise our files by it
VERSION = 1
_BETWEEN_TRIES = (0.0002, 0.0015)  # seconds
OLDEST_SQLITE = (3, 38, 0)  # RETURNING and JSON built in

# States of a message. BLOCKED: an earlier message with its ordering key is not finished yet; kept
# apart from READY so that a claim never has to step over messages it may not take.
READY, DELAYED, IN_FLIGHT, DONE, BLOCKED = range(5)
NEVER = 1 << 62
"""Later than any ``due``."""

# `due` is when a DELAYED one becomes ready, the lease of an IN_FLIGHT one passes, or a DONE one is
# forgotten (milliseconds of the database clock). `rank` is the priority that counts: NULL on
# queues without priorities. `token` names the claim that holds the message.
_SCHEMA = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE queues (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    dead_letters INTEGER NOT NULL,
    priorities INTEGER NOT NULL,
    max_length INTEGER,
    ttl INTEGER,
    retention INTEGER
);
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    due INTEGER,
    token INTEGER,
    deliveries INTEGER NOT NULL DEFAULT 0,
    priority INTEGER,
    rank INTEGER,
    stored_at INTEGER NOT NULL,
    ordering_key TEXT,
    id TEXT NOT NULL,
    headers BLOB,
    body BLOB NOT NULL
);
CREATE INDEX by_queue ON messages (queue);
CREATE INDEX ready ON messages (queue, rank DESC, seq) WHERE state = {READY};
CREATE INDEX waiting ON messages (queue, state, due) WHERE state <> {READY};
CREATE INDEX keyed ON messages (queue, ordering_key, seq)
    WHERE ordering_key IS NOT NULL AND state <> {DONE};
"""


def waiting(state: int) -> str:
    """The condition on messages in a state other than READY, so that SQLite uses their index.

    It takes a partial index only if its own condition is repeated word for word.
    """
    return f"state = {state} AND state <> {READY}"


def open_for_writing(
    path: Path, *, synchronous: Synchronous, busy_timeout: float
) -> sqlite3.Connection:
    """The connection of the one writer; makes the file and its tables if they are not there.

    Raises:
        StorageCorruptError: the file belongs to another application.
        ConnectionFailedError: it was made by a newer version of this package.
        sqlite3.Error: whatever SQLite says.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise UnsupportedError(
            f"SQLite {sqlite3.sqlite_version} is too old: this transport needs at least "
            f"{'.'.join(map(str, OLDEST_SQLITE))}; use a newer Python or operating system"
        )
    make_private_file(path)
    connection = _open(path, busy_timeout)
    try:
        patiently(lambda: _prepare(connection, path, synchronous, busy_timeout), busy_timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path, *, busy_timeout: float) -> sqlite3.Connection:
    """A connection that cannot change anything, for any one thread at a time."""
    connection = _open(path, busy_timeout)
    connection.execute("PRAGMA query_only = ON")
    return connection


def make_private_file(path: Path) -> None:
    """Make an empty file that its owner alone can read, if there is none; SQLite makes its log
    and its shared memory with the same mode.

    It is not opened: closing it would drop every lock that this process has on it, if another
    thread was quick to open the new file.
    """
    # What is wrong with the path is found, and said, by whoever opens it.
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


def _text(stored: bytes) -> str | bytes:
    """Text as it is; what is no UTF-8 comes out as bytes instead of failing the whole query."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _prepare(
    connection: sqlite3.Connection, path: Path, synchronous: Synchronous, busy_timeout: float
) -> None:
    if _check_owner(connection, path) == 0:
        # Before the first table is made, or it has no effect.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # Needs a new file for itself, and does not wait for it: others may be opening it, too.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # Debian turns this on: it would overwrite every deleted message with zeros.
    connection.execute("PRAGMA secure_delete = OFF")
    # What a large batch would need to be undone must not go through a temporary file.
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    # Fewer, larger checkpoints: a page that was filled and emptied meanwhile is written once.
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA cache_size = -16000")
    # From here on `lock` does the waiting.
    connection.execute("PRAGMA busy_timeout = 0")
    if _check_owner(connection, path) == 0:
        lock(connection, busy_timeout)
        try:
            _create(connection, path)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _create(connection: sqlite3.Connection, path: Path) -> None:
    # Again, under the lock: another process may have made the tables meanwhile.
    if _check_owner(connection, path) == 0:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def lock(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Start a transaction that may write, once no other process is in one.

    Raises:
        sqlite3.OperationalError: still locked after ``busy_timeout`` seconds, or anything else.
    """
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"), busy_timeout)


def patiently(work: Callable[[], object], busy_timeout: float) -> None:
    """Do something again for as long as another process is in the way.

    SQLite itself would wait longer and longer between its tries, up to 100 ms, and a process among
    busy ones would starve for seconds. And it does not wait at all while others switch a new file
    to a write-ahead log, or recover the log of an old one.

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
            time.sleep(random.uniform(*_BETWEEN_TRIES))


def _check_owner(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the schema in the file, 0 if the file is empty."""
    # In one statement: another process may be making the tables just now.
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if tables == 0 and application == 0:
        return 0
    if application != APPLICATION_ID:
        raise StorageCorruptError(f"{path} is a database of another application; use another file")
    if version > VERSION:
        raise ConnectionFailedError(
            f"{path} has schema version {version}, this release knows {VERSION}; "
            f"upgrade matador-events, or use another file"
        )
    return version
