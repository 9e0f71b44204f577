"""Recurring jobs: stored with their queue, and fired by one of all who try."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from matador.model.job import JobSchedule
from matador.model.message import Message
from matador.transports.sqlite import jobs
from matador.transports.sqlite.session import SqliteQueue, WriterSession

_PUT = "INSERT OR REPLACE INTO schedules (queue, key, next_at, value) VALUES (?, ?, ?, ?)"
_LIST = "SELECT next_at, value FROM schedules WHERE queue = ?"
_REMOVE = "DELETE FROM schedules WHERE queue = ? AND key = ?"
_FIRE = "UPDATE schedules SET next_at = ? WHERE queue = ? AND key = ? AND next_at = ?"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobSchedule).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def put(session: WriterSession, queue: SqliteQueue, schedule: JobSchedule) -> None:
    """Store a schedule, instead of the one with its key if there is one."""
    row = (queue.id, schedule.key, schedule.next_at, _encode(schedule))
    session.connection.execute(_PUT, row)


def list_all(connection: sqlite3.Connection, queue: SqliteQueue, now: int) -> list[JobSchedule]:
    """All schedules that can be read, by the time when they are due next."""
    found: list[JobSchedule] = []
    for next_at, value in connection.execute(_LIST, (queue.id,)):
        try:
            schedule = _decode(value)
        except _UNREADABLE:
            continue  # another program wrote it; `remove` deletes it by its key
        found.append(msgspec.structs.replace(schedule, next_at=next_at))
    return sorted(found, key=lambda schedule: schedule.next_at)


def remove(session: WriterSession, queue: SqliteQueue, key: str) -> bool:
    """Forget a schedule; False if there is none with that key."""
    return session.connection.execute(_REMOVE, (queue.id, key)).rowcount > 0


def fire(
    session: WriterSession,
    queue: SqliteQueue,
    schedule: JobSchedule,
    next_at: float,
    messages: Sequence[Message],
) -> bool:
    """Add jobs and set when the next ones are due; False if somebody else has done it."""
    place = (next_at, queue.id, schedule.key, schedule.next_at)
    if not session.connection.execute(_FIRE, place).rowcount:
        return False
    jobs.add(session, messages)  # an id that is taken is left out
    return True
