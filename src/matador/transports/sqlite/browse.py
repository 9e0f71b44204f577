"""Reads queues and jobs without changing them, on a connection of its own.

Nothing here raises because of what a row contains.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from matador.model import job as names
from matador.model.job import JobCounts, JobRecord, JobStatus
from matador.model.message import MessageState, QueueDepth, StoredMessage
from matador.model.topology import dead_letter_name
from matador.transports.kit.errors import no_retention
from matador.transports.kit.jobs import record_of, whole
from matador.transports.kit.properties import split_properties
from matador.transports.sqlite.database import (
    BLOCKED,
    DELAYED,
    DONE,
    IN_FLIGHT,
    PARKED,
    READY,
    waiting,
)
from matador.transports.sqlite.routes import FileRoutes
from matador.transports.sqlite.session import SqliteQueue
from matador.transports.sqlite.wire import read_headers, read_time

_PAGE_ROWS = 500
_PAGE_BYTES = 4 << 20  # a page ends here too, so that large bodies do not fill memory

_ROWS = (
    "SELECT seq, id, body, headers, state, stored_at, due, deliveries, priority, ordering_key "
    "FROM messages INDEXED BY by_queue WHERE queue = ? AND seq > ? "
)
_BROWSE = (
    f"{_ROWS} AND state <> {DONE} AND NOT (state = {READY} AND stored_at <= ?) ORDER BY seq LIMIT ?"
)
_READ = f"{_ROWS} AND NOT (state = {DONE} AND due <= ?) ORDER BY seq LIMIT ?"
_IN_SPAN = "FROM messages INDEXED BY by_queue WHERE queue = ? AND seq > ? AND seq <= ?"
_SPAN = f"SELECT count(*), max(seq) {_IN_SPAN}"
_EVERY = (
    f"SELECT seq FROM (SELECT seq, row_number() OVER (ORDER BY seq) AS number {_IN_SPAN}) "
    "WHERE number % ? = 0"
)
_LAST_ROW = 2**63 - 1
_ALWAYS = -1  # nothing was stored before this time


def find(connection: sqlite3.Connection, queue: SqliteQueue, now: int) -> tuple[SqliteQueue, bool]:
    """The queue itself, and whether it is temporary."""
    return queue, FileRoutes(connection).expiry_of(queue.name) is not None


def browse_page(
    connection: sqlite3.Connection, queue: SqliteQueue, after: int, limit: int | None, now: int
) -> list[StoredMessage]:
    """The next few unfinished messages after a row; none if that was all."""
    rows = _PAGE_ROWS if limit is None else min(limit, _PAGE_ROWS)
    cursor = connection.execute(_BROWSE, (queue.id, after, _oldest(queue, now), rows))
    page: list[StoredMessage] = []
    size = 0
    for row in cursor:
        stored = _stored(queue, row, now)
        page.append(stored)
        size += len(stored.body)
        if size > _PAGE_BYTES:
            break
    cursor.close()
    return page


def read(
    connection: sqlite3.Connection, queue: SqliteQueue, after: int, limit: int, now: int
) -> Sequence[StoredMessage]:
    """Up to ``limit`` messages after a row, retained ones included.

    Raises:
        UnsupportedError: the queue has no retention.
    """
    if queue.retention is None:
        raise no_retention(queue.name)
    rows: Iterable[tuple[Any, ...]] = connection.execute(_READ, (queue.id, after, now, limit))
    return [_stored(queue, row, now) for row in rows]


def split(
    connection: sqlite3.Connection,
    queue: SqliteQueue,
    parts: int,
    after: int,
    until: int | None,
    now: int,
) -> list[int]:
    """The last rows of parts of about the same length, after one row and up to another.

    All rows count, even those that are no longer visible: the parts need not be exact.
    """
    scope = (queue.id, after, _LAST_ROW if until is None else until)
    count, end = connection.execute(_SPAN, scope).fetchone()
    if not count:
        return []
    size = -(-count // max(parts, 1))
    ends = sorted(row for (row,) in connection.execute(_EVERY, (*scope, size)))
    return ends if ends and ends[-1] == end else [*ends, end]


def is_paused(_: sqlite3.Connection, queue: SqliteQueue, __: int) -> bool:
    """Whether the queue is paused."""
    return queue.paused


_COUNT = (
    f"SELECT queue, {READY} AS state, 0, count(*) FROM messages "
    f"WHERE state = {READY} AND queue IN (SELECT value FROM json_each(?1)) GROUP BY queue "
    "UNION ALL "
    "SELECT queue, state, coalesce(sum(due > ?2), 0), count(*) FROM messages "
    f"WHERE state <> {READY} AND queue IN (SELECT value FROM json_each(?1)) "
    f"AND state IN ({DELAYED}, {IN_FLIGHT}, {BLOCKED}, {PARKED}) GROUP BY queue, state"
)
_COUNT_EXPIRED = (
    "SELECT json_extract(value, '$[0]'), (SELECT count(*) FROM messages "
    f"WHERE queue = json_extract(value, '$[0]') AND state = {READY} "
    "AND stored_at <= json_extract(value, '$[1]')) FROM json_each(?)"
)


def depth(connection: sqlite3.Connection, queue: SqliteQueue, now: int) -> QueueDepth:
    """How many messages are in which state at this time."""
    return depths(connection, [queue], now)[queue.id]


def depths(
    connection: sqlite3.Connection, queues: Sequence[SqliteQueue], now: int
) -> dict[int, QueueDepth]:
    """The depths of queues by their ids: two statements, however many queues there are."""
    counts = {queue.id: [0, 0, 0] for queue in queues}
    ids = json.dumps(list(counts))
    for id_, state, later, number in connection.execute(_COUNT, (ids, now)):
        counts[id_][0] += number - later
        counts[id_][2 if state == IN_FLIGHT else 1] += later
    limited = [
        (one.id, _oldest(one, now)) for one in queues if one.ttl is not None and counts[one.id][0]
    ]
    for id_, expired in connection.execute(_COUNT_EXPIRED, (json.dumps(limited),)):
        counts[id_][0] -= expired
    return {
        id_: QueueDepth(ready=ready, delayed=delayed, in_flight=in_flight)
        for id_, (ready, delayed, in_flight) in counts.items()
    }


def _oldest(queue: SqliteQueue, now: int) -> int:
    return _ALWAYS if queue.ttl is None else now - queue.ttl


def _stored(queue: SqliteQueue, row: tuple[Any, ...], now: int) -> StoredMessage:
    seq, id_, body, headers, number, stored_at, due, deliveries, priority, ordering_key = row
    state: MessageState = "ready"
    due_at = None
    if number == DONE:
        state = "done"
    elif number == IN_FLIGHT and due > now:
        state = "in-flight"
    elif due is not None and due > now:
        state, due_at = "delayed", read_time(due)
    sent, properties, _ = split_properties(read_headers(headers)[0])
    return StoredMessage(
        position=str(seq),
        id=id_,
        queue=queue.name,
        body=body,
        headers=sent,
        state=state,
        stored_at=read_time(stored_at),
        due_at=due_at,
        delivery_count=deliveries,
        priority=priority,
        ordering_key=None if ordering_key is None else ordering_key.decode(errors="replace"),
        properties=properties,
    )


# -- jobs ------------------------------------------------------------------------------------------

_JOB_COLUMNS = (
    "queue, id, headers, body, state, due, deliveries, priority, stored_at, processed_at, "
    "finished_at, progress, result"
)
_JOBS = f"SELECT {_JOB_COLUMNS} FROM messages WHERE queue = ?"
_JOB_PAGE = "LIMIT ? OFFSET ?"
_QUEUE_ID = "SELECT id FROM queues WHERE name = ?"
_FIND_JOBS = (
    f"SELECT {_JOB_COLUMNS} FROM messages WHERE queue IN (?, ?) "
    "AND id IN (SELECT value FROM json_each(?)) AND job IS NOT NULL"
)
_READY_JOBS = f"{_JOBS} AND state = {READY} ORDER BY rank DESC, seq {_JOB_PAGE}"
_READY_JOB_COUNT = f"SELECT count(*) FROM messages WHERE queue = ? AND state = {READY}"
# Waiting, too: for other jobs, or for the next claim to notice that a delay or a lease has ended.
_NOT_YET_READY = " UNION ALL ".join(
    f"SELECT {_JOB_COLUMNS} FROM messages WHERE queue = ?1 AND {waiting(state)} AND {due}"
    for state, due in (
        (DELAYED, "due <= ?2"),
        (IN_FLIGHT, "due <= ?2"),
        (BLOCKED, "(due IS NULL OR due <= ?2)"),
        (PARKED, "(due IS NULL OR due <= ?2)"),
    )
)
_NOT_YET_READY_PAGE = f"{_NOT_YET_READY} LIMIT ?3 OFFSET ?4"
_DELAYED_JOBS = (
    f"{_JOBS} AND state IN ({DELAYED}, {BLOCKED}) AND state <> {READY} AND due > ? "
    f"ORDER BY due {_JOB_PAGE}"
)
_ACTIVE_JOBS = f"{_JOBS} AND {waiting(IN_FLIGHT)} AND due > ? ORDER BY due {_JOB_PAGE}"
_FINISHED_JOBS = (
    f"{_JOBS} AND finished_at IS NOT NULL ORDER BY finished_at DESC, seq DESC {_JOB_PAGE}"
)
_FINISHED_JOB_COUNT = (
    "SELECT count(*) FROM messages INDEXED BY finished WHERE queue = ? AND finished_at IS NOT NULL"
)
_LETTER_COUNT = "SELECT count(*) FROM messages INDEXED BY by_queue WHERE queue = ?"
_OTHER_LETTERS = (  # another program put them there
    f"SELECT {_JOB_COLUMNS} FROM messages INDEXED BY by_queue WHERE queue = ? "
    f"AND finished_at IS NULL ORDER BY seq DESC {_JOB_PAGE}"
)
_COUNTERS = "SELECT all_completed, all_failed FROM queues WHERE id = ?"
_RESULTS = "SELECT child, result FROM job_children WHERE queue = ? AND parent = ? AND done"

_encode = msgspec.json.Encoder().encode


def find_jobs(
    connection: sqlite3.Connection, queue: SqliteQueue, ids: Sequence[str], now: int
) -> list[JobRecord | None]:
    """For each id, in order: the job, or None."""
    try:
        wanted = _encode(ids).decode()
    except (msgspec.MsgspecError, ValueError, TypeError):  # no job can have such an id
        wanted = "[]"
    queues = (queue.id, _letters(connection, queue))
    rows = connection.execute(_FIND_JOBS, (*queues, wanted)).fetchall()
    # If there are two with one id, the one that is not among the failed jobs.
    rows.sort(key=lambda row: row[0] == queue.id)
    found = {record.id: record for record in (_record(queue, row, now) for row in rows)}
    return [found.get(job_id) for job_id in ids]


def list_jobs(
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
        rows = execute(_FINISHED_JOBS, (queue.id, limit, skip)).fetchall()
    elif status == "failed":
        letters = _letters(connection, queue)
        rows = execute(_FINISHED_JOBS, (letters, limit, skip)).fetchall()
        if len(rows) < limit:
            (before,) = execute(_FINISHED_JOB_COUNT, (letters,)).fetchone()
            page = (letters, limit - len(rows), max(0, skip - before))
            rows += execute(_OTHER_LETTERS, page).fetchall()
    elif status == "active":
        rows = execute(_ACTIVE_JOBS, (queue.id, now, limit, skip)).fetchall()
    elif status == "delayed":
        rows = execute(_DELAYED_JOBS, (queue.id, now, limit, skip)).fetchall()
    else:
        rows = execute(_READY_JOBS, (queue.id, limit, skip)).fetchall()
        if len(rows) < limit:
            (before,) = execute(_READY_JOB_COUNT, (queue.id,)).fetchone()
            page = (queue.id, now, limit - len(rows), max(0, skip - before))
            rows += execute(_NOT_YET_READY_PAGE, page).fetchall()
    return [_record(queue, row, now) for row in rows]


def count_jobs(connection: sqlite3.Connection, queue: SqliteQueue, now: int) -> JobCounts:
    """How many jobs are in which state."""
    unfinished = depth(connection, queue, now)
    (completed,) = connection.execute(_FINISHED_JOB_COUNT, (queue.id,)).fetchone()
    (failed,) = connection.execute(_LETTER_COUNT, (_letters(connection, queue),)).fetchone()
    all_completed, all_failed = connection.execute(_COUNTERS, (queue.id,)).fetchone()
    return JobCounts(
        waiting=unfinished.ready,
        delayed=unfinished.delayed,
        active=unfinished.in_flight,
        completed=completed,
        failed=failed,
        paused=queue.paused,
        all_completed=all_completed,
        all_failed=all_failed,
    )


def child_results(
    connection: sqlite3.Connection, queue: SqliteQueue, parent: str, now: int
) -> dict[str, bytes | None]:
    """What the jobs that this one has waited for returned, by their ids."""
    return dict(connection.execute(_RESULTS, (queue.id, parent)).fetchall())


def _letters(connection: sqlite3.Connection, queue: SqliteQueue) -> int:
    name = dead_letter_name(queue.name, "undeliverable")
    found = connection.execute(_QUEUE_ID, (name,)).fetchone()
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
    # Count attempts without a report, because the worker died, and the last one of a completed job.
    return msgspec.structs.replace(record, attempts=whole(headers, names.ATTEMPTS) + count)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
