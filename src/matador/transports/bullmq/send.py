"""Adds jobs, many at once.

BullMQ ignores a job whose id is taken, and does not say so. A message may be sent again under its
id on purpose (a redrive), so the same transaction checks whether the id was free, and a job that
was ignored is added under another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from matador.errors import (
    MatadorError,
    MessageTooLargeError,
    UnstorableError,
    UnsupportedError,
)
from matador.model.message import Message
from matador.transports.bullmq import wire
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.native import milliseconds, new_job
from matador.transports.bullmq.scripts import Call
from matador.transports.bullmq.topology import JobSet, Queues
from matador.transports.bullmq.wire import bull_priority, job_id
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

_MOST_EACH = 100
_MOST_BYTES = 1 << 20


async def store(
    session: BullMQSession, queues: Queues, messages: Sequence[Message]
) -> list[MatadorError | None]:
    """Add a job for each message; for each None, or why it is not stored."""
    outcomes: list[MatadorError | None] = [None] * len(messages)
    waiting: list[tuple[int, JobSet]] = []
    size = 0
    for index, message in enumerate(messages):
        jobs = await queues.find_or_none(session, message.queue)
        if isinstance(jobs, MatadorError):
            outcomes[index] = jobs
            continue
        if jobs.kind is not None:
            outcomes[index] = UnsupportedError(
                f"cannot send to {message.queue!r}: these are the failed jobs of {jobs.queue!r}; "
                f"send to that queue"
            )
            continue
        waiting.append((index, jobs))
        size += len(message.body)
        if len(waiting) >= _MOST_EACH or size >= _MOST_BYTES:
            await _store(session, messages, waiting, outcomes)
            waiting, size = [], 0
    if waiting:
        await _store(session, messages, waiting, outcomes)
    return outcomes


async def _store(
    session: BullMQSession,
    messages: Sequence[Message],
    found: Sequence[tuple[int, JobSet]],
    outcomes: list[MatadorError | None],
) -> None:
    calls: list[Call | tuple[str, str | bytes]] = []
    sent: list[tuple[int, JobSet]] = []
    for index, jobs in found:
        message = messages[index]
        id_ = job_id(message.id)
        try:
            call = add(session, jobs, message, id_)
        except (*UNWRITABLE, UnstorableError) as error:
            outcomes[index] = unstorable(f"message {message.id!r}", error)
            continue
        scripts = session.scripts(jobs.queue)
        calls += (("EXISTS", scripts.job_key(id_) if id_ else scripts.key("") + "-"), call)
        sent.append((index, jobs))
    if not calls:
        return
    try:
        answers = await session.run_together(calls)
    except MatadorError as error:
        for index, _ in sent:
            outcomes[index] = error
        return
    ignored: list[tuple[int, JobSet]] = []
    for (index, jobs), taken, answer in zip(sent, answers[::2], answers[1::2], strict=True):
        if isinstance(answer, MatadorError):
            outcomes[index] = answer
        elif taken == 1:
            ignored.append((index, jobs))
    if ignored:
        again = [
            add(session, jobs, messages[index], other_id(messages[index]))
            for index, jobs in ignored
        ]
        try:
            answers = await session.run(again)
        except MatadorError as error:
            for index, _ in ignored:
                outcomes[index] = error
            return
        for (index, _), answer in zip(ignored, answers, strict=True):
            outcomes[index] = answer if isinstance(answer, MatadorError) else None


def add(session: BullMQSession, jobs: JobSet, message: Message, id_: str) -> Call:
    """The call that adds a job for a message.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: it cannot be written.
        MessageTooLargeError: it is too large for the server.
    """
    scripts, now = session.scripts(jobs.queue), session.now()
    if jobs.native:
        job = new_job(message, session.largest, prioritized=jobs.priorities)
        return scripts.add_job(id_, job, now)
    return scripts.add(
        id_,
        wire.name_of(message),
        data_of(session, message),
        now,
        delay=milliseconds(message.delay),
        priority=bull_priority(message.priority) if jobs.priorities else 0,
    )


def data_of(session: BullMQSession, message: Message) -> str:
    """The data of the job for a message. Raises as ``add`` does."""
    data = wire.written(message)
    # A character has up to four bytes; the server drops the connection of a larger value.
    if len(data) * 4 > session.largest and (size := len(data.encode())) > session.largest:
        raise MessageTooLargeError(size, session.largest, what="job")
    return data


def other_id(message: Message) -> str:
    """An id for a job whose message's id is taken."""
    return f"{message.id}~{token_hex(6)}"
