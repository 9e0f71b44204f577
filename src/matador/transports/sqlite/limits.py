"""Limits for claims of jobs, shared by all processes: how often jobs start, how many of a key run.

Everything is decided in the transaction of the claim, from what is in the file. So a worker that
dies leaves nothing behind: its jobs are READY again when their leases end.

Jobs that may not run because of their key are PARKED. Each is parked once until it is its turn, so
that a claim does not meet them again: a long backlog of one key holds up nobody.
"""

from __future__ import annotations

from collections import Counter

from matador.model.job_limits import RateLimit
from matador.transports.sqlite.database import IN_FLIGHT, PARKED, READY, waiting
from matador.transports.sqlite.session import SqliteQueue, WriterSession

_PARKED_AT_ONCE = 5000

IS_PARKED = f"SELECT EXISTS (SELECT 1 FROM messages WHERE queue = ? AND {waiting(PARKED)})"
"""Has a queue any job that waits for others of its key?"""

_WINDOW = "SELECT started, taken FROM job_rates WHERE queue = ?"
_COUNT = "INSERT OR REPLACE INTO job_rates (queue, started, taken) VALUES (?, ?, ?)"

_FIRST = (
    f"SELECT limit_key FROM messages WHERE queue = ? AND state = {READY} "
    "ORDER BY rank DESC, seq LIMIT ?"
)
_OF_KEY = "FROM messages INDEXED BY limited WHERE queue = ?1 AND state = {state} AND limit_key = ?2"
_RUNNING = f"SELECT count(*) {_OF_KEY.format(state=IN_FLIGHT)}"
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
    f"{_OF_KEY.format(state=READY)} ORDER BY rank DESC, seq LIMIT {_PARKED_AT_ONCE} OFFSET ?3)"
)
# The first ones of a key, whatever their state: one that was added later must not overtake.
_FIRST_OF = f"SELECT seq, rank, state {_OF_KEY} ORDER BY rank DESC, seq LIMIT ?3"
_UNPARK = (
    f"UPDATE messages SET state = {READY} WHERE seq IN (SELECT seq FROM (SELECT * FROM "
    f"(SELECT * FROM ({_FIRST_OF.format(state=READY)}) "
    f"UNION ALL SELECT * FROM ({_FIRST_OF.format(state=PARKED)})) "
    f"ORDER BY rank DESC, seq LIMIT ?3) WHERE state = {PARKED})"
)
_UNPARK_ANY = (
    f"UPDATE messages SET state = {READY} WHERE seq IN (SELECT seq FROM messages "
    f"WHERE queue = ? AND {waiting(PARKED)} ORDER BY due, seq LIMIT ?)"
)


def room(session: WriterSession, queue: SqliteQueue, rate: RateLimit) -> tuple[int, int]:
    """How many jobs may start now; and if none may, when the window ends."""
    started, taken = _window(session, queue, rate)
    return max(0, rate.max - taken), started + rate.milliseconds


def count(session: WriterSession, queue: SqliteQueue, rate: RateLimit, number: int) -> None:
    """Count jobs that start now."""
    started, taken = _window(session, queue, rate)
    session.connection.execute(_COUNT, (queue.id, started, taken + number))


def _window(session: WriterSession, queue: SqliteQueue, rate: RateLimit) -> tuple[int, int]:
    """When the present window began, and how many jobs have started since."""
    row = session.connection.execute(_WINDOW, (queue.id,)).fetchone()
    if row is None or not row[0] <= session.now < row[0] + rate.milliseconds:
        return session.now, 0
    return row


def sort_out(
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
        keys: list[bytes | None] = [key for (key,) in execute(_FIRST, (queue.id, limit))]
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


def any_parked(session: WriterSession, queue: SqliteQueue) -> bool:
    """Are there jobs that wait for others of their key?"""
    (found,) = session.connection.execute(IS_PARKED, (queue.id,)).fetchone()
    return bool(found)


def unpark_any(session: WriterSession, queue: SqliteQueue, limit: int) -> None:
    """Make parked jobs READY for a worker that has no limit; so many that it has enough."""
    session.connection.execute(_UNPARK_ANY, (queue.id, limit))
