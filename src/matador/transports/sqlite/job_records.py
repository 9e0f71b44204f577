"""Reads jobs without changing them: by id, by state, how many. Uses the reader's connection.

Nothing here raises because of what a row contains.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from matador.model import job as names
from matador.model.job import JobCounts, JobRecord, JobStatus
from matador.model.topology import dead_letter_name
from matador.transports.kit.jobs import record_of, whole
from matador.transports.sqlite import browse
from matador.transports.sqlite.database import (
    BLOCKED,
    DELAYED,
    DONE,
    IN_FLIGHT,
    PARKED,
    READY,
    waiting,
)
from matador.transports.sqlite.session import SqliteQueue
from matador.transports.sqlite.wire import read_headers

_COLUMNS = (
    "queue, id, headers, body, state, due, deliveries, priority, stored_at, processed_at, "
    "finished_at, progress, result"
)
_SELECT = f"SELECT {_COLUMNS} FROM messages WHERE queue = ?"
_PAGE = "LIMIT ? OFFSET ?"
_LETTERS = "SELECT id FROM queues WHERE name = ?"
_FIND = (
    f"SELECT {_COLUMNS} FROM messages WHERE queue IN (?, ?) "
    "AND id IN (SELECT value FROM json_each(?)) AND job IS NOT NULL"
)
_READY = f"{_SELECT} AND state = {READY} ORDER BY rank DESC, seq {_PAGE}"
_READY_COUNT = f"SELECT count(*) FROM messages WHERE queue = ? AND state = {READY}"
# Waiting, too: for others, for one of their key, or until somebody notices that a delay or a lease
# is over.
_NOT_YET_READY = " UNION ALL ".join(
    f"SELECT {_COLUMNS} FROM messages WHERE queue = ?1 AND {waiting(state)} AND {due}"
    for state, due in (
        (DELAYED, "due <= ?2"),
        (IN_FLIGHT, "due <= ?2"),
        (BLOCKED, "(due IS NULL OR due <= ?2)"),
        (PARKED, "(due IS NULL OR due <= ?2)"),
    )
)
_NOT_YET_READY_PAGE = f"{_NOT_YET_READY} LIMIT ?3 OFFSET ?4"
_LATER = f"{_SELECT} AND state IN ({DELAYED}, {BLOCKED}) AND state <> {READY} AND due > ?"
_ACTIVE = f"{_SELECT} AND {waiting(IN_FLIGHT)} AND due > ? ORDER BY due {_PAGE}"
_FINISHED = f"{_SELECT} AND finished_at IS NOT NULL ORDER BY finished_at DESC, seq DESC {_PAGE}"
_FINISHED_COUNT = (
    "SELECT count(*) FROM messages INDEXED BY finished WHERE queue = ? AND finished_at IS NOT NULL"
)
_COUNT = "SELECT count(*) FROM messages INDEXED BY by_queue WHERE queue = ?"
_STRANGE_LETTERS = (
    f"SELECT {_COLUMNS} FROM messages INDEXED BY by_queue WHERE queue = ? AND finished_at IS NULL "
    f"ORDER BY seq DESC {_PAGE}"
)
_COUNTERS = "SELECT all_completed, all_failed FROM queues WHERE id = ?"
_RESULTS = "SELECT child, result FROM job_children WHERE queue = ? AND parent = ? AND done"

_encode = msgspec.json.Encoder().encode


def find(
    connection: sqlite3.Connection, queue: SqliteQueue, ids: Sequence[str], now: int
) -> list[JobRecord | None]:
    """For each id, in order: the job, or None."""
    try:
        wanted = _encode(ids).decode()
    except (msgspec.MsgspecError, ValueError, TypeError):  # an id that nothing can have
        wanted = "[]"
    rows = connection.execute(_FIND, (queue.id, _letters(connection, queue), wanted)).fetchall()
    # If there are two with one id, the one that is not among the failed jobs.
    rows.sort(key=lambda row: row[0] == queue.id)
    found = {record.id: record for record in (_record(queue, row, now) for row in rows)}
    return [found.get(job_id) for job_id in ids]


def list_by_status(
    connection: sqlite3.Connection,
    queue: SqliteQueue,
    status: JobStatus,
    limit: int,
    skip: int,
    now: int,
) -> list[JobRecord]:
    """Jobs in one state, in the order of ``JobStoring.list_jobs``."""
    limit, skip = max(limit, 0), max(skip, 0)
    execute = connection.execute
    if status == "completed":
        rows = execute(_FINISHED, (queue.id, limit, skip)).fetchall()
    elif status == "failed":
        letters = _letters(connection, queue)
        rows = execute(_FINISHED, (letters, limit, skip)).fetchall()
        if len(rows) < limit:
            (before,) = execute(_FINISHED_COUNT, (letters,)).fetchone()
            page = (letters, limit - len(rows), max(0, skip - before))
            rows += execute(_STRANGE_LETTERS, page).fetchall()
    elif status == "active":
        rows = execute(_ACTIVE, (queue.id, now, limit, skip)).fetchall()
    elif status == "delayed":
        rows = execute(f"{_LATER} ORDER BY due {_PAGE}", (queue.id, now, limit, skip)).fetchall()
    else:
        rows = execute(_READY, (queue.id, limit, skip)).fetchall()
        if len(rows) < limit:
            (before,) = execute(_READY_COUNT, (queue.id,)).fetchone()
            page = (queue.id, now, limit - len(rows), max(0, skip - before))
            rows += execute(_NOT_YET_READY_PAGE, page).fetchall()
    return [_record(queue, row, now) for row in rows]


def count(connection: sqlite3.Connection, queue: SqliteQueue, now: int) -> JobCounts:
    """How many jobs are in which state."""
    depth = browse.depth(connection, queue, now)
    (completed,) = connection.execute(_FINISHED_COUNT, (queue.id,)).fetchone()
    (failed,) = connection.execute(_COUNT, (_letters(connection, queue),)).fetchone()
    all_completed, all_failed = connection.execute(_COUNTERS, (queue.id,)).fetchone()
    return JobCounts(
        waiting=depth.ready,
        delayed=depth.delayed,
        active=depth.in_flight,
        completed=completed,
        failed=failed,
        paused=queue.paused,
        all_completed=all_completed,
        all_failed=all_failed,
    )


def results(
    connection: sqlite3.Connection, queue: SqliteQueue, parent: str, now: int
) -> dict[str, bytes | None]:
    """What the jobs that this one has waited for returned, by their ids."""
    return dict(connection.execute(_RESULTS, (queue.id, parent)).fetchall())


def _letters(connection: sqlite3.Connection, queue: SqliteQueue) -> int:
    name = dead_letter_name(queue.name, "undeliverable")
    found = connection.execute(_LETTERS, (name,)).fetchone()
    return -1 if found is None else found[0]


def _record(queue: SqliteQueue, row: tuple[Any, ...], now: int) -> JobRecord:
    where, id_, stored, body, state, due, deliveries, priority, *rest = row
    stored_at, processed_at, finished_at, progress, result = rest
    headers, _ = read_headers(stored)
    count = deliveries
    status: JobStatus = "waiting"
    if where != queue.id:
        status, count = "failed", 0  # counted in its headers
    elif state == DONE:
        status, count = "completed", max(count, 1)
    elif due is not None and due > now:
        status = "active" if state == IN_FLIGHT else "delayed"
        count -= state == IN_FLIGHT
    record = record_of(
        id_,
        queue.name,
        headers,
        body,
        status,
        priority=priority,
        stored_at=stored_at / 1000,
        due_at=_seconds(due) if status == "delayed" else None,
        processed_at=_seconds(processed_at),
        finished_at=_seconds(finished_at),
        progress=progress,
        result=result,
    )
    if not count:
        return record
    # Attempts that nobody reported: the worker died. And the last one of a completed job.
    return msgspec.structs.replace(record, attempts=whole(headers, names.ATTEMPTS) + count)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
