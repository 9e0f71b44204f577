"""Claims messages within the limits for jobs, renews leases, and makes ready what is due."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from matador.model import job as names
from matador.model.job_limits import NO_LIMITS, JobLimits, RateLimit
from matador.model.message import Delivery, Receipt
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

LEASE_ENDED = "its lease ended and another receiver has it"
"""Why a delivery cannot be settled."""

EARLIER = (
    "ordering_key IS NOT NULL AND EXISTS (SELECT 1 FROM messages AS other "
    "WHERE other.queue = messages.queue AND other.ordering_key = messages.ordering_key "
    f"AND other.ordering_key IS NOT NULL AND other.state <> {DONE} AND other.seq < messages.seq)"
)
"""Is there an earlier unfinished message with the same key?"""

# The states are literals: SQLite would prepare a statement with a parameter anew each time, to see
# whether it can use the partial index.
_PROMOTE = tuple(
    f"UPDATE messages SET state = CASE WHEN {EARLIER} THEN {BLOCKED} ELSE {READY} END, "
    f"token = NULL, due = NULL WHERE seq IN (SELECT seq FROM messages WHERE queue = ? "
    f"AND {waiting(state)} AND due <= ? ORDER BY due LIMIT {_PROMOTED_AT_ONCE})"
    for state in (DELAYED, IN_FLIGHT)
)
_RESTART_TTL = (
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
    if queue.jobs and (limits is not NO_LIMITS or _any_parked(session, queue)):
        limit, closed = _apply_limits(session, queue, limit, limits)
        if closed is not None:
            return Claim(queue, [], until, min(next_due, closed), closed, limited=True)
    token = secrets.randbits(62)
    execute = session.connection.execute
    rows = execute(_NEXT, (queue.id, limit)).fetchall()
    if not rows:
        limited = limits.per_key is not None and _any_parked(session, queue)
        return Claim(queue, [], until, next_due, limited=limited)
    numbers = seq_list([row[0] for row in rows])
    if queue.jobs:
        if limits.rate is not None:
            _count_started(session, queue, limits.rate, len(rows))
        execute(_HOLD_JOBS, (token, until, session.now, numbers))
    else:
        execute(_HOLD, (token, until, numbers))
    return Claim(queue, _deliveries(queue, token, rows), until)


def _apply_limits(
    session: WriterSession, queue: SqliteQueue, limit: int, limits: JobLimits
) -> tuple[int, int | None]:
    """How many of the next jobs the limits let through; and if none, when to try again."""
    if limits.rate is not None:
        room, end = _starts_left(session, queue, limits.rate)
        if not room:
            return 0, end
        limit = min(limit, room)
    if limits.per_key is None:
        _unpark_any(session, queue, limit)
        return limit, None
    number, done = _apply_key_limit(session, queue, limit, limits.per_key)
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
    """Extend the leases of deliveries. Returns whether each was still held."""
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
    """Delete messages that were just claimed."""
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
            execute(_RESTART_TTL, (queue.id, session.now))
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


# -- limits ----------------------------------------------------------------------------------------
#
# Everything is decided in the transaction of the claim, from what is in the file. So a worker that
# dies leaves nothing behind: its jobs are READY again when their leases end.
#
# Jobs that may not run because of their key are PARKED. Each is parked once until it is its turn,
# so that a claim does not meet it again: a long backlog of one key delays no other key.

_PARKED_AT_ONCE = 5000

IS_PARKED = f"SELECT EXISTS (SELECT 1 FROM messages WHERE queue = ? AND {waiting(PARKED)})"
"""Has a queue any job that waits for others of its key?"""

_WINDOW = "SELECT started, taken FROM job_rates WHERE queue = ?"
_COUNT_STARTED = "INSERT OR REPLACE INTO job_rates (queue, started, taken) VALUES (?, ?, ?)"

_FIRST_KEYS = (
    f"SELECT limit_key FROM messages WHERE queue = ? AND state = {READY} "
    "ORDER BY rank DESC, seq LIMIT ?"
)


def _of_key(state: int) -> str:
    return (
        f"FROM messages INDEXED BY limited WHERE queue = ?1 AND state = {state} AND limit_key = ?2"
    )


def _first_of_key(state: int) -> str:
    return f"SELECT seq, rank, state {_of_key(state)} ORDER BY rank DESC, seq LIMIT ?3"


_RUNNING = f"SELECT count(*) {_of_key(IN_FLIGHT)}"
# From key to key, without looking at the rows between them.
_NEXT_KEY = (
    "SELECT min(limit_key) FROM messages INDEXED BY limited "
    f"WHERE queue = ?1 AND state = {PARKED} AND limit_key"
)
_PARKED_KEYS = (
    f"WITH RECURSIVE keys (key) AS ({_NEXT_KEY} IS NOT NULL "
    f"UNION ALL SELECT ({_NEXT_KEY} > key) FROM keys WHERE key IS NOT NULL) "
    "SELECT key FROM keys WHERE key IS NOT NULL"
)
_PARK = (
    f"UPDATE messages SET state = {PARKED}, due = NULL WHERE seq IN (SELECT seq "
    f"{_of_key(READY)} ORDER BY rank DESC, seq LIMIT {_PARKED_AT_ONCE} OFFSET ?3)"
)
# The first ones of a key, whatever their state: one that was added later must not overtake.
_UNPARK = (
    f"UPDATE messages SET state = {READY} WHERE seq IN (SELECT seq FROM (SELECT * FROM "
    f"(SELECT * FROM ({_first_of_key(READY)}) "
    f"UNION ALL SELECT * FROM ({_first_of_key(PARKED)})) "
    f"ORDER BY rank DESC, seq LIMIT ?3) WHERE state = {PARKED})"
)
_UNPARK_ANY = (
    f"UPDATE messages SET state = {READY} WHERE seq IN (SELECT seq FROM messages "
    f"WHERE queue = ? AND {waiting(PARKED)} ORDER BY due, seq LIMIT ?)"
)


def _starts_left(session: WriterSession, queue: SqliteQueue, rate: RateLimit) -> tuple[int, int]:
    """How many jobs may start now; and if none may, when the window ends."""
    started, taken = _window(session, queue, rate)
    return max(0, rate.max - taken), started + rate.milliseconds


def _count_started(
    session: WriterSession, queue: SqliteQueue, rate: RateLimit, number: int
) -> None:
    """Count jobs that start now."""
    started, taken = _window(session, queue, rate)
    session.connection.execute(_COUNT_STARTED, (queue.id, started, taken + number))


def _window(session: WriterSession, queue: SqliteQueue, rate: RateLimit) -> tuple[int, int]:
    """When the present window began, and how many jobs have started since."""
    row = session.connection.execute(_WINDOW, (queue.id,)).fetchone()
    if row is None or not row[0] <= session.now < row[0] + rate.milliseconds:
        return session.now, 0
    return row


def _apply_key_limit(
    session: WriterSession, queue: SqliteQueue, limit: int, per_key: int
) -> tuple[int, bool]:
    """Park and unpark jobs, so that the next ones that are READY may run.

    Returns how many of them, at most ``limit``; and whether that is all there is to do for now.
    """
    execute = session.connection.execute
    running: dict[bytes, int] = {}

    def may_run(key: bytes) -> int:
        if key not in running:
            (running[key],) = execute(_RUNNING, (queue.id, key)).fetchone()
        return min(max(0, per_key - running[key]), limit)

    for (key,) in execute(_PARKED_KEYS, (queue.id,)).fetchall():
        if free := may_run(key):
            execute(_UNPARK, (queue.id, key, free))
    parked = 0
    while True:
        keys: list[bytes | None] = [key for (key,) in execute(_FIRST_KEYS, (queue.id, limit))]
        met = Counter(key for key in keys if key is not None)
        surplus = [key for key, number in met.items() if number > may_run(key)]
        if not surplus:
            return len(keys), True
        if parked >= _PARKED_AT_ONCE:  # other processes wait for the file: go on in the next claim
            return _allowed(keys, {key: may_run(key) for key in met}), False
        for key in surplus:
            parked += execute(_PARK, (queue.id, key, may_run(key))).rowcount


def _allowed(keys: list[bytes | None], left: dict[bytes, int]) -> int:
    """How many of the first jobs may run, until one may not."""
    for index, key in enumerate(keys):
        if key is not None:
            left[key] -= 1
            if left[key] < 0:
                return index
    return len(keys)


def _any_parked(session: WriterSession, queue: SqliteQueue) -> bool:
    """Are there jobs that wait for others of their key?"""
    (found,) = session.connection.execute(IS_PARKED, (queue.id,)).fetchone()
    return bool(found)


def _unpark_any(session: WriterSession, queue: SqliteQueue, limit: int) -> None:
    """Make parked jobs READY for a worker that has no limit; so many that it has enough."""
    session.connection.execute(_UNPARK_ANY, (queue.id, limit))
