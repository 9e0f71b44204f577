"""Jobs that wait for others, as BullMQ's flows: a parent waits for its children.

A child that fails for good fails its parent, as BullMQ's option ``failParentOnFailure`` has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis.exceptions import WatchError

from matador.errors import DuplicateJobError, MatadorError, TransportError, UnstorableError
from matador.model import job as names
from matador.model.message import Message
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.job_store import not_an_id
from matador.transports.bullmq.native import check_json, new_job
from matador.transports.bullmq.scripts import Call
from matador.transports.bullmq.topology import JobSet, Queues
from matador.transports.bullmq.wire import id_text, job_id
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

_TRIES = 20
_PRIORITIES = "matador-priorities"


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
            except WatchError:  # somebody adds one of them
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


async def child_results(
    session: BullMQSession, jobs: JobSet, id_: str
) -> Mapping[str, bytes | None]:
    """What the children of a job returned, by their ids; those of other queues by their keys."""
    scripts = session.scripts(jobs.queue)
    (answer,) = await session.ask_all([("HGETALL", scripts.job_key(id_) + b":processed")])
    found: Mapping[bytes, bytes] = answer or {}
    prefix = scripts.key("").encode()
    return {id_text(key.removeprefix(prefix)): value for key, value in found.items()}
