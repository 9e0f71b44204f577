"""SQLite as a profile: looks into the file with its own SQL, hurts it with mounts and triggers."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from chaos.checker import Stored
from chaos.profiles import Unplayable, target_of

_REASON = "x-matador-dead-letter-reason"
_FINISHED = 3  # the state of a message that is kept for its retention only


class SqliteProfile:
    durable = True
    leases = True
    ordered = True
    atomic = True

    def __init__(self, folder: Path) -> None:
        self._disk = folder / "disk"
        self._disk.mkdir()
        self._file = self._disk / "queue.db"
        self._mounted = False

    def url(self, lease: float) -> str:
        return f"sqlite:///{self._file}?lease={lease:g}"

    def stored(self, queue: str) -> Sequence[Stored]:
        if not self._file.exists():
            return []
        with self._connected() as connection:
            rows = connection.execute(
                "SELECT messages.id, body, headers FROM messages JOIN queues "
                "ON queues.id = messages.queue WHERE queues.name = ? AND state <> ? ORDER BY seq",
                (queue, _FINISHED),
            ).fetchall()
        return [
            Stored(target_of(body), id_, queue, bytes(body), _reason(headers))
            for id_, body, headers in rows
        ]

    def depth(self, queue: str) -> int:
        if not self._file.exists():
            return 0
        with self._connected() as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM messages JOIN queues ON queues.id = messages.queue "
                "WHERE queues.name = ? AND state <> ?",
                (queue, _FINISHED),
            ).fetchone()
        return count

    def damage(self) -> str | None:
        with self._connected() as connection:
            found = [text for (text,) in connection.execute("PRAGMA integrity_check")]
        return None if found == ["ok"] else "; ".join(found)

    def close(self) -> None:
        if self._mounted:
            subprocess.run(["umount", str(self._disk)], check=True)
            self._mounted = False

    def limit_room(self, size: int) -> None:
        """See ``FillsUp``. A small disk in memory; mounting one takes root (or ``unshare -rm``)."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", str(self._disk)]
        mounting = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounting.returncode != 0:
            raise Unplayable(f"a small disk cannot be mounted: {mounting.stderr.strip()}")
        self._mounted = True

    def make_room(self, size: int) -> None:
        command = ["mount", "-o", f"remount,size={size}", str(self._disk)]
        subprocess.run(command, check=True)

    def drop_queue(self, queue: str) -> None:
        with self._connected() as connection:
            connection.execute("DELETE FROM queues WHERE name = ?", (queue,))

    def spoil_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``. A trigger, as below: a queue that is deleted is made again."""
        with self._connected() as connection:
            connection.execute(
                "CREATE TRIGGER refuse_messages BEFORE INSERT ON messages "
                f"WHEN (SELECT name FROM queues WHERE id = NEW.queue) = '{queue}' "
                "BEGIN SELECT RAISE(ABORT, 'messages are refused'); END"
            )

    def mend_queue(self, queue: str) -> None:
        with self._connected() as connection:
            connection.execute("DROP TRIGGER refuse_messages")

    def refuse_dead_letters(self) -> None:
        """See ``RefusesDeadLetters``. A trigger: the storage engine itself refuses."""
        with self._connected() as connection:
            connection.execute(
                "CREATE TRIGGER refuse_dead_letters BEFORE INSERT ON messages "
                "WHEN (SELECT dead_letters FROM queues WHERE id = NEW.queue) "
                "BEGIN SELECT RAISE(ABORT, 'dead letters are refused'); END"
            )

    def accept_dead_letters(self) -> None:
        with self._connected() as connection:
            connection.execute("DROP TRIGGER refuse_dead_letters")

    def job_queue(self, name: str) -> str:
        return name

    def completed_jobs(self, queue: str) -> set[str]:
        with self._connected() as connection:
            rows = connection.execute(
                "SELECT messages.id FROM messages JOIN queues ON queues.id = messages.queue "
                "WHERE queues.name = ? AND state = ?",
                (queue, _FINISHED),
            )
            return {id_ for (id_,) in rows}

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(self._file, timeout=30, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()


def _reason(headers: bytes | None) -> str | None:
    if headers is None:
        return None
    return str(msgspec.json.decode(headers, type=dict[str, str | int]).get(_REASON))
