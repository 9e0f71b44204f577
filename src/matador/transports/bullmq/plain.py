"""Calls of small scripts of our own for plain jobs, which are most jobs.

A plain job has no delay, no priority, no unique key, no parent and no children. BullMQ's scripts
handle everything that may be asked of a job; for a plain one that is several times the work. These
scripts leave the same behind, for many jobs at once. They refuse what is not plain, or not as it
should be, before they change anything: BullMQ's own scripts, with their guard, take those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from matador.model import job as names
from matador.model.message import Headers, Message
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.jobs import JobHold
from matador.transports.bullmq.native import template
from matador.transports.bullmq.scripts import LIMIT, REMOVE, Argument, Call, Keep
from matador.transports.bullmq.wire import id_bytes, id_text
from matador.transports.kit.jobs import DEFAULT_NAME

MOST = 50
"""How many jobs one call handles at most: the server does nothing else meanwhile."""

_ANY = -1
_MOST_OLD = 1000  # jobs that one call deletes because of their age, as BullMQ has it

ASK_BULLMQ = 1
"""The answer for a job that takes BullMQ's own script."""

_ONE_JOB = frozenset({names.ID, names.NAME, names.CREATED_AT})
_PLAIN = frozenset(
    {*_ONE_JOB, names.MAX_ATTEMPTS, names.BACKOFF, names.KEEP_COMPLETED, names.KEEP_FAILED}
)
_encode = msgspec.json.Encoder().encode


class Taken(NamedTuple):
    """What ``take`` brought: jobs with their ids, tokens and fields.

    ``ask_bullmq``: the next one takes BullMQ's own script. ``due``: when the next delayed job is
    due, in ms, if nothing else waits; 0: there is none.
    """

    jobs: list[tuple[str, str, Sequence[bytes]]]
    ask_bullmq: bool
    due: int


NOTHING = Taken([], True, 0)
"""Nothing: BullMQ's own script may find something."""


# -- adding ----------------------------------------------------------------------------------------


def options_of(message: Message) -> bytes | None:
    """The options of the job for a message, as JSON; None: it is not a plain job."""
    headers = message.headers
    if message.delay or message.priority is not None or not _PLAIN.issuperset(headers):
        return None
    start = _options(
        headers.get(names.MAX_ATTEMPTS),
        headers.get(names.BACKOFF),
        headers.get(names.KEEP_COMPLETED),
        headers.get(names.KEEP_FAILED),
    )
    return b"%b%b}" % (start, _encode(message.id))


@lru_cache(maxsize=256, typed=True)  # most jobs have the same
def _options(*values: str | int | None) -> bytes:
    """All options but the id of the job, which comes behind them."""
    given = (names.MAX_ATTEMPTS, names.BACKOFF, names.KEEP_COMPLETED, names.KEEP_FAILED)
    headers: Headers = {
        name: value for name, value in zip(given, values, strict=True) if value is not None
    }
    return _encode({**template(headers), "delay": 0})[:-1] + b',"jobId":'


def add(
    session: BullMQSession, queue: str, jobs: Sequence[tuple[Message, bytes]], now: int
) -> Call:
    """Add jobs, given with their options. Answers with a list of 0 or ``TAKEN``, or with None."""
    scripts = session.scripts(queue)
    arguments: list[Argument] = [scripts.start, now]
    for message, options in jobs:
        name = message.headers.get(names.NAME) or DEFAULT_NAME
        arguments += (id_bytes(message.id), str(name), message.body, options)
    return Call("add_plain", scripts.keys_of("wait meta id events marker"), arguments)


# -- taking ----------------------------------------------------------------------------------------


def take(session: BullMQSession, queue: str, most: int, owner: str, first: int, lock: int) -> Call:
    """Take up to ``most`` jobs. Their tokens begin with ``owner``, and are counted from ``first``.

    The call may wait in line: the server says what time it is. See ``taken`` for its answer.
    """
    scripts = session.scripts(queue)
    keys = scripts.keys_of("wait active prioritized events delayed meta pc marker")
    return Call("take_plain", keys, [scripts.start, most, lock, owner, first])


def taken(answer: Sequence[Any], owner: str, first: int) -> Taken:
    """What the answer of ``take`` says."""
    jobs = [
        (id_text(answer[at]), f"{owner}:{first + number}", answer[at + 1])
        for number, at in enumerate(range(2, len(answer), 2))
    ]
    return Taken(jobs, answer[0] == ASK_BULLMQ, answer[1])


# -- completing ------------------------------------------------------------------------------------


def can_complete(hold: JobHold) -> bool:
    """Whether a job may be a plain one when it is completed; the script looks closer."""
    return hold.native is not None and not hold.failed


def complete(
    session: BullMQSession, queue: str, keep: Keep, jobs: Sequence[tuple[str, str, bytes]]
) -> Call:
    """Complete jobs, given with their tokens and results, that are all kept alike. Answers with a
    list: 0, ``ASK_BULLMQ``, or a negative number if a job is not held any more."""
    scripts = session.scripts(queue)
    limits: Sequence[Argument] = (_ANY, _ANY, LIMIT)
    if keep is REMOVE:
        limits = (_ANY, 0, LIMIT)
    elif isinstance(keep, dict):
        limits = (keep.get("age", _ANY), keep.get("count", _ANY), keep.get("limit", _MOST_OLD))
    elif keep is not False and keep >= 0:
        limits = (_ANY, keep, LIMIT)
    now = session.now() if limits[1] == 0 else session.almost_now()
    arguments: list[Argument] = [scripts.start, now, *limits]
    for id_, token, result in jobs:
        arguments += (id_bytes(id_), token, result)
    keys = scripts.keys_of("active events stalled meta wait prioritized completed")
    return Call("finish_plain", [*keys, scripts.start + b"metrics:completed"], arguments)
