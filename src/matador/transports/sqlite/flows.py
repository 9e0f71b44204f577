"""Jobs that wait for others. A parent is BLOCKED until all its children have completed.

All of it happens in the transaction that adds, completes, fails or retries a job, so that no job
waits for one that is gone, even after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matador.model import job as names
from matador.model.job import Keep
from matador.model.message import REASON_HEADER, Headers, Message
from matador.transports.kit.jobs import as_new, keep_of
from matador.transports.sqlite import send
from matador.transports.sqlite.database import BLOCKED, DELAYED, NEVER, READY
from matador.transports.sqlite.session import SqliteQueue, WriterSession
from matador.transports.sqlite.wire import read_headers

FAILED_CHILD = "job.failedChild"
"""The header of a job that failed because one did that it waited for: the id of that one."""

_STATE = 1  # the place of the state in a row of `make_row`

_ADD = "INSERT INTO job_children (queue, parent, child) VALUES (?, ?, ?)"
_DONE = (
    "UPDATE job_children SET done = 1, result = ? WHERE queue = ? AND parent = ? AND child = ? "
    "AND NOT done"
)
_MISSING = (
    "SELECT EXISTS (SELECT 1 FROM job_children WHERE queue = ? AND parent = ? AND NOT done LIMIT 1)"
)
_IS_CHILD = (
    "SELECT EXISTS (SELECT 1 FROM job_children WHERE queue = ? AND parent = ? AND child = ?)"
)
_FORGET = "DELETE FROM job_children WHERE queue = ? AND parent = ?"
_FORGET_CHILD = "DELETE FROM job_children WHERE queue = ? AND parent = ? AND child = ?"
_BY_ID = "queue = ? AND id = ? AND job IS NOT NULL"
_UNBLOCK = (
    f"UPDATE messages SET state = CASE WHEN due > ? THEN {DELAYED} ELSE {READY} END, "
    f"due = CASE WHEN due > ? THEN due END WHERE {_BY_ID} AND state = {BLOCKED} "
    "AND ordering_key IS NULL"
)
_PARENT = (
    f"SELECT seq, headers FROM messages WHERE {_BY_ID} AND state = {BLOCKED} "
    "AND ordering_key IS NULL"
)
_FAIL = (
    f"UPDATE messages SET queue = ?, state = {READY}, due = NULL, rank = NULL, headers = ?, "
    "stored_at = ?, finished_at = ?, expires_at = ? WHERE seq = ?"
)
_DELETE = "DELETE FROM messages WHERE seq = ?"
_BLOCK = f"UPDATE messages SET state = {BLOCKED} WHERE seq = last_insert_rowid()"
_FAILED_PARENT = f"SELECT seq, headers FROM messages WHERE {_BY_ID} AND state = {READY}"
_WAIT_AGAIN = (
    f"UPDATE messages SET queue = ?, state = {BLOCKED}, rank = priority, headers = ?, "
    "finished_at = NULL, expires_at = NULL WHERE seq = ?"
)


def add(session: WriterSession, queue: SqliteQueue, messages: Sequence[Message]) -> None:
    """Store the jobs of a flow, whose ids are free.

    Raises:
        Exception: one cannot be stored; the transaction must be rolled back.
    """
    pairs = [
        (queue.id, str(message.headers[names.PARENT]), message.id)
        for message in messages
        if names.PARENT in message.headers
    ]
    parents = {parent for _, parent, _ in pairs}
    rows = [send.make_row(session, queue, message, {}) for message in messages]
    for index, message in enumerate(messages):
        if message.id in parents:
            rows[index] = (*rows[index][:_STATE], BLOCKED, *rows[index][_STATE + 1 :])
    send.insert(session, rows)
    session.connection.executemany(_ADD, pairs)


def completed(
    session: WriterSession,
    queue: SqliteQueue,
    children: Iterable[tuple[str, str, bytes | None]],
) -> None:
    """Note completed children (parent, child, result), and unblock parents without others."""
    execute = session.connection.execute
    parents: set[str] = set()
    for parent, child, result in children:
        if execute(_DONE, (result, queue.id, parent, child)).rowcount:
            parents.add(parent)
    for parent in parents:
        _free(session, queue, parent)


def _free(session: WriterSession, queue: SqliteQueue, parent: str) -> None:
    if not waits(session, queue, parent):
        now = session.now
        session.connection.execute(_UNBLOCK, (now, now, queue.id, parent))


def waits(session: WriterSession, queue: SqliteQueue, job_id: str) -> bool:
    """Are there jobs that must complete before this one may run?"""
    (missing,) = session.connection.execute(_MISSING, (queue.id, job_id)).fetchone()
    return bool(missing)


def forget(session: WriterSession, queue: SqliteQueue, parents: Iterable[str]) -> None:
    """Delete the children of jobs that are gone, and their results."""
    session.connection.executemany(_FORGET, [(queue.id, parent) for parent in parents])


def removed(session: WriterSession, queue: SqliteQueue, job_id: str, headers: Headers) -> int:
    """A job was removed before it completed: fail the jobs that wait for it. Returns how many."""
    parent = headers.get(names.PARENT)
    forget(session, queue, [job_id])
    if parent is None:
        return 0
    count = failed(session, queue, job_id, headers, "it was removed")
    session.connection.execute(_FORGET_CHILD, (queue.id, str(parent), job_id))
    return count


def failed(
    session: WriterSession, queue: SqliteQueue, job_id: str, headers: Headers, reason: str
) -> int:
    """A job has failed for good: fail its parent, the parent of that, and so on.

    Returns how many.
    """
    execute = session.connection.execute
    letters, now = session.failed_jobs(queue), session.now
    count = 0
    while (found := headers.get(names.PARENT)) is not None:
        parent = str(found)
        row = execute(_PARENT, (queue.id, parent)).fetchone()
        (is_child,) = execute(_IS_CHILD, (queue.id, parent, job_id)).fetchone()
        if row is None or not is_child:
            break
        seq, stored = row
        headers, _ = read_headers(stored)
        # The first reason only: in a long chain, the text would grow with each step.
        if count == 0:
            reason = f"job {job_id!r}, which it waited for, has failed: {reason}"
        changed = {
            **headers,
            names.ERROR: reason,
            names.FAILED_AT: now,
            REASON_HEADER: reason,
            FAILED_CHILD: job_id,
        }
        keep = keep_of(headers, "failed")
        if keep.nothing:
            execute(_DELETE, (seq,))
            forget(session, queue, [parent])
        else:
            encoded = send.encode_json(changed)
            execute(_FAIL, (letters.id, encoded, now, now, expiry(keep, now), seq))
        count += 1
        job_id = parent
    return count


def expiry(keep: Keep, now: int) -> int | None:
    """When a job that finishes now is deleted; None: never because of its age."""
    return None if keep.age is None else now + milliseconds(keep.age)


def milliseconds(seconds: float) -> int:
    """A time span as SQLite can store it, whatever another program has asked for."""
    return round(min(seconds * 1000, NEVER))


def moved_back(session: WriterSession, queue: SqliteQueue, message: Message) -> None:
    """A dead letter was made a job again; it is the last row inserted."""
    retried(session, queue, message.id, message.headers)
    if waits(session, queue, message.id):
        session.connection.execute(_BLOCK)


def retried(session: WriterSession, queue: SqliteQueue, job_id: str, headers: Headers) -> None:
    """A failed job is to run again: parents that failed because of it wait for it again."""
    execute = session.connection.execute
    letters = session.failed_jobs(queue)
    while (found := headers.get(names.PARENT)) is not None:
        parent = str(found)
        row = execute(_FAILED_PARENT, (letters.id, parent)).fetchone()
        if row is None:
            return
        seq, stored = row
        headers, _ = read_headers(stored)
        if headers.get(FAILED_CHILD) != job_id:
            return
        kept = {name: one for name, one in as_new(headers).items() if name != FAILED_CHILD}
        execute(_WAIT_AGAIN, (queue.id, send.encode_json(kept), seq))
        job_id = parent
