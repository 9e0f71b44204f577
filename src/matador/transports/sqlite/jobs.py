"""``SqliteJobs``: the part of ``SqliteTransport`` that stores jobs.

A job is a message, and every change of it happens in the transaction of the message.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from matador.errors import (
    DuplicateJobError,
    JobNotFoundError,
    JobStateError,
    MatadorError,
    QueueNotFoundError,
    UniqueJobError,
)
from matador.model import job as names
from matador.model.job import JobCapabilities, JobCounts, JobRecord, JobSchedule, JobStatus
from matador.model.message import DeadLetter, Message, Receipt
from matador.transports.kit.errors import lease_lost
from matador.transports.kit.jobs import as_canceled, as_new, whole
from matador.transports.kit.transport import BaseTransport
from matador.transports.sqlite import browse, flows, send
from matador.transports.sqlite.claim import LEASE_ENDED, handle_of
from matador.transports.sqlite.connection import SqliteConnection
from matador.transports.sqlite.database import BLOCKED, DONE, IN_FLIGHT, JOBS, READY, SPECIAL_JOB
from matador.transports.sqlite.session import SqliteQueue, WriterSession, no_such_queue
from matador.transports.sqlite.settle import count_finished, free_key, settle
from matador.transports.sqlite.wire import read_headers

Result = TypeVar("Result")

_CAPABILITIES = JobCapabilities(
    delays=True,
    priorities=True,
    backoff=True,
    find=True,
    unique_ids=True,
    list=True,
    counts=True,
    results=True,
    progress=True,
    keep=True,
    retry=True,
    remove=True,
    cancel=True,
    pause=True,
    delete=True,
    unique=True,
    schedules=True,
    flows=True,
    rate_limit=True,
    concurrency_per_key=True,
)


class SqliteJobs(BaseTransport):
    """``JobStoring``, ``JobScheduling`` and ``JobFlows`` on SQLite."""

    @property
    def _connected(self) -> SqliteConnection:
        raise NotImplementedError

    def _wake(self, queues: set[str]) -> None:
        raise NotImplementedError

    async def _change(
        self, queue: str, work: Callable[[WriterSession, SqliteQueue], Result]
    ) -> Result:
        """Change jobs of a queue in one transaction, and wake its subscriptions."""
        done = await self._connected.write(lambda session: work(session, session.jobs(queue)))
        self._wake({queue})
        return done

    async def _look(self, queue: str, look: Callable[..., Result], *arguments: object) -> Result:
        """Run ``look(connection, queue, *arguments, now)`` beside the writer."""
        connection = self._connected

        def checked(reading: object, found: SqliteQueue, *rest: object) -> Result:
            if found.jobs != JOBS:
                raise no_such_queue(queue, (), connection.path)
            return look(reading, found, *rest)

        return await connection.read(queue, checked, *arguments)

    @property
    def job_capabilities(self) -> JobCapabilities:
        return _CAPABILITIES

    async def open_jobs(self, queue: str) -> str:
        await self._connected.write(lambda session: session.open_jobs(queue))
        return queue

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        outcomes = await self._connected.writer.submit(add, jobs)
        self._wake({job.queue for job in jobs if job.delay <= 0})
        return outcomes

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        return await self._look(queue, browse.find_jobs, ids)

    async def list_jobs(
        self, queue: str, status: JobStatus, *, limit: int, skip: int = 0
    ) -> Sequence[JobRecord]:
        return await self._look(queue, browse.list_jobs, status, limit, skip)

    async def count_jobs(self, queue: str) -> JobCounts:
        return await self._look(queue, browse.count_jobs)

    async def retry_job(self, queue: str, job_id: str) -> None:
        await self._change(queue, partial(retry, job_id=job_id))

    async def remove_job(self, queue: str, job_id: str) -> None:
        await self._change(queue, partial(remove, job_id=job_id))

    async def cancel_job(self, queue: str, job_id: str, reason: str) -> bool:
        return await self._change(queue, partial(cancel, job_id=job_id, reason=reason))

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        await self._connected.write(partial(set_progress, receipt=receipt, progress=progress))

    async def pause_jobs(self, queue: str) -> None:
        await self._change(queue, lambda session, found: session.pause(found, True))

    async def resume_jobs(self, queue: str) -> None:
        await self._change(queue, lambda session, found: session.pause(found, False))

    async def delete_jobs(self, queue: str) -> None:
        await self._change(queue, delete_all)

    # -- recurring jobs ----------------------------------------------------------------------

    @property
    def fires_schedules(self) -> bool:
        return False

    async def put_schedule(self, queue: str, schedule: JobSchedule) -> None:
        await self._change(queue, partial(put_schedule, schedule=schedule))

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        return await self._look(queue, list_schedules)

    async def remove_schedule(self, queue: str, key: str) -> bool:
        return await self._change(queue, partial(remove_schedule, key=key))

    async def fire_schedule(
        self, queue: str, schedule: JobSchedule, next_at: float, jobs: Sequence[Message]
    ) -> bool:
        fire = partial(fire_schedule, schedule=schedule, next_at=next_at, messages=jobs)
        return await self._change(queue, fire)

    # -- chains and groups -------------------------------------------------------------------

    async def add_flow(self, queue: str, jobs: Sequence[Message]) -> MatadorError | None:
        (outcome,) = await self._connected.submit(
            lambda session: add_flow(session, session.jobs(queue), jobs)
        )
        if isinstance(outcome, QueueNotFoundError):
            raise outcome
        self._wake({queue})
        return outcome

    async def child_results(self, queue: str, job_id: str) -> Mapping[str, bytes | None]:
        return await self._look(queue, browse.child_results, job_id)


# -- changes of jobs -------------------------------------------------------------------------------

_TAKEN = (
    "SELECT queue, id FROM messages WHERE queue IN (?, ?) "
    "AND id IN (SELECT value FROM json_each(?)) AND job IS NOT NULL"
)
_KEY = "SELECT id, until FROM job_keys WHERE queue = ? AND key = ?"
_TAKE_KEY = "INSERT OR REPLACE INTO job_keys (queue, key, id, until) VALUES (?, ?, ?, ?)"
_GIVE_KEY_BACK = "DELETE FROM job_keys WHERE queue = ? AND key = ? AND id = ?"
_UNFINISHED = (
    "SELECT EXISTS (SELECT 1 FROM messages WHERE queue = ? AND id = ? AND job IS NOT NULL "
    f"AND state <> {DONE})"
)
_FIND = (
    "SELECT seq, state, due, headers FROM messages WHERE queue = ? AND id = ? AND job IS NOT NULL"
)
_FIND_WHOLE = (
    "SELECT state, due, seq, token, deliveries, priority, headers, body FROM messages "
    "WHERE queue = ? AND id = ? AND job IS NOT NULL"
)
_RUN_AGAIN = (
    "INSERT INTO messages "
    "(queue, state, priority, rank, stored_at, id, headers, limit_key, body, job) "
    f"SELECT ?, ?, priority, priority, ?, id, ?, ?, body, {SPECIAL_JOB} FROM messages WHERE seq = ?"
)
_DELETE = "DELETE FROM messages WHERE seq = ?"
_PROGRESS = "UPDATE messages SET progress = ? WHERE seq = ? AND token = ?"
_DELETE_ALL = "DELETE FROM messages WHERE queue IN (?, ?)"
_FORGET_ALL = tuple(
    f"DELETE FROM {table} WHERE queue = ?"
    for table in ("job_keys", "job_children", "job_rates", "schedules")
)
_START_AGAIN = "UPDATE queues SET all_completed = 0, all_failed = 0 WHERE id = ?"


def add(session: WriterSession, messages: Sequence[Message]) -> list[MatadorError | None]:
    """Store jobs in the order given. Returns None or an error for each."""
    outcomes = _refusals(session, messages)
    free = [index for index, error in enumerate(outcomes) if error is None]
    chosen = messages if len(free) == len(messages) else [messages[index] for index in free]
    for index, error in zip(free, send.store(session, chosen), strict=True):
        if error is not None:
            _give_key_back(session, messages[index])
            outcomes[index] = error
    return outcomes


def add_flow(
    session: WriterSession, queue: SqliteQueue, messages: Sequence[Message]
) -> MatadorError | None:
    """Store the jobs of a flow: all of them, or none and why.

    Raises:
        Exception: one cannot be stored; the transaction must be rolled back.
    """
    for error in _refusals(session, messages):
        if error is not None:
            return error
    flows.add(session, queue, messages)
    return None


def _refusals(session: WriterSession, messages: Sequence[Message]) -> list[MatadorError | None]:
    """Why each job cannot be stored; None: it can, and its unique key is taken now."""
    outcomes: list[MatadorError | None] = [None] * len(messages)
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for message in messages:
        ids[message.queue].append(message.id)
    taken: set[tuple[int, str]] = set()
    queues: dict[str, SqliteQueue] = {}
    for name, wanted in ids.items():
        queue = session.queues.get(name)
        if queue is not None and queue.jobs == JOBS:
            queues[name] = queue
            where = (queue.id, session.failed_jobs(queue).id)
            encoded = send.encode_json(wanted).decode()
            rows = session.connection.execute(_TAKEN, (*where, encoded))
            taken.update((queue.id, job_id) for _, job_id in rows)
    keys: dict[tuple[int, str], str] = {}
    for index, message in enumerate(messages):
        queue = queues.get(message.queue)
        if queue is None:
            outcomes[index] = no_such_queue(message.queue, session.queues, session.path)
            continue
        place = (queue.id, message.id)
        if place in taken:
            outcomes[index] = DuplicateJobError(
                f"queue {queue.name!r} has a job with the id {message.id!r} already",
                queue=queue.name,
                job_id=message.id,
            )
            continue
        if names.UNIQUE in message.headers:
            outcomes[index] = _take_key(session, queue, message, keys)
            if outcomes[index] is not None:
                continue
        taken.add(place)
    return outcomes


def _take_key(
    session: WriterSession,
    queue: SqliteQueue,
    message: Message,
    keys: dict[tuple[int, str], str],
) -> UniqueJobError | None:
    """Take the unique key of a job, unless another job has it. ``keys``: of jobs not stored yet."""
    execute = session.connection.execute
    place = (queue.id, str(message.headers[names.UNIQUE]))
    holder = keys.get(place)
    if holder is None and (row := execute(_KEY, place).fetchone()) is not None:
        other, until = row
        if until is not None:
            taken = session.now < until
        else:
            (taken,) = execute(_UNFINISHED, (queue.id, other)).fetchone()
        holder = other if taken else None
    if holder is not None:
        return UniqueJobError(
            f"queue {queue.name!r}: job {holder!r} has the unique key {place[1]!r}",
            queue=queue.name,
            job_id=holder,
        )
    window = whole(message.headers, names.UNIQUE_FOR)
    execute(_TAKE_KEY, (*place, message.id, session.now + window if window else None))
    keys[place] = message.id
    return None


def _give_key_back(session: WriterSession, message: Message) -> None:
    """A job was not stored: its unique key is free, whatever its window."""
    if names.UNIQUE in message.headers:
        queue = session.jobs(message.queue)
        key = (queue.id, str(message.headers[names.UNIQUE]), message.id)
        session.connection.execute(_GIVE_KEY_BACK, key)


def retry(session: WriterSession, queue: SqliteQueue, job_id: str) -> None:
    """Make a failed job wait again.

    Raises:
        JobNotFoundError: there is no such job.
        JobStateError: it has not failed.
    """
    execute = session.connection.execute
    if execute(_FIND, (queue.id, job_id)).fetchone() is not None:
        raise JobStateError(
            f"job {job_id!r} of {queue.name!r} has not failed", queue=queue.name, job_id=job_id
        )
    row = execute(_FIND, (session.failed_jobs(queue).id, job_id)).fetchone()
    if row is None:
        raise _unknown(queue, job_id)
    seq, _, _, stored = row
    headers = as_new(read_headers(stored)[0])
    headers.pop(flows.FAILED_CHILD, None)
    flows.retried(session, queue, job_id, headers)
    state = BLOCKED if flows.waits(session, queue, job_id) else READY
    encoded = send.encode_json(headers)
    key = send.limit_key(queue, headers)
    execute(_RUN_AGAIN, (queue.id, state, session.now, encoded, key, seq))
    execute(_DELETE, (seq,))


def remove(session: WriterSession, queue: SqliteQueue, job_id: str) -> None:
    """Delete a job that is not active.

    Raises:
        JobNotFoundError: there is no such job.
        JobStateError: it is active.
    """
    execute = session.connection.execute
    row = execute(_FIND, (queue.id, job_id)).fetchone()
    row = row or execute(_FIND, (session.failed_jobs(queue).id, job_id)).fetchone()
    if row is None:
        raise _unknown(queue, job_id)
    seq, state, due, stored = row
    if state == IN_FLIGHT and due > session.now:
        raise JobStateError(
            f"job {job_id!r} of {queue.name!r} is active; it cannot be removed now",
            queue=queue.name,
            job_id=job_id,
        )
    headers = read_headers(stored)[0]
    execute(_DELETE, (seq,))
    if state != DONE:
        free_key(session, queue, job_id, headers)
        count_finished(session, queue.name, failed=flows.removed(session, queue, job_id, headers))


def cancel(session: WriterSession, queue: SqliteQueue, job_id: str, reason: str) -> bool:
    """Delete a job that waits, or fail one that is active. False: it is finished.

    Raises:
        JobNotFoundError: there is no such job.
    """
    execute = session.connection.execute
    row = execute(_FIND_WHOLE, (queue.id, job_id)).fetchone()
    if row is None:
        if execute(_FIND, (session.failed_jobs(queue).id, job_id)).fetchone() is None:
            raise _unknown(queue, job_id)
        return False
    state, due, seq, token, deliveries, priority, stored, body = row
    if state == DONE:
        return False
    if state != IN_FLIGHT or due <= session.now:
        remove(session, queue, job_id)
        return True
    headers = read_headers(stored)[0]
    attempts = whole(headers, names.ATTEMPTS) + deliveries
    failed = as_canceled(headers, attempts, reason, session.now / 1000)
    message = Message(job_id, queue.name, body, failed, priority=priority)
    letter = DeadLetter(Receipt(queue.name, (seq, token)), "undeliverable", reason, message)
    (error,) = settle(session, [letter])
    if error is not None:
        raise error
    return True


def _unknown(queue: SqliteQueue, job_id: str) -> JobNotFoundError:
    return JobNotFoundError(
        f"queue {queue.name!r} has no job {job_id!r}", queue=queue.name, job_id=job_id
    )


def set_progress(session: WriterSession, receipt: Receipt, progress: bytes) -> None:
    """Store how far an active job has come.

    Raises:
        LeaseLostError: its lease has ended.
    """
    if not session.connection.execute(_PROGRESS, (progress, *handle_of(receipt))).rowcount:
        raise lease_lost(receipt.queue, LEASE_ENDED)


def delete_all(session: WriterSession, queue: SqliteQueue) -> None:
    """Delete all jobs of a queue with their keys, children, rates and schedules; end a pause."""
    execute = session.connection.execute
    execute(_DELETE_ALL, (queue.id, session.failed_jobs(queue).id))
    for statement in _FORGET_ALL:
        execute(statement, (queue.id,))
    execute(_START_AGAIN, (queue.id,))
    session.pause(queue, False)


# -- recurring jobs --------------------------------------------------------------------------------

_PUT_SCHEDULE = "INSERT OR REPLACE INTO schedules (queue, key, next_at, value) VALUES (?, ?, ?, ?)"
_LIST_SCHEDULES = "SELECT next_at, value FROM schedules WHERE queue = ?"
_REMOVE_SCHEDULE = "DELETE FROM schedules WHERE queue = ? AND key = ?"
_FIRE_SCHEDULE = "UPDATE schedules SET next_at = ? WHERE queue = ? AND key = ? AND next_at = ?"

_encode_schedule = msgspec.json.Encoder().encode
_decode_schedule = msgspec.json.Decoder(JobSchedule).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def put_schedule(session: WriterSession, queue: SqliteQueue, schedule: JobSchedule) -> None:
    """Store a schedule, instead of the one with its key if there is one."""
    row = (queue.id, schedule.key, schedule.next_at, _encode_schedule(schedule))
    session.connection.execute(_PUT_SCHEDULE, row)


def list_schedules(
    connection: sqlite3.Connection, queue: SqliteQueue, now: int
) -> list[JobSchedule]:
    """All schedules that can be read, by the time when they are due next."""
    found: list[JobSchedule] = []
    for next_at, value in connection.execute(_LIST_SCHEDULES, (queue.id,)):
        try:
            schedule = _decode_schedule(value)
        except _UNREADABLE:
            continue  # another program wrote it; `remove_schedule` deletes it by its key
        found.append(msgspec.structs.replace(schedule, next_at=next_at))
    return sorted(found, key=lambda schedule: schedule.next_at)


def remove_schedule(session: WriterSession, queue: SqliteQueue, key: str) -> bool:
    """Forget a schedule; False if there is none with that key."""
    return session.connection.execute(_REMOVE_SCHEDULE, (queue.id, key)).rowcount > 0


def fire_schedule(
    session: WriterSession,
    queue: SqliteQueue,
    schedule: JobSchedule,
    next_at: float,
    messages: Sequence[Message],
) -> bool:
    """Add jobs and set when the next ones are due; False if another process has done it."""
    place = (next_at, queue.id, schedule.key, schedule.next_at)
    if not session.connection.execute(_FIRE_SCHEDULE, place).rowcount:
        return False
    add(session, messages)  # an id that is taken is left out
    return True
