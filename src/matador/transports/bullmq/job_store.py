"""Finds, lists, counts and changes the jobs of job queues, as BullMQ itself does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matador.errors import (
    JobNotFoundError,
    JobStateError,
    MessageTooLargeError,
)
from matador.model.job import JobCounts, JobRecord, JobStatus
from matador.model.message import Receipt
from matador.transports.bullmq.calls import BELONGS_TO_SCHEDULE
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.jobs import NativeJob, hold_of, number
from matador.transports.bullmq.scripts import Call
from matador.transports.bullmq.topology import JobSet, Queues
from matador.transports.bullmq.wire import id_bytes, id_text
from matador.transports.kit.errors import lease_lost

_MOST_EACH = 200
_MOST_BYTES = 1 << 20
_PAGE = 500
_TRIES = 20
_CANCELING = 5000  # ms for which a job without a worker is held to be canceled
_SCORE = 0x1000  # of delayed jobs: the time in ms, times this

_WAITING = ("wait", "paused", "prioritized", "waiting-children")
_LISTS = ("wait", "paused", "active")
_STATES: dict[JobStatus, tuple[str, ...]] = {
    "waiting": _WAITING,
    "delayed": ("delayed",),
    "active": ("active",),
    "completed": ("completed",),
    "failed": ("failed",),
}
_STATUS: dict[bytes, JobStatus] = {
    b"delayed": "delayed",
    b"active": "active",
    b"completed": "completed",
    b"failed": "failed",
}
"""What BullMQ calls otherwise is waiting."""


# -- looking ---------------------------------------------------------------------------------------


async def find_jobs(
    session: BullMQSession, jobs: JobSet, ids: Sequence[str]
) -> list[JobRecord | None]:
    """For each id, in order: the job, or None."""
    scripts = session.scripts(jobs.queue)
    found: list[JobRecord | None] = []
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        calls: list[Call | tuple[Any, ...]] = []
        for id_ in page:
            calls.append(("HGETALL", scripts.job_key(id_)))
            calls.append(scripts.state(id_))
            calls.append(("ZSCORE", scripts.key("delayed"), id_bytes(id_)))
        answers = await session.ask_all(calls, together=True)
        rows = zip(page, answers[::3], answers[1::3], answers[2::3], strict=True)
        found += [
            _record(jobs, id_, fields, _STATUS.get(state, "waiting"), score)
            for id_, fields, state, score in rows
        ]
    return found


async def list_jobs(
    session: BullMQSession, jobs: JobSet, status: JobStatus, limit: int, skip: int
) -> list[JobRecord]:
    """Jobs in one state: finished ones the latest first, others as they would run."""
    if limit <= 0:
        return []
    scripts, last = session.scripts(jobs.queue), skip + limit - 1
    ascending = status not in ("completed", "failed")
    states = _STATES[status]
    (ranges,) = await session.ask_all([scripts.range(states, last, ascending=ascending)])
    ids: list[str] = []
    for state, some in zip(states, ranges, strict=True):
        ids += [id_text(id_) for id_ in (reversed(some) if state in _LISTS else some)]
    page = ids[skip : skip + limit]
    calls: list[Call | tuple[Any, ...]] = [("HGETALL", scripts.job_key(id_)) for id_ in page]
    if status == "delayed":
        calls += [("ZSCORE", scripts.key("delayed"), id_bytes(id_)) for id_ in page]
    answers = await session.ask_all(calls)
    scores = answers[len(page) :] or [None] * len(page)
    rows = zip(page, answers[: len(page)], scores, strict=True)
    records = (_record(jobs, id_, fields, status, score) for id_, fields, score in rows)
    return [record for record in records if record is not None]


def _record(
    jobs: JobSet, id_: str, fields: Sequence[bytes] | None, status: JobStatus, score: bytes | None
) -> JobRecord | None:
    if not fields:
        return None
    due = 0 if score is None else int(float(score) // _SCORE)
    return NativeJob(id_, fields).record(jobs.queue, status, due)


async def count_jobs(session: BullMQSession, jobs: JobSet) -> JobCounts:
    """How many jobs are in which state."""
    scripts = session.scripts(jobs.queue)
    states = (*_WAITING, "delayed", "active", "completed", "failed")
    found, paused, completed, failed = await session.ask_all(
        [
            scripts.counts(*states),
            ("HEXISTS", scripts.key("meta"), "paused"),
            ("HGET", scripts.key("") + "metrics:completed", "count"),
            ("HGET", scripts.key("") + "metrics:failed", "count"),
        ],
    )
    (clients,) = await session.run([("CLIENT", "LIST")])
    counts = dict(zip(states, found, strict=True))
    return JobCounts(
        waiting=sum(counts[state] for state in _WAITING),
        delayed=counts["delayed"],
        active=counts["active"],
        completed=counts["completed"],
        failed=counts["failed"],
        paused=paused == 1,
        all_completed=max(number(completed), counts["completed"]),
        all_failed=max(number(failed), counts["failed"]),
        workers=_workers(clients, scripts.worker_name) if isinstance(clients, bytes) else None,
    )


def _workers(clients: bytes, name: str) -> int:
    """How many workers wait for jobs, by the names of their connections. Some add one of their own:
    ``bull:ZW1haWxz:w:mine``."""
    named, own = f" name={name} ".encode(), f" name={name}:w:".encode()
    return sum(1 for line in clients.splitlines() if named in line or own in line)


# -- changing --------------------------------------------------------------------------------------


async def retry_job(session: BullMQSession, jobs: JobSet, id_: str) -> None:
    """Make a failed job wait again."""
    scripts = session.scripts(jobs.queue)
    answer, state = await session.ask_all([scripts.retry_failed(id_), scripts.state(id_)])
    if answer == -1:
        raise _not_found(jobs, id_)
    if answer != 1:
        status = _STATUS.get(state, "waiting")
        held = "being redriven" if status == "failed" else f"{status}, not failed"
        raise JobStateError(
            f"job {id_!r} of {jobs.queue!r} is {held}", queue=jobs.queue, job_id=id_
        )


async def remove_job(session: BullMQSession, jobs: JobSet, id_: str) -> None:
    """Remove a job that is not active."""
    scripts = session.scripts(jobs.queue)
    there, answer = await session.ask_all(
        [("EXISTS", scripts.job_key(id_)), scripts.remove_job(id_)], together=True
    )
    if not there:
        raise _not_found(jobs, id_)
    if answer != 1:
        why = (
            "the next one of a schedule; remove the schedule instead"
            if answer == BELONGS_TO_SCHEDULE
            else "active; it cannot be removed now"
        )
        raise JobStateError(f"job {id_!r} of {jobs.queue!r} is {why}", queue=jobs.queue, job_id=id_)


async def cancel_job(session: BullMQSession, jobs: JobSet, id_: str, reason: str) -> bool:
    """Remove a job that waits, or fail one that is active. False: it is finished."""
    scripts = session.scripts(jobs.queue)
    for _ in range(_TRIES):  # until its state is still the same when it is changed
        fields, state, lock = await session.ask_all(
            [
                ("HGETALL", scripts.job_key(id_)),
                scripts.state(id_),
                ("GET", scripts.lock_key(id_)),
            ],
            together=True,
        )
        if not fields:
            raise _not_found(jobs, id_)
        if state in (b"completed", b"failed"):
            return False
        if state != b"active":
            try:
                await remove_job(session, jobs, id_)
            except JobStateError as error:
                if "schedule" in str(error):
                    raise
                continue
            return True
        if lock is None:  # its worker is dead; hold it, so that no other worker takes it
            lock = f"matador-cancel-{session.next_now()}".encode()
            await session.ask("SET", scripts.lock_key(id_), lock, "NX", "PX", _CANCELING)
        job = NativeJob(id_, fields)
        call = scripts.finish(
            id_,
            lock.decode(errors="replace"),
            session.next_now(),
            "failed",
            reason.encode(errors="replace"),
            keep=job.keep_failed,
            attempts=job.max_attempts,
            fields=job.canceled(reason),
        )
        (answer,) = await session.ask_all([call])
        if answer == 0:
            return True
    raise JobStateError(
        f"job {id_!r} of {jobs.queue!r} changed its state at each of {_TRIES} tries to cancel it",
        queue=jobs.queue,
        job_id=id_,
    )


async def set_progress(session: BullMQSession, receipt: Receipt, progress: bytes) -> None:
    """Note how far an active job has come."""
    hold = hold_of(receipt)
    if hold is None:
        raise lease_lost(receipt.queue)
    if len(progress) > session.largest:
        raise MessageTooLargeError(len(progress), session.largest, what="progress")
    call = session.scripts(hold.queue).progress(hold.id, hold.token, progress)
    (answer,) = await session.ask_all([call])
    if answer != 0:
        raise lease_lost(receipt.queue)


async def pause_jobs(session: BullMQSession, jobs: JobSet) -> None:
    """Pause a queue: no worker takes a job."""
    await session.ask_all([session.scripts(jobs.queue).pause_queue()])


async def is_paused(session: BullMQSession, jobs: JobSet) -> bool:
    """Whether no worker takes a job."""
    key = session.scripts(jobs.queue).key("meta")
    (paused,) = await session.ask_all([("HEXISTS", key, "paused")])
    return paused == 1


async def resume_jobs(session: BullMQSession, jobs: JobSet) -> None:
    """End a pause."""
    left = 1
    while left:  # some thousand at a time
        (left,) = await session.ask_all([session.scripts(jobs.queue).resume_queue()])


async def delete_jobs(session: BullMQSession, queues: Queues, jobs: JobSet) -> None:
    """Delete all jobs, and what BullMQ stores about them."""
    scripts = session.scripts(jobs.queue)
    await _forget_parents(session, jobs)
    left = 1
    while left:  # a thousand at a time; it is paused meanwhile
        answers = await session.ask_all([scripts.pause_queue(), scripts.delete_some()])
        left = answers[-1]
    pattern = "".join(f"\\{one}" if one in "*?[]^\\" else one for one in scripts.key(""))
    for kind in ("de", "dn"):  # unique keys of jobs that are gone
        await _forget(session, f"{pattern}{kind}:*")
    await session.ask_all([("DEL", scripts.key("limiter"))])
    await queues.open_jobs(session, jobs.queue)


async def _forget(session: BullMQSession, pattern: str) -> None:
    cursor: Any = 0
    while True:
        cursor, keys = await session.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        if keys:
            await session.ask("UNLINK", *keys)
        if not int(cursor):
            return


async def _forget_parents(session: BullMQSession, jobs: JobSet) -> None:
    """Remove jobs that wait for children: BullMQ's script leaves them alone."""
    scripts = session.scripts(jobs.queue)
    (ids,) = await session.ask_all([("ZRANGE", scripts.key("waiting-children"), 0, -1)])
    await session.ask_all([scripts.remove_job(id_text(id_)) for id_ in ids])


def _not_found(jobs: JobSet, id_: str) -> JobNotFoundError:
    return JobNotFoundError(
        f"queue {jobs.queue!r} has no job {id_!r}", queue=jobs.queue, job_id=id_
    )


async def child_results(
    session: BullMQSession, jobs: JobSet, id_: str
) -> Mapping[str, bytes | None]:
    """What the children of a job returned, by their ids; those of other queues by their keys."""
    scripts = session.scripts(jobs.queue)
    (answer,) = await session.ask_all([("HGETALL", scripts.job_key(id_) + b":processed")])
    found: Mapping[bytes, bytes] = answer or {}
    prefix = scripts.key("").encode()
    return {id_text(key.removeprefix(prefix)): value for key, value in found.items()}
