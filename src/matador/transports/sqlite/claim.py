"""Claims messages, takes them by position, renews leases, and makes ready what is due."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from matador.model import job as names
from matador.model.job_limits import NO_LIMITS, JobLimits
from matador.model.message import Delivery, Receipt
from matador.transports.sqlite import limits as limiting
from matador.transports.sqlite.database import (
    BLOCKED,
    DELAYED,
    DONE,
    IN_FLIGHT,
    NEVER,
    PARKED,
    READY,
    waiting,
)
from matador.transports.sqlite.session import SqliteQueue, WriterSession
from matador.transports.sqlite.sweep import sweep_expired
from matador.transports.sqlite.wire import read_delivery

_PROMOTED_AT_ONCE = 5000

GONE = "its lease ended and another receiver has it"
"""Why a delivery cannot be settled."""

EARLIER = (
    "ordering_key IS NOT NULL AND EXISTS (SELECT 1 FROM messages AS other "
    "WHERE other.queue = messages.queue AND other.ordering_key = messages.ordering_key "
    f"AND other.ordering_key IS NOT NULL AND other.state <> {DONE} AND other.seq < messages.seq)"
)
"""Is there an earlier unfinished message with the same key?"""

# The states are literals: with a parameter, SQLite would prepare the statement each time, to see
# whether it can use the partial index.
_PROMOTE = tuple(
    f"UPDATE messages SET state = CASE WHEN {EARLIER} THEN {BLOCKED} ELSE {READY} END, "
    f"token = NULL, due = NULL WHERE seq IN (SELECT seq FROM messages WHERE queue = ? "
    f"AND {waiting(state)} AND due <= ? ORDER BY due LIMIT {_PROMOTED_AT_ONCE})"
    for state in (DELAYED, IN_FLIGHT)
)
_WAITS_FROM_NOW = (
    f"UPDATE messages SET stored_at = due WHERE queue = ? AND {waiting(DELAYED)} AND due <= ?"
)
_NEXT_DUE = ", ".join(
    f"ifnull((SELECT min(due) FROM messages WHERE queue = ?1 AND {waiting(state)}), {NEVER})"
    for state in (DELAYED, IN_FLIGHT)
)
NEXT_DUE = f"SELECT min({_NEXT_DUE})"
"""When the next message of a queue is due or its lease ends; ``NEVER``: there is none."""

_COUNTED = "min(deliveries, 1000000000) + 1"  # never more than a row can hold
# Two statements: RETURNING would copy every body once more.
_NEXT = (
    f"SELECT seq, {_COUNTED}, priority, id, ordering_key, headers, body FROM messages "
    f"WHERE queue = ? AND state = {READY} ORDER BY rank DESC, seq LIMIT ?"
)
_HOLD_JOBS = (
    f"UPDATE messages SET state = {IN_FLIGHT}, token = ?, due = ?, deliveries = {_COUNTED}, "
    "processed_at = ? WHERE seq IN (SELECT value FROM json_each(?))"
)
_HOLD = (
    f"UPDATE messages SET state = {IN_FLIGHT}, token = ?, due = ?, deliveries = {_COUNTED} "
    "WHERE seq IN (SELECT value FROM json_each(?))"
)
_TAKE = (
    f"UPDATE messages SET state = {IN_FLIGHT}, token = ?, due = ?, deliveries = {_COUNTED} "
    "WHERE seq IN (SELECT value FROM json_each(?)) AND queue = ? "
    f"AND state IN ({READY}, {DELAYED}, {BLOCKED}, {PARKED}) "
    "RETURNING seq, deliveries, priority, id, ordering_key, headers, body"
)
_RENEW = "UPDATE messages SET due = ? WHERE seq IN (SELECT value FROM json_each(?))"
_DISCARD = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_HELD = (
    "SELECT json_group_array(json_array(seq, token)) FROM messages "
    "WHERE seq IN (SELECT value FROM json_each(?)) AND token IS NOT NULL"
)

_decode_pairs = msgspec.json.Decoder(list[tuple[int, int]]).decode
_encode_list = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Claim:
    """The deliveries of a queue, and until when they are held.

    Without deliveries, ``next_due`` is when the next message is due; ``NEVER``: there is none.
    ``not_before`` is when a rate limit lets the next one through, and ``limited`` says that there
    are jobs which limits hold back.
    """

    queue: SqliteQueue
    deliveries: list[Delivery]
    held_until: int
    next_due: int = NEVER
    not_before: int = 0
    limited: bool = False


def seq_list(numbers: Sequence[int]) -> str:
    """Row numbers as one parameter, so that one prepared statement works for any number."""
    return _encode_list(numbers).decode()


def handle_of(receipt: Receipt) -> tuple[int, int]:
    """The row and the token of a delivery; no row matches a receipt of another transport."""
    handle = receipt.handle
    return cast("tuple[int, int]", handle) if type(handle) is tuple else (-1, -1)


def claim(
    session: WriterSession,
    queue: SqliteQueue,
    limit: int,
    lease: int,
    limits: JobLimits = NO_LIMITS,
) -> Claim:
    """Claim up to ``limit`` messages by priority, then order. Each counts as delivered."""
    if queue.ttl is not None:
        while sweep_expired(session, queue):
            pass
    until = session.now + lease
    if queue.paused:
        return Claim(queue, [], until)
    next_due = promote(session, queue)
    if queue.jobs and (limits is not NO_LIMITS or limiting.any_parked(session, queue)):
        limit, closed = _within(session, queue, limit, limits)
        if closed is not None:
            return Claim(queue, [], until, min(next_due, closed), closed, limited=True)
    token = secrets.randbits(62)
    execute = session.connection.execute
    rows = execute(_NEXT, (queue.id, limit)).fetchall()
    if not rows:
        limited = limits.per_key is not None and limiting.any_parked(session, queue)
        return Claim(queue, [], until, next_due, limited=limited)
    numbers = seq_list([row[0] for row in rows])
    if queue.jobs:
        if limits.rate is not None:
            limiting.count(session, queue, limits.rate, len(rows))
        execute(_HOLD_JOBS, (token, until, session.now, numbers))
    else:
        execute(_HOLD, (token, until, numbers))
    return Claim(queue, _deliveries(queue, token, rows), until)


def _within(
    session: WriterSession, queue: SqliteQueue, limit: int, limits: JobLimits
) -> tuple[int, int | None]:
    """How many of the next jobs may be claimed; and if none may, when to try again."""
    if limits.rate is not None:
        room, end = limiting.room(session, queue, limits.rate)
        if not room:
            return 0, end
        limit = min(limit, room)
    if limits.per_key is None:
        limiting.unpark_any(session, queue, limit)
        return limit, None
    number, done = limiting.sort_out(session, queue, limit, limits.per_key)
    return number, None if number or done else session.now


def take(
    session: WriterSession, queue: SqliteQueue, numbers: Sequence[int], lease: int
) -> list[Delivery | None]:
    """Claim exactly these messages. Returns a delivery, or None if it is held, for each."""
    promote(session, queue)
    token = secrets.randbits(62)
    rows = session.connection.execute(
        _TAKE, (token, session.now + lease, seq_list(numbers), queue.id)
    ).fetchall()
    deliveries = _deliveries(queue, token, rows)
    found = {row[0]: one for row, one in zip(rows, deliveries, strict=True)}
    return [found.pop(number, None) for number in numbers]


def renew(session: WriterSession, receipts: Sequence[Receipt], lease: int) -> list[bool]:
    """Hold deliveries for another lease. Returns whether each was still held."""
    handles = [handle_of(receipt) for receipt in receipts]
    tokens = held(session, [seq for seq, _ in handles])
    kept = [tokens.get(seq) == token for seq, token in handles]
    numbers = seq_list([seq for (seq, _), is_held in zip(handles, kept, strict=True) if is_held])
    session.connection.execute(_RENEW, (session.now + lease, numbers))
    return kept


def held(session: WriterSession, numbers: Sequence[int]) -> dict[int, int]:
    """The tokens of the claims that hold these rows; rows that are not held are left out."""
    (pairs,) = session.connection.execute(_HELD, (seq_list(numbers),)).fetchone()
    return dict(_decode_pairs(pairs))


def discard(session: WriterSession, deliveries: Sequence[Delivery]) -> None:
    """Delete what was just claimed."""
    if deliveries:
        numbers = seq_list([handle_of(delivery.receipt)[0] for delivery in deliveries])
        session.connection.execute(_DISCARD, (numbers,))


def promote(session: WriterSession, queue: SqliteQueue) -> int:
    """Make ready what is due: delayed messages, and those whose lease has ended and is now lost.

    Their delivery counts stay. Returns ``NEXT_DUE``.
    """
    execute = session.connection.execute
    (due,) = execute(NEXT_DUE, (queue.id,)).fetchone()
    if due <= session.now:
        if queue.ttl is not None:  # a delay is no part of the time to live
            execute(_WAITS_FROM_NOW, (queue.id, session.now))
        for statement in _PROMOTE:
            execute(statement, (queue.id, session.now))
        (due,) = execute(NEXT_DUE, (queue.id,)).fetchone()
    return due


def _deliveries(queue: SqliteQueue, token: int, rows: Sequence[tuple[Any, ...]]) -> list[Delivery]:
    deliveries = [read_delivery(queue.name, token, row) for row in rows]
    if queue.jobs:
        for index, delivery in enumerate(deliveries):
            if names.ID not in delivery.headers:  # another program added the job
                headers = {**delivery.headers, names.ID: delivery.id}
                deliveries[index] = msgspec.structs.replace(delivery, headers=headers)
    return deliveries
