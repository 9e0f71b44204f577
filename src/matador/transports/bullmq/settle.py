"""Carries out settlements.

For a job that was taken from its queue, each settlement is one of BullMQ's own scripts, which
checks the lock and does everything at once: a retry is the same job with new data, a dead letter
the same job among the failed ones. Only a successor in another queue, or of a job that failed
already, takes two scripts: they run in one transaction, on condition that we still hold the lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

from redis.exceptions import ResponseError, WatchError

from matador.errors import MatadorError, MessageTooLargeError, TransportError, UnstorableError
from matador.model import job as names
from matador.model.message import (
    ERROR_TYPE_HEADER,
    TRACEBACK_HEADER,
    Complete,
    DeadLetter,
    Message,
    Receipt,
    Release,
    Retry,
    Settlement,
)
from matador.model.topology import DeadLetterKind, dead_letter_name
from matador.transports.bullmq import plain
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.jobs import JobHold, NativeHold, hold_of, trace_with
from matador.transports.bullmq.native import milliseconds
from matador.transports.bullmq.scripts import REMOVE, Call
from matador.transports.bullmq.send import add, data_of, other_id
from matador.transports.bullmq.topology import JobSet, Queues
from matador.transports.bullmq.wire import bull_priority, job_id
from matador.transports.kit.errors import lease_lost, queue_not_found
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

_MOST_EACH = 200
_TRIES = 20
_SMALL = 1 << 20  # bytes of a result: many are sent in one call, which the server limits, too
# What BullMQ answers when a parent is completed too early. Its own worker fails the job, too.
_CHILDREN = {-4: "it has children that are not finished", -9: "a child of it has failed"}


class JobSettler:
    """Carries out settlements on one session."""

    def __init__(self, session: BullMQSession, queues: Queues) -> None:
        self._session = session
        self._queues = queues

    async def settle(self, settlements: Sequence[Settlement]) -> list[MatadorError | None]:
        """For each None, or why it failed."""
        outcomes: list[MatadorError | None] = [None] * len(settlements)
        plain_jobs: dict[tuple[str, str], list[tuple[int, JobHold]]] = {}
        others: list[tuple[int, JobHold]] = []
        for index, settlement in enumerate(settlements):
            hold = hold_of(settlement.receipt)
            if hold is None:
                outcomes[index] = lease_lost(settlement.receipt.queue)
            elif (size := _size(settlement)) > self._session.largest:
                # The server would close the connection, and with it fail the calls of others.
                outcomes[index] = MessageTooLargeError(size, self._session.largest, what="result")
            elif isinstance(settlement, Complete) and size <= _SMALL and plain.can_complete(hold):
                alike = (hold.queue, repr(hold.keep))
                plain_jobs.setdefault(alike, []).append((index, hold))
            else:
                others.append((index, hold))
        if plain_jobs:
            others += await self._complete_plain(plain_jobs, settlements, outcomes)
        if others:
            await self._settle_others(others, settlements, outcomes)
        return outcomes

    async def _complete_plain(
        self,
        found: Mapping[tuple[str, str], Sequence[tuple[int, JobHold]]],
        settlements: Sequence[Settlement],
        outcomes: list[MatadorError | None],
    ) -> list[tuple[int, JobHold]]:
        """Complete plain jobs. Returns those that take BullMQ's own script."""
        session = self._session
        calls: list[Call] = []
        sent: list[Sequence[tuple[int, JobHold]]] = []
        for (queue, _), all_ in found.items():
            for start in range(0, len(all_), plain.MOST):
                some = all_[start : start + plain.MOST]
                jobs = [
                    (hold.id, hold.token, cast("Complete", settlements[index]).result or b"null")
                    for index, hold in some
                ]
                calls.append(plain.complete(session, queue, some[0][1].keep, jobs))
                sent.append(some)
        try:
            answers = await session.run(calls)
        except MatadorError as error:
            for index, _ in itertools.chain(*sent):
                outcomes[index] = error
            return []
        left: list[tuple[int, JobHold]] = []
        for some, answer in zip(sent, answers, strict=True):
            if isinstance(answer, MatadorError):  # BullMQ's own script has a guard
                left += some
                continue
            for (index, hold), one in zip(some, answer, strict=True):
                if one == plain.ASK_BULLMQ:
                    left.append((index, hold))
                elif one:
                    outcomes[index] = lease_lost(settlements[index].receipt.queue)
        return left

    async def _settle_others(
        self,
        found: Sequence[tuple[int, JobHold]],
        settlements: Sequence[Settlement],
        outcomes: list[MatadorError | None],
    ) -> None:
        calls: list[tuple[int, Call]] = []
        for index, hold in found:
            settlement = settlements[index]
            try:
                target = await self._target(settlement)
                if (
                    isinstance(settlement, Retry)
                    and target is not None
                    and (hold.failed or target.queue != hold.queue)
                ):
                    outcomes[index] = await self._move(hold, settlement, target)
                elif hold.native is not None and not hold.failed:
                    call = self._native_call(hold, hold.native, settlement)
                    calls.append((index, call))
                else:
                    calls.append((index, self._call(hold, settlement, target)))
            except UNWRITABLE as error:
                outcomes[index] = unstorable(f"message {hold.id!r}", error)
            except MatadorError as error:
                outcomes[index] = error
        for start in range(0, len(calls), _MOST_EACH):
            await self._run(calls[start : start + _MOST_EACH], settlements, outcomes)

    async def _run(
        self,
        calls: Sequence[tuple[int, Call]],
        settlements: Sequence[Settlement],
        outcomes: list[MatadorError | None],
        *,
        is_last: bool = False,
    ) -> None:
        try:
            answers = await self._session.run_grouped([call for _, call in calls])
        except MatadorError as error:
            for index, _ in calls:
                outcomes[index] = error
            return
        woken: set[str] = set()
        unfit: list[tuple[int, Call]] = []
        for (index, _), answer in zip(calls, answers, strict=True):
            receipt = settlements[index].receipt
            if isinstance(answer, MatadorError):
                plain = None if is_last else self._malformed(settlements[index], answer)
                if plain is not None:
                    unfit.append((index, plain))
                else:
                    outcomes[index] = refused(answer, receipt)
            elif answer in _CHILDREN and isinstance(settlements[index], Complete):
                unfit.append((index, self._fail(receipt, _CHILDREN[answer])))
            elif isinstance(answer, int) and answer < 0:
                outcomes[index] = lease_lost(receipt.queue)
            elif isinstance(settlements[index], Release):
                woken.add(receipt.queue)
        # BullMQ wakes no worker when a job with a priority is released.
        markers = [self._session.scripts(queue).key("marker") for queue in woken]
        if markers:
            await self._session.run([("ZADD", key, 0, "0") for key in markers])
        if unfit:
            await self._run(unfit, settlements, outcomes, is_last=True)

    def _malformed(self, settlement: Settlement, error: MatadorError) -> Call | None:
        """Our script for a job at which BullMQ's own one fails; None: the caller decides."""
        hold = hold_of(settlement.receipt)
        if hold is None or not isinstance(refused(error, settlement.receipt), UnstorableError):
            return None
        scripts, now = self._session.scripts(hold.queue), self._session.next_now()
        match settlement:
            case Complete():
                return scripts.complete_malformed(hold.id, hold.token, now)
            case DeadLetter(kind=kind, reason=reason, message=None):
                return scripts.fail_malformed(hold.id, hold.token, _text(reason), now, kind, False)
            case _:
                return None

    def _fail(self, receipt: Receipt, reason: str) -> Call:
        hold = hold_of(receipt)
        assert hold is not None
        fields = _as_dead_letter("undeliverable", hold)
        scripts = self._session.scripts(hold.queue)
        return scripts.fail(hold.id, hold.token, reason, self._session.next_now(), fields)

    async def _target(self, settlement: Settlement) -> JobSet | None:
        """The queue of the successor, if there is one."""
        match settlement:
            case Retry(message=message):
                jobs = await self._queues.find(self._session, message.queue)
                if jobs.kind is None:
                    return jobs
                raise queue_not_found(message.queue, self._session.where)
            case DeadLetter(receipt=receipt, kind=kind):
                name = dead_letter_name(receipt.queue, kind)
                return await self._queues.find(self._session, name)
            case _:
                return None

    # -- a job that was taken from its queue -------------------------------------------------------

    def _call(self, hold: JobHold, settlement: Settlement, target: JobSet | None) -> Call:
        scripts, now = self._session.scripts(hold.queue), self._session.now()
        match settlement:
            case Complete() if hold.failed:
                return scripts.remove_held(hold.id, hold.token)
            case Release() if hold.failed:
                return scripts.release_failed(hold.id, hold.token)
            case Complete():
                return scripts.complete(hold.id, hold.token, now, hold.keep)
            case Release():
                if hold.due > now:
                    return scripts.delay(hold.id, hold.token, now, hold.due - now, None)
                return scripts.release(hold.id, hold.token)
            case DeadLetter(kind=kind, reason=reason, message=message, bare=bare):
                at = self._session.next_now()  # failed jobs are in order of this time
                if bare:
                    return scripts.fail_malformed(
                        hold.id, hold.token, _text(reason), at, kind, True
                    )
                fields = _as_dead_letter(kind, hold)
                if message is not None:
                    fields["data"] = data_of(self._session, message)
                return scripts.fail(hold.id, hold.token, _text(reason), at, fields)
            case Retry(receipt=receipt, message=message):
                assert target is not None
                fields = {**_counted(hold), "stc": "0", "data": data_of(self._session, message)}
                if message.priority != receipt.priority:
                    number = bull_priority(message.priority) if target.priorities else 0
                    fields["priority"] = str(number)
                delay = milliseconds(message.delay)
                if delay:
                    return scripts.delay(hold.id, hold.token, now, delay, fields)
                return scripts.retry(hold.id, hold.token, now, fields)

    # -- a job that was taken from a job queue -----------------------------------------------------

    def _native_call(self, hold: JobHold, native: NativeHold, settlement: Settlement) -> Call:
        """As BullMQ's own workers do it: data and options of the job stay as they are."""
        session = self._session
        scripts, now = session.scripts(hold.queue), session.now()
        match settlement:
            case Complete(result=result):
                return scripts.finish(
                    hold.id,
                    hold.token,
                    now if hold.keep is REMOVE else session.almost_now(),
                    "completed",
                    result or b"null",
                    keep=hold.keep,
                )
            case DeadLetter(kind=kind, reason=reason, message=message, bare=False):
                fields = _failure(native, message, reason)
                fields |= {"matador-kind": kind, "matador-taken": "0", "matador-bare": ""}
                return scripts.finish(
                    hold.id,
                    hold.token,
                    session.next_now(),
                    "failed",
                    reason.encode(errors="replace"),
                    keep=native.keep_failed,
                    attempts=native.max_attempts,
                    fields=fields,
                )
            case Retry(message=message):
                error = _text(str(message.headers.get(names.ERROR, "")))
                fields = _failure(native, message, error)
                delay = milliseconds(message.delay)
                if delay:
                    return scripts.delay(hold.id, hold.token, now, delay, fields)
                return scripts.retry(hold.id, hold.token, now, fields)
            case _:
                return self._call(hold, settlement, None)

    # -- several scripts, while the lock is ours ---------------------------------------------------

    async def _move(self, hold: JobHold, settlement: Retry, target: JobSet) -> MatadorError | None:
        scripts, message = self._session.scripts(hold.queue), settlement.message
        watched = [scripts.lock_key(hold.id)]
        successor = job_id(message.id)
        if successor:
            watched.append(self._session.scripts(target.queue).job_key(successor))
        for _ in range(_TRIES):
            async with self._session.client.pipeline(transaction=True) as pipe:
                try:
                    await pipe.watch(*watched)
                    if await pipe.get(watched[0]) != hold.token.encode():
                        return lease_lost(settlement.receipt.queue)
                    if (
                        successor
                        and watched[1] != scripts.job_key(hold.id)
                        and await pipe.exists(watched[1])
                    ):
                        successor = other_id(message)
                    pipe.multi()
                    away = (
                        scripts.remove_held(hold.id, hold.token)
                        if hold.failed
                        else scripts.complete(hold.id, hold.token, self._session.now())
                    )
                    await self._queue(pipe, away)
                    await self._queue(pipe, add(self._session, target, message, successor))
                    answers = await pipe.execute()
                except WatchError:  # renewed meanwhile, or lost: try again
                    continue
                except (MatadorError, *UNWRITABLE):
                    raise
                except Exception as error:  # noqa: BLE001 - translated
                    return refused(self._session.translated(error), settlement.receipt)
            return _first_error(answers, settlement.receipt)
        return TransportError(
            f"a delivery from {settlement.receipt.queue!r} was renewed at each of {_TRIES} tries"
        )

    async def _queue(self, pipe: Any, call: Call) -> None:
        # The client loads the script first if the server does not know it.
        await self._session.command(call.script)(keys=call.keys, args=call.arguments, client=pipe)


