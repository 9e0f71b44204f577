"""What becomes of jobs when they complete or fail: kept or deleted, keys and parents freed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from matador.errors import MatadorError
from matador.model import job as names
from matador.model.job import KEEP_AN_HOUR, Keep
from matador.model.message import Complete, Headers
from matador.transports.kit.errors import lease_lost
from matador.transports.kit.jobs import keep_of
from matador.transports.sqlite import flows
from matador.transports.sqlite.claim import GONE, held, seq_list
from matador.transports.sqlite.database import BRIEF_JOB, DONE, NEVER, PLAIN_JOB, SPECIAL_JOB
from matador.transports.sqlite.session import SqliteQueue, WriterSession
from matador.transports.sqlite.wire import read_headers

_BRIEF = (
    "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?)) AND token = ? "
    f"AND job = {BRIEF_JOB} RETURNING seq"
)
_PLAIN = (
    f"UPDATE messages SET state = {DONE}, due = NULL, token = NULL, finished_at = ?, "
    "expires_at = ? WHERE seq IN (SELECT value FROM json_each(?)) AND token = ? "
    f"AND job = {PLAIN_JOB} RETURNING seq"
)
_RESULT = "UPDATE messages SET result = ? WHERE seq = ?"
_ROWS = "SELECT seq, id, headers FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_DELETE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_KEEP = (
    f"UPDATE messages SET state = {DONE}, due = NULL, token = NULL, finished_at = ?, "
    "expires_at = ?, result = ?, job = ? WHERE seq = ?"
)
_FREE_KEY = "DELETE FROM job_keys WHERE queue = ? AND key = ? AND id = ? AND until IS NULL"
_COUNT = (
    "UPDATE queues SET all_completed = all_completed + ?, all_failed = all_failed + ? "
    "WHERE name = ?"
)
_FAILED = (
    f"UPDATE messages SET job = {SPECIAL_JOB}, finished_at = ?, expires_at = ?, "
    "(processed_at, progress) = (SELECT processed_at, progress FROM messages WHERE seq = ?) "
    "WHERE seq = last_insert_rowid()"
)
_FINISHED = "SELECT seq FROM messages WHERE queue = ? AND finished_at IS NOT NULL"
_SURPLUS = f"{_FINISHED} ORDER BY finished_at DESC LIMIT -1 OFFSET ?"  # in the index alone
_OLDER = f"{_FINISHED} AND finished_at < ?"


def complete(
    session: WriterSession, settlements: Sequence[Complete], handles: Sequence[tuple[int, int]]
) -> list[MatadorError | None]:
    """Complete deliveries of queues of jobs. Returns None or an error for each."""
    outcomes: list[MatadorError | None] = [None] * len(settlements)
    claims: defaultdict[int, list[int]] = defaultdict(list)
    for seq, token in handles:
        claims[token].append(seq)
    gone: set[tuple[int, int]] = set()
    execute, until = session.connection.execute, flows.expiry(KEEP_AN_HOUR, session.now)
    for token, numbers in claims.items():
        all_ = seq_list(numbers)
        plain = execute(_PLAIN, (session.now, until, all_, token)).fetchall()
        brief = execute(_BRIEF, (all_, token)).fetchall() if len(plain) < len(numbers) else ()
        gone.update((number, token) for rows in (plain, brief) for (number,) in rows)
    results = [
        (one.result, handle[0])
        for one, handle in zip(settlements, handles, strict=True)
        if one.result is not None and handle in gone
    ]
    if results:  # a brief one is gone by now
        session.connection.executemany(_RESULT, results)
    counted = Counter(one.receipt.queue for one in settlements)
    if len(gone) < len(handles):
        others: list[tuple[Complete, int]] = []
        tokens = held(session, [seq for seq, token in handles if (seq, token) not in gone])
        for index, (seq, token) in enumerate(handles):
            if (seq, token) in gone:
                gone.remove((seq, token))  # a second settlement of one delivery is refused
            elif tokens.pop(seq, None) == token:
                others.append((settlements[index], seq))
            else:
                queue = settlements[index].receipt.queue
                counted[queue] -= 1
                outcomes[index] = lease_lost(queue, GONE)
        complete_held(session, others)
    for name, number in counted.items():
        count(session, name, completed=number)
    return outcomes


def complete_held(session: WriterSession, items: Sequence[tuple[Complete, int]]) -> None:
    """Complete jobs that are held, whatever they are: settlements and row numbers.

    Does not count them.
    """
    by_queue: defaultdict[str, list[tuple[int, bytes | None]]] = defaultdict(list)
    for settlement, seq in items:
        by_queue[settlement.receipt.queue].append((seq, settlement.result))
    for name, done in by_queue.items():
        _complete(session, session.queue(name), done)


def _complete(
    session: WriterSession, queue: SqliteQueue, done: Sequence[tuple[int, bytes | None]]
) -> None:
    execute, executemany = session.connection.execute, session.connection.executemany
    rows = execute(_ROWS, (seq_list([seq for seq, _ in done]),))
    found = {seq: (id_, read_headers(stored)[0]) for seq, id_, stored in rows}
    gone: list[int] = []
    kept: list[tuple[Any, ...]] = []
    keeps: set[Keep] = set()
    keys: list[tuple[int, str, str]] = []
    parents: list[str] = []
    children: list[tuple[str, str, bytes | None]] = []
    for seq, result in done:
        job_id, headers = found[seq]
        keep = keep_of(headers, "completed")
        if keep.nothing:
            gone.append(seq)
        else:
            kind = SPECIAL_JOB
            if keep == KEEP_AN_HOUR:
                kind = PLAIN_JOB  # the caretaker counts these
            else:
                keeps.add(keep)
            kept.append((session.now, flows.expiry(keep, session.now), result, kind, seq))
        if names.UNIQUE in headers:
            keys.append((queue.id, str(headers[names.UNIQUE]), job_id))
        if names.PARENT in headers:
            children.append((str(headers[names.PARENT]), job_id, result))
        if names.CHILDREN in headers:
            parents.append(job_id)
    if gone:
        execute(_DELETE, (seq_list(gone),))
    executemany(_KEEP, kept)
    executemany(_FREE_KEY, keys)
    flows.completed(session, queue, children)
    flows.forget(session, queue, parents)
    for keep in keeps:
        trim(session, queue, queue, keep)


def failed(
    session: WriterSession, queue: SqliteQueue, seq: int, reason: str, *, kept: bool
) -> None:
    """A job has failed for good. If it is kept, its dead letter was the last row inserted."""
    execute = session.connection.execute
    ((_, job_id, stored),) = execute(_ROWS, (seq_list([seq]),)).fetchall()
    headers, _ = read_headers(stored)
    keep = keep_of(headers, "failed")
    letters = session.failed_jobs(queue)
    if kept:
        execute(_FAILED, (session.now, flows.expiry(keep, session.now), seq))
        trim(session, queue, letters, keep)
    elif names.CHILDREN in headers:
        flows.forget(session, queue, [job_id])
    free_key(session, queue, job_id, headers)
    number = 1 + flows.failed(session, queue, job_id, headers, reason)
    count(session, queue.name, failed=number)


def keeps_failed(session: WriterSession, seq: int) -> bool:
    """Is this job to be kept when it fails?"""
    (row,) = session.connection.execute(_ROWS, (seq_list([seq]),)).fetchall()
    return not keep_of(read_headers(row[2])[0], "failed").nothing


def free_key(session: WriterSession, queue: SqliteQueue, job_id: str, headers: Headers) -> None:
    """Let others have the unique key of a job that is finished or gone, unless it has a window."""
    if names.UNIQUE in headers:
        key = str(headers[names.UNIQUE])
        session.connection.execute(_FREE_KEY, (queue.id, key, job_id))


def count(session: WriterSession, queue: str, *, completed: int = 0, failed: int = 0) -> None:
    """Add to the numbers of all jobs that have completed and failed."""
    if completed or failed:
        session.connection.execute(_COUNT, (completed, failed, queue))


def trim(session: WriterSession, queue: SqliteQueue, where: SqliteQueue, keep: Keep) -> None:
    """Delete the oldest of the finished jobs that are more, or older, than ``keep`` says.

    ``where`` is the queue of jobs itself for completed ones, or its dead letters.
    """
    execute = session.connection.execute
    old: list[int] = []
    if keep.count is not None:
        old += [seq for (seq,) in execute(_SURPLUS, (where.id, min(keep.count, NEVER)))]
    if keep.age is not None:
        before = session.now - flows.milliseconds(keep.age)
        old += [seq for (seq,) in execute(_OLDER, (where.id, before))]
    if old and where is not queue:  # a failed job may have results that it waited for
        rows = execute(_ROWS, (seq_list(old),))
        flows.forget(session, queue, [id_ for _, id_, _ in rows])
    if old:
        execute(_DELETE, (seq_list(old),))
