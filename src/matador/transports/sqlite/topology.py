"""The table of queues: what is read from it, and how a topology is written into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from matador.errors import QueueNotFoundError
from matador.model.topology import Topology
from matador.transports.kit.errors import queue_not_found

_UPSERT = """
INSERT INTO queues (name, dead_letters, priorities, max_length, ttl, retention)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET dead_letters = excluded.dead_letters,
    priorities = excluded.priorities, max_length = excluded.max_length,
    ttl = excluded.ttl, retention = excluded.retention
WHERE (dead_letters, priorities, max_length, ttl, retention) IS NOT
    (excluded.dead_letters, excluded.priorities, excluded.max_length, excluded.ttl,
     excluded.retention)
"""


_COLUMNS = "id, name, dead_letters, priorities, max_length, ttl, retention"
_PUT_BACK = f"INSERT INTO queues ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"


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


def declare(connection: sqlite3.Connection, topology: Topology) -> list[str]:
    """Make the queues of a topology, or update their settings; their names. Deletes nothing.

    Every queue is ours here, ``exact`` ones too: no other application shares the file.
    """
    rows: list[tuple[str, bool, bool, int | None, int | None, int | None]] = [
        (
            topology.full_name(queue.name),
            False,
            queue.priorities,
            None,
            None,
            _milliseconds(queue.retention),
        )
        for queue in topology.queues
    ]
    for _, kind, name in topology.dead_letter_names():
        settings = topology.dead_letters[kind]
        rows.append((name, True, False, settings.max_length, _milliseconds(settings.ttl), None))
    connection.executemany(_UPSERT, rows)
    return [name for name, *_ in rows]


def load_queues(connection: sqlite3.Connection) -> dict[str, SqliteQueue]:
    """All queues by name."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM queues")
    return {
        name: SqliteQueue(
            id_,
            name,
            bool(dead),
            bool(priorities),
            *(setting if type(setting) is int else None for setting in settings),
        )
        for id_, name, dead, priorities, *settings in rows
        if type(name) is str
    }


def put_back(connection: sqlite3.Connection, queue: SqliteQueue, *, same_id: bool) -> None:
    """Make a queue again that was deleted; with the ``same_id`` it has its messages again."""
    settings = (queue.max_length, queue.ttl, queue.retention)
    row = (queue.id if same_id else None, queue.name, queue.dead_letters, queue.priorities)
    connection.execute(_PUT_BACK, (*row, *settings))


def no_such_queue(name: str, known: Iterable[str], path: Path) -> QueueNotFoundError:
    """The error for a queue that is not there."""
    return queue_not_found(name, f"{path}; add it to the topology and apply it", known)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
