"""Adds jobs, many at once: those of messages, those of job queues, and flows.

BullMQ ignores a job whose id is taken, and does not say so. A message may be sent again under its
id on purpose (a redrive), so the same transaction checks whether the id was free, and a job that
was ignored is added under another one.

A flow is a set of jobs of which a parent waits for its children. A child that fails for good fails
its parent, as with BullMQ's option ``failParentOnFailure``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import TypeAlias

from redis.exceptions import WatchError

from matador.errors import (
    DuplicateJobError,
    MatadorError,
    MessageTooLargeError,
    TransportError,
    UniqueJobError,
    UnstorableError,
    UnsupportedError,
)
from matador.model import job as names
from matador.model.message import Message
from matador.transports.bullmq import plain, wire
from matador.transports.bullmq.calls import NEEDS_PRIORITY, TAKEN
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.native import check_json, milliseconds, new_job
from matador.transports.bullmq.scripts import Call
from matador.transports.bullmq.topology import JobSet, Queues
from matador.transports.bullmq.wire import bull_priority, id_bytes, id_text, job_id
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

_MOST_MESSAGES, _MOST_JOBS = 100, 200  # at once: the server does nothing else meanwhile
_MOST_BYTES = 1 << 20
_TRIES = 20
_PRIORITIES = "matador-priorities"


Find: TypeAlias = Callable[[str], Awaitable[JobSet]]
Add: TypeAlias = Callable[
    [Sequence[tuple[int, JobSet]], list[MatadorError | None]], Awaitable[None]
]


async def store(
    session: BullMQSession, queues: Queues, messages: Sequence[Message]
) -> list[MatadorError | None]:
    """Add a job for each message; for each None, or why it is not stored."""

    async def find(name: str) -> JobSet:
        jobs = await queues.find(session, name)
        if jobs.kind is not None:
            raise UnsupportedError(
                f"cannot send to {name!r}: these are the failed jobs of {jobs.queue!r}; "
                f"send to that queue"
            )
        return jobs

    return await _in_batches(messages, _MOST_MESSAGES, find, partial(_store, session, messages))


async def add_jobs(
    session: BullMQSession, queues: Queues, messages: Sequence[Message]
) -> list[MatadorError | None]:
    """Add jobs to job queues; for each None, or why it was not added."""
    find, add = partial(queues.find_jobs, session), partial(_add_some, session, queues, messages)
    return await _in_batches(messages, _MOST_JOBS, find, add)


async def _in_batches(
    messages: Sequence[Message], most: int, find: Find, add: Add
) -> list[MatadorError | None]:
    """Find the queue of each message, and add as many at once as the server should take."""
    outcomes: list[MatadorError | None] = [None] * len(messages)
    waiting: list[tuple[int, JobSet]] = []
    size = 0
    for index, message in enumerate(messages):
        try:
            waiting.append((index, await find(message.queue)))
        except MatadorError as error:
            outcomes[index] = error
            continue
        size += len(message.body)
        if len(waiting) >= most or size >= _MOST_BYTES:
            await add(waiting, outcomes)
            waiting, size = [], 0
    if waiting:
        await add(waiting, outcomes)
    return outcomes


# -- messages --------------------------------------------------------------------------------------


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


# -- jobs of job queues ----------------------------------------------------------------------------


async def _add_some(
    session: BullMQSession,
    queues: Queues,
    messages: Sequence[Message],
    found: Sequence[tuple[int, JobSet]],
    outcomes: list[MatadorError | None],
) -> None:
    """Add jobs: plain ones by a script of ours, others by BullMQ's own."""
    others: list[tuple[int, JobSet]] = []
    plain_jobs: dict[JobSet, list[tuple[int, bytes]]] = {}
    for index, jobs in found:
        message = messages[index]
        if not job_id(message.id):
            outcomes[index] = not_an_id(message.id)
            continue
        try:
            check_json(message)
            options = None if jobs.priorities else plain.options_of(message)
        except (*UNWRITABLE, UnstorableError) as error:
            outcomes[index] = unstorable(f"job {message.id!r}", error)
            continue
        if options is None or len(message.body) > session.largest:
            others.append((index, jobs))
        else:
            plain_jobs.setdefault(jobs, []).append((index, options))
    if plain_jobs:
        others += await _add_plain(session, messages, plain_jobs, outcomes)
    if others:
        await _add(session, queues, messages, others, outcomes)


async def _add_plain(
    session: BullMQSession,
    messages: Sequence[Message],
    found: Mapping[JobSet, Sequence[tuple[int, bytes]]],
    outcomes: list[MatadorError | None],
) -> list[tuple[int, JobSet]]:
    """Add plain jobs, given with their options. Returns those that take BullMQ's own script."""
    calls: list[Call] = []
    sent: list[tuple[JobSet, Sequence[tuple[int, bytes]]]] = []
    now = session.now()
    for jobs, all_ in found.items():
        for start in range(0, len(all_), plain.MOST):
            some = all_[start : start + plain.MOST]
            new = [(messages[index], options) for index, options in some]
            calls.append(plain.add(session, jobs.queue, new, now))
            sent.append((jobs, some))
    try:
        answers = await session.run(calls)
    except MatadorError as error:
        for _, some in sent:
            for index, _ in some:
                outcomes[index] = error
        return []
    left: list[tuple[int, JobSet]] = []
    for (jobs, some), answer in zip(sent, answers, strict=True):
        if answer is None or isinstance(answer, MatadorError):  # BullMQ's own script has a guard
            left += [(index, jobs) for index, _ in some]
            continue
        for (index, _), one in zip(some, answer, strict=True):
            outcomes[index] = _outcome(messages[index], one)
    return left


