"""Writes a topology into the table of queues."""

from __future__ import annotations

from matador.model.topology import Topology
from matador.transports.sqlite.session import Session

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


def declare(session: Session, topology: Topology) -> None:
    """Make the queues of a topology, or bring their settings up to date. Deletes nothing.

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
    session.connection.executemany(_UPSERT, rows)
    session.reload()
    session.declared.update(name for name, *_ in rows)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
