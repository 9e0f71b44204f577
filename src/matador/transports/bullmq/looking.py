"""Looks at a queue, or at its dead letters, from outside: browse, take, purge, depth."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from secrets import token_hex
from typing import Any, TypeAlias

from matador.errors import MatadorError
from matador.model.message import Delivery, MessageState, QueueDepth, StoredMessage
from matador.model.topology import DEAD_LETTER_KINDS
from matador.transports.bullmq.errors import is_wrong_type
from matador.transports.bullmq.jobs import LATEST, Job, number, parts_of
from matador.transports.bullmq.link import Link, Session
from matador.transports.bullmq.names import id_text
from matador.transports.bullmq.queues import Place
from matador.transports.bullmq.schedulers import go_on
from matador.transports.bullmq.scripts import Call
from matador.transports.bullmq.taking import Failed

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

Row: TypeAlias = tuple[int, str, MessageState]
"""A job: when it was sent, its id, its state."""


async def browse(
    link: Link, session: Session, name: str, place: Place, after: str | None, limit: int | None
) -> AsyncIterator[StoredMessage]:
    """The jobs of a queue in order of sending; dead letters in order of failing.

    BullMQ has no order over all states: the ids of all jobs are read and sorted first.
    """
    list_all = _waiting if place.kind is None else _failed
    rows = await list_all(link, session, place)
    if after is not None:
        rows = _behind(rows, after)
    left = len(rows) if limit is None else limit
    for start in range(0, len(rows), _PAGE):
        page = rows[start : start + min(_PAGE, left)]
        scripts = session.scripts(place.queue)
        answers = await _run(
            link, session, [("HGETALL", scripts.job_key(id_)) for _, id_, _ in page]
        )
        for (_, id_, state), flat in zip(page, answers, strict=True):
            if flat and not is_wrong_type(flat):
                yield Job(id_, flat).stored(name, place, state)
                left -= 1
        if left <= 0:
            return


async def take(
    link: Link, session: Session, name: str, place: Place, positions: Sequence[str], lease: float
) -> list[Delivery]:
    """Take exactly these jobs; what others hold is left out."""
    ids = [parts_of(position)[1] for position in positions]
    if not ids:
        return []
    if place.kind is not None:
        return await Failed(link, name, place, lease=lease).hold(session, len(ids), ids)
    scripts, token, now = session.scripts(place.queue), token_hex(12), session.now()
    lock = round(lease * 1000)
    rows = await _run(link, session, [scripts.take(id_, token, now, lock) for id_ in ids])
    jobs = [(Job(id_, row[0]), row[1]) for id_, row in zip(ids, rows, strict=True) if row]
    still = await go_on(link, session, place.queue, [job for job, _ in jobs])
    return [job.delivery(name, place, token, due) for job, due in jobs if job.id not in still]


async def purge(link: Link, session: Session, place: Place) -> int:
    """Remove all jobs that nobody holds; say how many there were."""
    scripts = session.scripts(place.queue)
    if place.kind is None:
        states = [state for state in _STATES if state != "active"]
        counts, emptied = await link.run_together(
            session, [scripts.counts(*states), scripts.empty()]
        )
        for answer in (counts, emptied):
            if isinstance(answer, MatadorError):
                raise answer
        return sum(counts)
    rows = await _failed(link, session, place)
    free = [id_ for _, id_, state in rows if state == "ready"]
    removed = await _run(link, session, [scripts.forget(id_) for id_ in free])
    return sum(answer == 1 for answer in removed)


async def depth(link: Link, session: Session, place: Place) -> QueueDepth:
    """How many jobs are in which state."""
    if place.kind is not None:
        states = [state for _, _, state in await _failed(link, session, place)]
        held = states.count("in-flight")
        return QueueDepth(ready=len(states) - held, in_flight=held)
    (counts,) = await _run(link, session, [session.scripts(place.queue).counts(*_STATES)])
    found = dict(zip(_STATES, counts, strict=True))
    return QueueDepth(
        ready=found["wait"] + found["paused"] + found["prioritized"],
        delayed=found["delayed"],
        in_flight=found["active"],
    )


async def _waiting(link: Link, session: Session, place: Place) -> list[Row]:
    """All jobs that are not finished, in order of sending."""
    scripts = session.scripts(place.queue)
    (ranges,) = await _run(link, session, [scripts.ranges(*_STATES)])
    found: list[tuple[str, MessageState]] = []
    for name, ids in zip(_STATES, ranges, strict=True):
        ordered: list[bytes] = ids[::-1] if name in _LISTS else ids
        state = _STATES[name]
        found.extend((id_text(id_), state) for id_ in ordered)
    sent = await _run(
        link, session, [("HGET", scripts.job_key(id_), "timestamp") for id_, _ in found]
    )
    rows: list[Row] = [
        (number(at, LATEST), id_, state)
        for (id_, state), at in zip(found, sent, strict=True)
        if not is_wrong_type(at)
    ]
    return sorted(rows, key=lambda row: row[0])  # within a millisecond: as they are stored


async def _failed(link: Link, session: Session, place: Place) -> list[Row]:
    """The failed jobs of a kind, in order of failing."""
    scripts = session.scripts(place.queue)
    (ranges,) = await _run(link, session, [scripts.ranges("failed")])
    ids = [id_text(id_) for id_ in ranges[0]]
    facts = await _run(
        link,
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
    rows: list[Row] = []
    for id_, found, held in zip(ids, facts[::2], facts[1::2], strict=True):
        if is_wrong_type(found):
            continue
        kind, sent = found
        # A job that somebody else has failed names no kind.
        if _KINDS.get(kind, "undeliverable") == place.kind:
            rows.append((number(sent, LATEST), id_, "in-flight" if held else "ready"))
    return rows


def _behind(rows: list[Row], after: str) -> list[Row]:
    sent, id_ = parts_of(after)
    for index, row in enumerate(rows):
        if row[1] == id_:
            return rows[index + 1 :]
    # It is gone. Those of the same millisecond may have been seen, but none is left out.
    return [row for row in rows if row[0] >= sent]


async def _run(link: Link, session: Session, calls: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
    answers: list[Any] = []
    for start in range(0, len(calls), _PAGE):
        answers += await link.run(session, calls[start : start + _PAGE])
    for answer in answers:
        if isinstance(answer, MatadorError) and not is_wrong_type(answer):
            raise answer
    return answers