def refused(error: MatadorError, receipt: Receipt) -> MatadorError:
    """The error of a script that settles a job: permanent if what is in the job caused it."""
    cause = error.__cause__
    if type(error) is not TransportError or not isinstance(cause, ResponseError):
        return error
    # A script that fails names its line; errors of the server itself do not.
    if "WRONGTYPE" not in str(cause) and "user_script:" not in str(cause):
        return error
    made = UnstorableError(f"a malformed job of {receipt.queue!r} cannot be settled: {cause}")
    made.__cause__ = cause
    return made


def _text(reason: str) -> str:
    """A reason that can be encoded."""
    return reason.encode(errors="replace").decode()


def _counted(hold: JobHold) -> dict[str, str]:
    """The attempts that the message counts; BullMQ counts this one, too, when it moves the job."""
    return {"matador-counted": str(hold.attempts + 1)}


def _as_dead_letter(kind: DeadLetterKind, hold: JobHold) -> dict[str, str]:
    fields = {"stc": "0", "matador-kind": kind, "matador-taken": "0", "matador-bare": ""}
    return {**_counted(hold), **fields}


def _failure(native: NativeHold, message: Message | None, error: str) -> dict[str, str]:
    """What BullMQ keeps of a failed attempt. BullMQ counts this one when it moves the job."""
    fields = {"stc": "0"}
    if error:
        fields["failedReason"] = _text(error)
    trace = error
    if message is not None:
        attempts = message.headers.get(names.ATTEMPTS)
        if isinstance(attempts, int):  # stalls of the job included
            fields["atm"] = str(attempts - 1)
        kind = message.headers.get(ERROR_TYPE_HEADER)
        if kind is not None:
            fields["matador-error-type"] = _text(str(kind))
            trace = str(message.headers.get(TRACEBACK_HEADER) or f"{kind}: {error}")
    if trace:
        fields["stacktrace"] = trace_with(native.stacktrace, _text(trace))
    return fields


def _first_error(answers: Sequence[Any], receipt: Receipt) -> MatadorError | None:
    """BullMQ's scripts answer with a negative number when they refuse; a count may be one too."""
    if any(isinstance(answer, int) and answer < 0 for answer in answers):
        return lease_lost(receipt.queue)
    return None


async def renew(session: BullMQSession, receipts: Sequence[Receipt], lease: float) -> list[bool]:
    """Hold deliveries for another lease from now; for each, whether it was still held."""
    kept = [False] * len(receipts)
    holds = [
        (index, hold)
        for index, receipt in enumerate(receipts)
        if (hold := hold_of(receipt)) is not None
    ]
    lock = round(lease * 1000)
    calls = [session.scripts(hold.queue).extend(hold.id, hold.token, lock) for _, hold in holds]
    for start in range(0, len(calls), _MOST_EACH):
        answers = await session.ask_all(calls[start : start + _MOST_EACH])
        for (index, _), answer in zip(holds[start:], answers, strict=False):
            kept[index] = answer == 1
    return kept


def _size(settlement: Settlement) -> int:
    """Bytes of the result of a job."""
    return len(settlement.result or b"") if isinstance(settlement, Complete) else 0