async def _add(
    session: BullMQSession,
    queues: Queues,
    messages: Sequence[Message],
    found: Sequence[tuple[int, JobSet]],
    outcomes: list[MatadorError | None],
    *,
    is_last: bool = False,
) -> None:
    calls: list[Call] = []
    sent: list[tuple[int, JobSet]] = []
    now, largest = session.now(), session.largest
    for index, jobs in found:
        message = messages[index]
        try:
            job = new_job(message, largest, prioritized=jobs.priorities or is_last)
            calls.append(session.scripts(jobs.queue).add_new(message.id, job, now))
        except (*UNWRITABLE, UnstorableError) as error:
            outcomes[index] = unstorable(f"job {message.id!r}", error)
            continue
        sent.append((index, jobs))
    if not calls:
        return
    try:
        answers = await session.run_grouped(calls)
    except MatadorError as error:
        for index, _ in sent:
            outcomes[index] = error
        return
    again: list[tuple[int, JobSet]] = []
    for (index, jobs), answer in zip(sent, answers, strict=True):
        message = messages[index]
        if answer == NEEDS_PRIORITY and not is_last:
            queues.has_priorities(jobs.queue)
            again.append((index, jobs))
        else:
            outcomes[index] = _outcome(message, answer)
    if again:
        await _add(session, queues, messages, again, outcomes, is_last=True)


def _outcome(message: Message, answer: object) -> MatadorError | None:
    """Translate the answer of the script that adds a job."""
    if isinstance(answer, MatadorError):
        return answer
    queue, id_ = message.queue, message.id
    if answer == TAKEN:
        return DuplicateJobError(
            f"queue {queue!r} has a job with the id {id_!r} already", queue=queue, job_id=id_
        )
    if isinstance(answer, bytes) and answer != id_bytes(id_):
        other = id_text(answer)
        return UniqueJobError(
            f"job {id_!r} was not added to {queue!r}: job {other!r} has its unique key",
            queue=queue,
            job_id=other,
        )
    return None


def not_an_id(id_: str) -> UnstorableError:
    """The error for an id that BullMQ does not allow."""
    return UnstorableError(
        f"job id {id_!r}: BullMQ allows no whole number, no colon, and none of its own keys as the "
        f"id of a job; put something before it, for example 'job-{id_.replace(':', '-')}'"
    )


# -- flows -----------------------------------------------------------------------------------------


async def add_flow(
    session: BullMQSession, queues: Queues, jobs: JobSet, messages: Sequence[Message]
) -> MatadorError | None:
    """Add jobs of which some wait for others, parents first: all of them, or none and why."""
    for message in messages:
        if not job_id(message.id):
            return not_an_id(message.id)
        if names.UNIQUE in message.headers:
            return UnstorableError(f"job {message.id!r}: a job of a flow has no unique key")
    scripts = session.scripts(jobs.queue)
    keys, meta = [scripts.job_key(message.id) for message in messages], scripts.key("meta")
    for _ in range(_TRIES):
        async with session.client.pipeline(transaction=True) as pipe:
            try:
                await pipe.watch(*keys)
                if await pipe.exists(*keys):
                    return await _taken(session, jobs, messages)
                if await pipe.hexists(meta, _PRIORITIES):
                    queues.has_priorities(jobs.queue)
                    jobs = await queues.find_jobs(session, jobs.queue)
                calls = [_call(session, jobs, message) for message in messages]
                pipe.multi()
                if any(message.priority is not None for message in messages):
                    pipe.hset(meta, _PRIORITIES, 1)
                for call in calls:
                    # The client loads the script first if the server does not know it.
                    command = session.command(call.script)
                    await command(keys=call.keys, args=call.arguments, client=pipe)
                await pipe.execute()
            except WatchError:  # another program adds one of them
                continue
            except (*UNWRITABLE, UnstorableError) as error:
                return unstorable(f"a job of a flow of {jobs.queue!r}", error)
            except Exception as error:  # noqa: BLE001 - translated
                return session.translated(error)
        return None
    return TransportError(
        f"the ids of a flow of {jobs.queue!r} were in use at each of {_TRIES} tries"
    )


def _call(session: BullMQSession, jobs: JobSet, message: Message) -> Call:
    check_json(message)
    job = new_job(message, session.largest, prioritized=jobs.priorities)
    parent = message.headers.get(names.PARENT)
    return session.scripts(jobs.queue).add_to_flow(
        message.id,
        job,
        session.now(),
        parent=None if parent is None else str(parent),
        waits=bool(message.headers.get(names.CHILDREN)),
    )


async def _taken(session: BullMQSession, jobs: JobSet, messages: Sequence[Message]) -> MatadorError:
    scripts = session.scripts(jobs.queue)
    there = await session.ask_all([("EXISTS", scripts.job_key(one.id)) for one in messages])
    found = [one.id for one, is_there in zip(messages, there, strict=True) if is_there]
    id_ = found[0] if found else messages[0].id
    return DuplicateJobError(
        f"queue {jobs.queue!r} has a job with the id {id_!r} already", queue=jobs.queue, job_id=id_
    )
