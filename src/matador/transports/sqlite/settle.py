"""Carries out settlements, each only if the claim that it came from still holds the delivery."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

from matador.errors import MatadorError
from matador.model import job as names
from matador.model.job import KEEP_AN_HOUR, Keep
from matador.model.message import (
    REASON_HEADER,
    Complete,
    DeadLetter,
    Headers,
    Message,
    Release,
    Retry,
    Settlement,
)
from matador.model.topology import dead_letter_name
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.errors import lease_lost
from matador.transports.kit.jobs import keep_of
from matador.transports.sqlite import flows, send
from matador.transports.sqlite.claim import EARLIER, LEASE_ENDED, handle_of, held, seq_list
from matador.transports.sqlite.database import (
    BLOCKED,
    BRIEF_JOB,
    DELAYED,
    DONE,
    FAILED_JOBS,
    JOBS,
    NEVER,
    PLAIN_JOB,
    READY,
    SPECIAL_JOB,
)
from matador.transports.sqlite.errors import UNSTORABLE, translate
from matador.transports.sqlite.session import SqliteQueue, WriterSession
from matador.transports.sqlite.wire import read_headers, stored_key

_COMPLETE = (
    "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?)) AND token = ? RETURNING seq"
)
_DELETE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_KEEP = (
    f"UPDATE messages SET state = {DONE}, due = ?, token = NULL "
    "WHERE seq IN (SELECT value FROM json_each(?))"
)
_RELEASE = (
    f"UPDATE messages SET state = CASE WHEN {EARLIER} THEN {BLOCKED} ELSE {READY} END, "
    "due = NULL, token = NULL, deliveries = deliveries - 1 "
    "WHERE seq IN (SELECT value FROM json_each(?))"
)
_RETRY = (
    f"UPDATE messages SET state = CASE WHEN {EARLIER} THEN {BLOCKED} ELSE ? END, due = ?, "
    "token = NULL, deliveries = 0, id = ?, headers = ?, body = ?, priority = ?, rank = ? "
    "WHERE seq = ?"
)
_COPY = (
    f"INSERT INTO messages (queue, state, stored_at, id, headers, body) "
    f"SELECT ?, {READY}, ?, id, ?, body FROM messages WHERE seq = ?"
)
_UNBLOCK = (
    f"UPDATE messages SET state = CASE WHEN due > ?1 THEN {DELAYED} ELSE {READY} END, "
    f"due = CASE WHEN due > ?1 THEN due END WHERE state = {BLOCKED} AND seq = "
    "(SELECT seq FROM messages WHERE queue = ?2 AND ordering_key = ?3 "
    f"AND ordering_key IS NOT NULL AND state <> {DONE} ORDER BY seq LIMIT 1)"
)


def settle(session: WriterSession, settlements: Sequence[Settlement]) -> list[MatadorError | None]:
    """Carry out settlements. Returns None or an error for each."""
    handles = [handle_of(settlement.receipt) for settlement in settlements]
    if all(
        type(one) is Complete
        and one.receipt.ordering_key is None
        and (queue := session.queues.get(one.receipt.queue)) is not None
        and queue.retention is None
        and not queue.jobs
        for one in settlements
    ):
        return _delete(session, settlements, handles)
    if all(type(one) is Complete and _is_job(session, one) for one in settlements):
        return _complete_jobs(session, cast("Sequence[Complete]", settlements), handles)
    tokens = held(session, [seq for seq, _ in handles])
    batch = _SettleBatch(session)
    outcomes: list[MatadorError | None] = [None] * len(settlements)
    for index, (settlement, (seq, token)) in enumerate(zip(settlements, handles, strict=True)):
        if tokens.get(seq) != token:
            outcomes[index] = lease_lost(settlement.receipt.queue, LEASE_ENDED)
            continue
        try:
            batch.add(settlement, seq)
        except MatadorError as error:
            outcomes[index] = error
        except UNSTORABLE as error:
            outcomes[index] = translate(error, session.path)
        else:
            del tokens[seq]  # a second settlement of one delivery is refused
    batch.finish()
    return outcomes


def _is_job(session: WriterSession, settlement: Settlement) -> bool:
    queue = session.queues.get(settlement.receipt.queue)
    return queue is not None and queue.jobs == JOBS and settlement.receipt.ordering_key is None


def refilled(settlements: Sequence[Settlement], limited: Set[str] = frozenset()) -> set[str]:
    """The queues in which settlements may have made a message ready.

    ``limited``: queues of jobs in which it may be the turn of another one with the same key.
    """
    names: set[str] = set()
    for settlement in settlements:
        receipt = settlement.receipt
        if (
            receipt.ordering_key is not None
            or receipt.queue in limited
            or isinstance(settlement, Release)
        ):
            names.add(receipt.queue)
        if isinstance(settlement, Retry):
            names.add(settlement.message.queue)
        elif isinstance(settlement, DeadLetter):
            names.add(dead_letter_name(receipt.queue, settlement.kind))
    return names


def _delete(
    session: WriterSession, settlements: Sequence[Settlement], handles: Sequence[tuple[int, int]]
) -> list[MatadorError | None]:
    """The usual batch: all are complete, and no message waits for them. One claim at a time."""
    outcomes: list[MatadorError | None] = [None] * len(settlements)
    gone: set[tuple[int, int]] = set()
    for token, numbers in _by_claim(handles).items():
        rows = session.connection.execute(_COMPLETE, (seq_list(numbers), token)).fetchall()
        gone.update((number, token) for (number,) in rows)
    if len(gone) < len(handles):
        for index, handle in enumerate(handles):
            if handle in gone:
                gone.remove(handle)  # a second settlement of one delivery is refused
            else:
                outcomes[index] = lease_lost(settlements[index].receipt.queue, LEASE_ENDED)
    return outcomes


def _by_claim(handles: Sequence[tuple[int, int]]) -> Mapping[int, list[int]]:
    """The rows of deliveries by the token of their claim."""
    claims: defaultdict[int, list[int]] = defaultdict(list)
    for seq, token in handles:
        claims[token].append(seq)
    return claims


class _SettleBatch:
    """Collects settlements that one statement can carry out, and carries out the rest at once."""

    def __init__(self, session: WriterSession) -> None:
        self._session = session
        self._finished: defaultdict[str, list[int]] = defaultdict(list)
        self._jobs: list[tuple[Complete, int]] = []
        self._moved: list[int] = []
        self._released: list[int] = []
        self._freed: set[tuple[int, str]] = set()
        self._filled: set[SqliteQueue] = set()

    def add(self, settlement: Settlement, seq: int) -> None:
        """Add a settlement whose delivery is held.

        Raises:
            QueueNotFoundError: there is no queue for its successor; nothing was changed.
            Exception: one of ``UNSTORABLE``; nothing was changed.
        """
        receipt = settlement.receipt
        match settlement:
            case Complete():
                if self._session.queue(receipt.queue).jobs == JOBS:
                    self._jobs.append((settlement, seq))
                else:
                    self._finished[receipt.queue].append(seq)
            case Release():
                self._released.append(seq)
                return
            case Retry(message=message):
                here = (receipt.queue, receipt.ordering_key)
                if (message.queue, message.ordering_key) == here:
                    self._retry_in_place(message, seq)
                    return
                self._move(message, seq)
                if self._session.queue(receipt.queue).jobs == FAILED_JOBS:
                    self._move_back(message)
            case DeadLetter():
                queue = self._session.queue(receipt.queue)
                if queue.jobs == JOBS and settlement.kind == "undeliverable":
                    self._fail(queue, settlement, seq)
                else:
                    self._add_dead_letter(settlement, seq)
        if receipt.ordering_key is not None:
            self._freed.add((self._session.queue(receipt.queue).id, receipt.ordering_key))

    def finish(self) -> None:
        """Carry out what was collected; unblock the next message of each freed ordering key."""
        session = self._session
        execute = session.connection.execute
        gone = self._moved
        _complete_held_jobs(session, self._jobs)
        for name, number in Counter(one.receipt.queue for one, _ in self._jobs).items():
            count_finished(session, name, completed=number)
        for name, numbers in self._finished.items():
            retention = session.queue(name).retention
            if retention is None:
                gone.extend(numbers)
            else:
                execute(_KEEP, (session.now + retention, seq_list(numbers)))
        if gone:
            execute(_DELETE, (seq_list(gone),))
        if self._released:
            execute(_RELEASE, (seq_list(self._released),))
        for queue_id, key in self._freed:
            execute(_UNBLOCK, (session.now, queue_id, stored_key(key)))
        send.trim(session, self._filled)

    def _retry_in_place(self, message: Message, seq: int) -> None:
        # The message keeps its row, so that later ones with its ordering key stay behind it.
        session = self._session
        queue = session.queue(message.queue)
        state, due = READY, None
        if message.delay > 0:
            state, due = DELAYED, session.clock.after(message.delay)
        rank = message.priority if queue.priorities else None
        headers = send.encode_headers(message)
        stored = (message.id, headers, message.body, message.priority, rank)
        session.connection.execute(_RETRY, (state, due, *stored, seq))

    def _fail(self, queue: SqliteQueue, settlement: DeadLetter, seq: int) -> None:
        self._session.failed_jobs(queue)  # before anything is changed
        kept = _keeps_failed_job(self._session, seq)
        if kept:
            self._add_dead_letter(settlement, seq)
        else:
            self._moved.append(seq)
        _job_failed(self._session, queue, seq, settlement.reason, kept=kept)

    def _move_back(self, message: Message) -> None:
        queue = self._session.queue(message.queue)
        if queue.jobs == JOBS:
            flows.moved_back(self._session, queue, message)

    def _add_dead_letter(self, settlement: DeadLetter, seq: int) -> None:
        if settlement.message is None:
            self._copy(settlement, seq)
        else:
            self._move(dead_letter_of(settlement, settlement.message), seq)

    def _move(self, message: Message, seq: int) -> None:
        session = self._session
        queue = session.queue(message.queue)
        send.insert(session, [send.make_row(session, queue, message, {})])
        self._filled.add(queue)
        self._moved.append(seq)

    def _copy(self, settlement: DeadLetter, seq: int) -> None:
        """Store a row as a dead letter, unread: SQLite copies it, whatever it contains."""
        queue = self._session.queue(dead_letter_name(settlement.receipt.queue, settlement.kind))
        execute = self._session.connection.execute
        headers: Headers = {}
        if not settlement.bare:
            (stored,) = execute("SELECT headers FROM messages WHERE seq = ?", (seq,)).fetchone()
            headers, _ = read_headers(stored)
        reason = send.encode_json({**headers, REASON_HEADER: settlement.reason})
        try:
            execute(_COPY, (queue.id, self._session.now, reason, seq))
        except sqlite3.DataError:
            if not settlement.bare:
                raise
            # The body alone is as large as a row can be.
            execute(_COPY, (queue.id, self._session.now, None, seq))
        self._filled.add(queue)
        self._moved.append(seq)


# -- jobs ------------------------------------------------------------------------------------------

_COMPLETE_BRIEF = (
    "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?)) AND token = ? "
    f"AND job = {BRIEF_JOB} RETURNING seq"
)
_COMPLETE_PLAIN = (
    f"UPDATE messages SET state = {DONE}, due = NULL, token = NULL, finished_at = ?, "
    "expires_at = ? WHERE seq IN (SELECT value FROM json_each(?)) AND token = ? "
    f"AND job = {PLAIN_JOB} RETURNING seq"
)
_RESULT = "UPDATE messages SET result = ? WHERE seq = ?"
_JOB_ROWS = "SELECT seq, id, headers FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_KEEP_JOB = (
    f"UPDATE messages SET state = {DONE}, due = NULL, token = NULL, finished_at = ?, "
    "expires_at = ?, result = ?, job = ? WHERE seq = ?"
)
_FREE_KEY = "DELETE FROM job_keys WHERE queue = ? AND key = ? AND id = ? AND until IS NULL"
_COUNT_FINISHED = (
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


def _complete_jobs(
    session: WriterSession, settlements: Sequence[Complete], handles: Sequence[tuple[int, int]]
) -> list[MatadorError | None]:
    """Complete deliveries of queues of jobs. Returns None or an error for each."""
    outcomes: list[MatadorError | None] = [None] * len(settlements)
    gone: set[tuple[int, int]] = set()
    execute, until = session.connection.execute, flows.expiry(KEEP_AN_HOUR, session.now)
    for token, numbers in _by_claim(handles).items():
        all_ = seq_list(numbers)
        plain = execute(_COMPLETE_PLAIN, (session.now, until, all_, token)).fetchall()
        brief = (
            execute(_COMPLETE_BRIEF, (all_, token)).fetchall() if len(plain) < len(numbers) else ()
        )
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
                outcomes[index] = lease_lost(queue, LEASE_ENDED)
        _complete_held_jobs(session, others)
    for name, number in counted.items():
        count_finished(session, name, completed=number)
    return outcomes


def _complete_held_jobs(session: WriterSession, items: Sequence[tuple[Complete, int]]) -> None:
    """Complete jobs that are held, whatever they are: settlements and row numbers.

    Does not count them.
    """
    by_queue: defaultdict[str, list[tuple[int, bytes | None]]] = defaultdict(list)
    for settlement, seq in items:
        by_queue[settlement.receipt.queue].append((seq, settlement.result))
    for name, done in by_queue.items():
        _complete_jobs_of(session, session.queue(name), done)


def _complete_jobs_of(
    session: WriterSession, queue: SqliteQueue, done: Sequence[tuple[int, bytes | None]]
) -> None:
    execute, executemany = session.connection.execute, session.connection.executemany
    rows = execute(_JOB_ROWS, (seq_list([seq for seq, _ in done]),))
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
                kind = PLAIN_JOB  # the sweep keeps only so many of these
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
    executemany(_KEEP_JOB, kept)
    executemany(_FREE_KEY, keys)
    flows.completed(session, queue, children)
    flows.forget(session, queue, parents)
    for keep in keeps:
        _trim_jobs(session, queue, queue, keep)


def _job_failed(
    session: WriterSession, queue: SqliteQueue, seq: int, reason: str, *, kept: bool
) -> None:
    """A job has failed for good. If it is kept, its dead letter was the last row inserted."""
    execute = session.connection.execute
    ((_, job_id, stored),) = execute(_JOB_ROWS, (seq_list([seq]),)).fetchall()
    headers, _ = read_headers(stored)
    keep = keep_of(headers, "failed")
    letters = session.failed_jobs(queue)
    if kept:
        execute(_FAILED, (session.now, flows.expiry(keep, session.now), seq))
        _trim_jobs(session, queue, letters, keep)
    elif names.CHILDREN in headers:
        flows.forget(session, queue, [job_id])
    free_key(session, queue, job_id, headers)
    number = 1 + flows.failed(session, queue, job_id, headers, reason)
    count_finished(session, queue.name, failed=number)


def _keeps_failed_job(session: WriterSession, seq: int) -> bool:
    """Is this job to be kept when it fails?"""
    (row,) = session.connection.execute(_JOB_ROWS, (seq_list([seq]),)).fetchall()
    return not keep_of(read_headers(row[2])[0], "failed").nothing


def free_key(session: WriterSession, queue: SqliteQueue, job_id: str, headers: Headers) -> None:
    """Free the unique key of a job that is finished or removed, unless the key has a window."""
    if names.UNIQUE in headers:
        key = str(headers[names.UNIQUE])
        session.connection.execute(_FREE_KEY, (queue.id, key, job_id))


def count_finished(
    session: WriterSession, queue: str, *, completed: int = 0, failed: int = 0
) -> None:
    """Add to the numbers of all jobs that have completed and failed."""
    if completed or failed:
        session.connection.execute(_COUNT_FINISHED, (completed, failed, queue))


def _trim_jobs(session: WriterSession, queue: SqliteQueue, where: SqliteQueue, keep: Keep) -> None:
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
        rows = execute(_JOB_ROWS, (seq_list(old),))
        flows.forget(session, queue, [id_ for _, id_, _ in rows])
    if old:
        execute(_DELETE, (seq_list(old),))
