"""Reads queues without changing them: browse, depth, read, split. Uses its own connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from matador.model.message import MessageState, QueueDepth, StoredMessage
from matador.transports.kit.errors import no_retention
from matador.transports.kit.properties import split_properties
from matador.transports.sqlite.database import (
    BLOCKED,
    DELAYED,
    DONE,
    IN_FLIGHT,
    PARKED,
    READY,
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
    """Whether nobody receives from the queue."""
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
