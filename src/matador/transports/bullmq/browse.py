"""Reads a queue, or its dead letters, without consuming: browse, take, purge, depth."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from secrets import token_hex
from typing import Any, TypeAlias

from matador.errors import MatadorError
from matador.model.message import Delivery, MessageState, QueueDepth, StoredMessage
from matador.model.topology import DEAD_LETTER_KINDS
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.jobs import LATEST, job_of, number, parts_of
from matador.transports.bullmq.schedules import continue_schedulers
from matador.transports.bullmq.scripts import Call
from matador.transports.bullmq.sources import FailedJobs
from matador.transports.bullmq.topology import JobSet
from matador.transports.bullmq.wire import id_text

_PAGE = 500
_STATES: dict[str, MessageState] = {
    "active": "in-flight",
    "wait": "ready",
    "paused": "ready",
    "prioritized": "ready",
    "delayed": "delayed",
}
_LISTS = ("active", "wait", "paused")
_KIND = "matador-kind"
_KINDS = {kind.encode(): kind for kind in DEAD_LETTER_KINDS}

JobRow: TypeAlias = tuple[int, str, MessageState]
"""A job: when it was sent, its id, its state."""


async def browse(
    session: BullMQSession, jobs: JobSet, after: str | None, limit: int | None
) -> AsyncIterator[StoredMessage]:
    """The jobs of a queue in order of sending; dead letters in order of failing.

    BullMQ has no order over all states: the ids of all jobs are read and sorted first.
    """
    list_all = _waiting if jobs.kind is None else _failed
    rows = await list_all(session, jobs)
    if after is not None:
        rows = _behind(rows, after)
    left = len(rows) if limit is None else limit
    scripts, start = session.scripts(jobs.queue), 0
    while left > 0 and start < len(rows):
        page = rows[start : start + min(_PAGE, left)]
        start += len(page)
        answers = await _ask(session, [("HGETALL", scripts.job_key(id_)) for _, id_, _ in page])
        for (_, id_, state), flat in zip(page, answers, strict=True):
            if flat:
                yield job_of(jobs, id_, flat).stored(jobs, state)
                left -= 1


async def take(
    session: BullMQSession, jobs: JobSet, positions: Sequence[str], lease: float
) -> list[Delivery | None]:
    """Take exactly these jobs; for each its delivery, None if another worker holds it."""
    ids = [parts_of(position)[1] for position in positions]
    if not ids:
        return []
    if jobs.kind is not None:
        failed = await FailedJobs(jobs, lease=lease).hold(session, len(ids), ids)
        return [failed.pop(id_, None) for id_ in ids]
    scripts, token, now = session.scripts(jobs.queue), token_hex(12), session.now()
    lock = round(lease * 1000)
    rows = await _ask(session, [scripts.take(id_, token, now, lock) for id_ in ids])
    taken = [(job_of(jobs, id_, row[0]), row[1]) for id_, row in zip(ids, rows, strict=True) if row]
    still = await continue_schedulers(session, jobs.queue, [job for job, _ in taken])
    found = {job.id: job.delivery(jobs, token, due) for job, due in taken if job.id not in still}
    return [found.pop(id_, None) for id_ in ids]


async def purge(session: BullMQSession, jobs: JobSet) -> int:
    """Remove all jobs that no worker holds; return how many there were."""
    scripts = session.scripts(jobs.queue)
    if jobs.kind is None:
        states = [state for state in _STATES if state != "active"]
        counts, emptied = await session.run_together(
            [scripts.counts(*states), scripts.drain_waiting()]
        )
        for answer in (counts, emptied):
            if isinstance(answer, MatadorError):
                raise answer
        return sum(counts)
    rows = await _failed(session, jobs)
    free = [id_ for _, id_, state in rows if state == "ready"]
    removed = await _ask(session, [scripts.remove_failed(id_) for id_ in free])
    return sum(answer == 1 for answer in removed)


async def depth(session: BullMQSession, jobs: JobSet) -> QueueDepth:
    """How many jobs are in which state."""
    if jobs.kind is not None:
        states = [state for _, _, state in await _failed(session, jobs)]
        held = states.count("in-flight")
        return QueueDepth(ready=len(states) - held, in_flight=held)
    (counts,) = await _ask(session, [session.scripts(jobs.queue).counts(*_STATES)])
    found = dict(zip(_STATES, counts, strict=True))
    return QueueDepth(
        ready=found["wait"] + found["paused"] + found["prioritized"],
        delayed=found["delayed"],
        in_flight=found["active"],
    )


async def _waiting(session: BullMQSession, jobs: JobSet) -> list[JobRow]:
    """All jobs that are not finished, in order of sending."""
    scripts = session.scripts(jobs.queue)
    (ranges,) = await _ask(session, [scripts.ranges(*_STATES)])
    found: list[tuple[str, MessageState]] = []
    for name, ids in zip(_STATES, ranges, strict=True):
        ordered: list[bytes] = ids[::-1] if name in _LISTS else ids
        state = _STATES[name]
        found.extend((id_text(id_), state) for id_ in ordered)
    sent = await _ask(session, [("HGET", scripts.job_key(id_), "timestamp") for id_, _ in found])
    rows: list[JobRow] = [
        (number(at, LATEST), id_, state) for (id_, state), at in zip(found, sent, strict=True)
    ]
    return sorted(rows, key=lambda row: row[0])  # within a millisecond: in stored order


async def _failed(session: BullMQSession, jobs: JobSet) -> list[JobRow]:
    """The failed jobs of a kind, in order of failing."""
    scripts = session.scripts(jobs.queue)
    (ranges,) = await _ask(session, [scripts.ranges("failed")])
    ids = [id_text(id_) for id_ in ranges[0]]
    facts = await _ask(
        session,
        [
            command
            for id_ in ids
            for command in (
                ("HMGET", scripts.job_key(id_), _KIND, "timestamp"),
                ("EXISTS", scripts.lock_key(id_)),
            )
        ],
    )
    rows: list[JobRow] = []
    for id_, found, held in zip(ids, facts[::2], facts[1::2], strict=True):
        if found is None:
            continue
        kind, sent = found
        # A job that another worker has failed has no kind.
        if _KINDS.get(kind, "undeliverable") == jobs.kind:
            rows.append((number(sent, LATEST), id_, "in-flight" if held else "ready"))
    return rows


def _behind(rows: list[JobRow], after: str) -> list[JobRow]:
    sent, id_ = parts_of(after)
    for index, row in enumerate(rows):
        if row[1] == id_:
            return rows[index + 1 :]
    # The job is gone. Some of its millisecond may be listed again, but none is left out.
    return [row for row in rows if row[0] >= sent]


async def _ask(session: BullMQSession, calls: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
    """The replies, some calls at a time; None for a key of another type."""
    answers: list[Any] = []
    for start in range(0, len(calls), _PAGE):
        answers += await session.ask_all(calls[start : start + _PAGE])
    return answers
