"""Checkpoints in a SQLite file: durable, and shared by all worker processes on a machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from matador.errors import CheckpointStoreError, UnstorableStepValueError
from matador.model.options import Seconds, seconds
from matador.transports.clock import Clock, SystemClock

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS matador_steps(
    envelope_id TEXT NOT NULL, step TEXT NOT NULL, value BLOB NOT NULL, expires REAL,
    PRIMARY KEY (envelope_id, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS matador_steps_expires ON matador_steps(expires)
    WHERE expires IS NOT NULL;
"""


class SqliteCheckpointStore:
    """Stores steps in a SQLite file; each step is on disk before ``io()`` returns.

    Use another file than that of the ``SqliteTransport``. Safe to use from several processes.

    Example:
        >>> store = SqliteCheckpointStore("checkpoints.db")
        >>> app = Matador("sqlite:///shop.db", schema=schema, checkpoints=store)
    """

    persistent = True

    def __init__(
        self, path: str | Path, *, busy_timeout: Seconds = 10.0, clock: Clock | None = None
    ) -> None:
        self._path = Path(path)
        self._busy_timeout = seconds(busy_timeout, "SqliteCheckpointStore: busy_timeout")
        self._clock = clock or SystemClock()
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SqliteCheckpointStore({str(self._path)!r})"

    async def open(self) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="matador-checkpoints")
            try:
                await self._run(self._connect)
            except BaseException:
                self._thread.shutdown(wait=False)
                self._thread = None
                raise

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
            thread.shutdown()

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        query = (
            "SELECT step, value FROM matador_steps"
            " WHERE envelope_id = ? AND (expires IS NULL OR expires > ?)"
        )
        return dict(await self._execute((query, envelope_id, self._clock.time())))

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        keep_again = (  # it is being handled again
            "UPDATE matador_steps SET expires = NULL WHERE envelope_id = ? AND expires IS NOT NULL"
        )
        insert = "INSERT OR REPLACE INTO matador_steps VALUES (?, ?, ?, NULL)"
        await self._execute((keep_again, envelope_id), (insert, envelope_id, step, value))

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """Also deletes expired steps."""
        now = self._clock.time()
        update = "UPDATE matador_steps SET expires = ? WHERE envelope_id = ?"
        await self._execute(
            ("DELETE FROM matador_steps WHERE expires <= ?", now), (update, now + ttl, envelope_id)
        )

    async def delete(self, envelope_id: str) -> None:
        await self._execute(("DELETE FROM matador_steps WHERE envelope_id = ?", envelope_id))

    async def _execute(self, *statements: tuple[Any, ...]) -> list[Any]:
        """Execute statements with their values, several in one transaction. Rows of the last."""

        def execute() -> list[Any]:
            connection = self._connection
            if connection is None:
                raise CheckpointStoreError(f"{self!r} is not open")
            with connection:  # commits, or rolls back
                if len(statements) > 1:
                    connection.execute("BEGIN IMMEDIATE")
                return [connection.execute(one[0], one[1:]).fetchall() for one in statements][-1]

        return await self._run(execute)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            raise CheckpointStoreError(f"{self!r} is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.DataError, UnicodeError, OverflowError) as error:
            raise UnstorableStepValueError(f"{self!r}: {error}") from error
        except sqlite3.Error as error:
            raise CheckpointStoreError(f"{self!r}: {error}") from error

    def _connect(self) -> None:
        # Imported here, so that `import matador` does not load the transport.
        from matador.transports.sqlite.database import (
            make_private_file,
            require_sqlite,
            retry_while_locked,
        )

        require_sqlite()
        make_private_file(self._path)
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )

        def prepare() -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(_SCHEMA)

        try:
            retry_while_locked(prepare, self._busy_timeout)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
