"""Handles plain messages: validate, admit, run, and settle as the ``AckStrategy`` says.

RPC servers, subscribers and channels are each a ``MessageHandler`` that says what to run.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from matador.errors import DontRetry, InvalidMessageError, MaybePoisonedError
from matador.messages.context import (
    FIRST_FAILURE,
    RETRY_COUNT,
    Acknowledgement,
    Arrival,
    arrival_of,
)
from matador.messages.counters import MessageCounters
from matador.messages.functions import MessageFunction
from matador.model.message import (
    DELIVERIES_HEADER,
    ERROR_TYPE_HEADER,
    Complete,
    DeadLetter,
    Delivery,
    Headers,
    Message,
    Properties,
    Release,
    Retry,
)
from matador.model.text import SHORT_TEXT, error_text, loggable, storable_text
from matador.policy.ack import DEAD_LETTER, AckStrategy
from matador.policy.retry import Decision, RetryLater, SendToDeadLetters
from matador.policy.validation import Validation
from matador.runtime.calls import InOwnContext, raising
from matador.runtime.dedup import Deduplicator
from matador.runtime.log_context import HANDLED, LogContext
from matador.runtime.settle import Outcome, kept_as_it_arrived
from matador.runtime.traces import failure_of
from matador.runtime.worker import DeliveryWorker
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.messages")

T = TypeVar("T")

MAX_DELIVERIES = 5
"""A message that was delivered so often without an outcome may crash its workers."""

ORIGINAL_QUEUE = "x-matador-original-queue"
"""The header of a dead letter with the queue it comes from."""

FAILED_AT = "x-matador-failed-at"
"""The header of a dead letter with the time of the failure, in milliseconds since 1970."""

ERROR = "x-matador-last-error"
"""The header of a retry or a dead letter with the text of the last error."""

_NO_HEADERS: Headers = {}
_UNDECIDED = 300.0
"""Seconds after which a handler in manual mode that has decided nothing has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingOptions:
    """How messages are handled, the same for RPC, pub/sub and channels.

    Attributes:
        ack: when they are acknowledged, and what happens to failed ones.
        dead_letters: whether failed ones are kept.
        validation: what they must be like.
        timeout: seconds that a handler may take; None: any time. What runs in a thread cannot be
            ended: it is waited for.
    """

    ack: AckStrategy = AckStrategy()  # noqa: RUF009 - frozen
    dead_letters: bool = True
    validation: Validation = Validation()  # noqa: RUF009 - frozen
    timeout: float | None = None


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt: the error to show, what is decided, and headers for what is stored."""

    error: Exception
    decision: Decision
    headers: Headers = _NO_HEADERS


class _LogFields(msgspec.Struct, frozen=True, gc=False):
    """What log lines say of a message."""

    id: str
    queue: str
    properties: Properties | None
    attempt: int

    def log_fields(self) -> dict[str, object]:
        properties = self.properties or Properties()
        return {
            "message_id": self.id,
            "queue": self.queue,
            "correlation_id": properties.correlation_id,
            "routing_key": properties.routing_key,
            "attempt": self.attempt,
        }


class MessageHandler(ABC):
    """A ``Handler`` of the delivery runtime. Used by many slots at once."""

    minds_deadlines = True
    """Whether a message that arrives after its deadline is deleted unseen."""

    def __init__(
        self,
        worker: DeliveryWorker,
        options: HandlingOptions,
        *,
        counters: MessageCounters | None = None,
        dedup: Deduplicator | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._calls = worker.calls
        self._options = options
        self._validation = options.validation
        self._manual = options.ack.mode == "manual"
        self.counters = counters or MessageCounters()
        self._dedup = dedup
        self._quick = not self._manual and dedup is None
        self._clock = clock or SystemClock()

    # -- what a way in decides --------------------------------------------------------------------

    def arrive(self, delivery: Delivery) -> Arrival:
        """Read a delivery. Must not raise an error, whatever arrived."""
        return arrival_of(delivery, self._clock.new_id)

    @abstractmethod
    async def run(self, arrival: Arrival, acknowledgement: Acknowledgement | None) -> bytes | None:
        """Do the work for a message whose body is valid JSON. What it raises is a failure.

        The result is what duplicates share. ``acknowledgement``: None in auto mode.

        Raises:
            Unreadable: the data is not of the type that the handler takes.
            Unhandled: there is nobody to handle it.
        """

    async def finished(self, arrival: Arrival, result: bytes | None) -> None:  # noqa: B027 - optional
        """The work is done, and the message is about to be acknowledged."""

    async def refused(self, arrival: Arrival, error: Exception) -> bool:
        """The message was not run, and will not be. Has the sender been told?"""
        return False

    async def failed(self, arrival: Arrival, error: Exception) -> bool:
        """The work has failed. Has the sender been told, so that it is not tried again?"""
        return False

    def key_of(self, dedup: Deduplicator, arrival: Arrival) -> str:
        """The key under which duplicates of a message are found, in the same queue alone.

        What is published has the same id in every queue, and each queue has its own work to do.
        """
        body = arrival.body
        data = msgspec.json.decode(body) if dedup.needs_data else None
        key = dedup.key_of(arrival.message_id if arrival.has_id else None, body, data)
        return f"{arrival.delivery.receipt.queue}:{key}"

    def keeps(self, queue: str) -> bool:
        """Are messages of this queue kept as dead letters?"""
        return self._options.dead_letters

    def plain_call(self, arrival: Arrival) -> Coroutine[Any, Any, Any] | None:
        """The only call that a message needs, for the quick path; None: ``run`` does the work.

        Asked in auto mode and without duplicate detection, for a message that has an object as
        its body and is delivered for the first time. ``finished`` is not called.

        Raises:
            Unreadable: the body cannot be read.
        """
        return None

    def problem_of(self, arrival: Arrival) -> str | None:
        """Why a message is not run at all; None if it may be."""
        return arrival.problem or self._validation.problem_of(arrival.body)

    def judge(self, arrival: Arrival, error: Exception) -> Failure:
        """What becomes of a message whose work has failed."""
        return Failure(error, self.decide(error, arrival.attempt))

    # -- one delivery -----------------------------------------------------------------------------

    async def process(self, delivery: Delivery) -> Outcome:
        """See ``Handler``."""
        counters = self.counters
        counters.received += 1
        counters.last_message_at = self._clock.now()
        arrival = self.arrive(delivery)
        if LogContext.wanted:
            HANDLED.set(
                _LogFields(
                    arrival.message_id, delivery.receipt.queue, delivery.properties, arrival.attempt
                )
            )
        try:
            deadline = arrival.deadline
            if deadline is not None and self.minds_deadlines and deadline < self._clock.time():
                counters.expired += 1
                noted = failure_of.get()
                if noted is not None:  # or it would be recorded as handled
                    noted.append(Expired("it arrived after its deadline, and was not handled"))
                return Outcome(delivery.receipt, Complete(delivery.receipt))
            if self._is_plain(arrival):
                try:
                    call = self.plain_call(arrival)
                except Unreadable as error:
                    problem = self.problem_of(arrival)  # which says it in better words
                    error = error if problem is None else Unreadable(problem)
                    return await self._malformed(arrival, error)
                if call is not None:
                    return await self._run_plain(arrival, call)
            problem = self.problem_of(arrival)
            if problem is not None:
                return await self._malformed(arrival, Unreadable(problem))
            again = await self._redelivered(arrival)
            if again is not None:
                return again
            return await self._run(arrival)
        except Exception as error:  # an option that does what it must not
            log.exception("a message of %s could not be processed", delivery.receipt.queue)
            return self.give_up(delivery, f"{type(error).__name__}: {error}")

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        """See ``Handler``."""
        return self._kept_or_deleted(delivery, storable_text(reason))

    def _is_plain(self, arrival: Arrival) -> bool:
        """May a message go the quick path, where its body is read only once?"""
        return (
            self._quick
            and not arrival.delivery.receipt.redelivered
            and arrival.problem is None
            and arrival.body.startswith(b"{")
            and len(arrival.body) <= self._validation.max_size
        )

    async def _run_plain(self, arrival: Arrival, plain: Coroutine[Any, Any, Any]) -> Outcome:
        context = copy_context()
        try:
            step = context.run(plain.send, None)
        except StopIteration:  # it finished without waiting
            self.counters.succeeded += 1
            receipt = arrival.delivery.receipt
            return Outcome(receipt, Complete(receipt))
        except BaseException as error:  # noqa: BLE001 - handled like an error after a wait
            call: Awaitable[Any] = raising(error)
        else:
            call = InOwnContext(plain, context, step)
        return await self._settled(arrival, call)

    async def _run(self, arrival: Arrival) -> Outcome:
        acknowledgement = Acknowledgement() if self._manual else None
        return await self._settled(arrival, InOwnContext(self._once(arrival, acknowledgement)))

    async def _settled(self, arrival: Arrival, call: Awaitable[Any]) -> Outcome:
        receipt = arrival.delivery.receipt
        ran = await self._calls.run(call)
        try:
            if ran.interrupted:
                return Outcome(receipt, Release(receipt))
            if isinstance(ran.error, Unreadable | Unhandled):
                return await self._malformed(arrival, ran.error)
            if ran.error is not None:
                return await self._failed(arrival, ran.error)
            self.counters.succeeded += 1
            return Outcome(receipt, Complete(receipt))
        finally:
            del ran

    async def _once(self, arrival: Arrival, acknowledgement: Acknowledgement | None) -> None:
        """Run the work, unless it has been done for another message with the same key."""
        if self._dedup is None:
            await self.finished(arrival, await self._decided(arrival, acknowledgement))
            return

        async def work() -> bytes:
            return await self._decided(arrival, acknowledgement) or b""

        handled = await self._dedup.run(self.key_of(self._dedup, arrival), work)
        if handled.duplicate:
            self.counters.duplicates += 1
        await self.finished(arrival, handled.result)

    async def _decided(
        self, arrival: Arrival, acknowledgement: Acknowledgement | None
    ) -> bytes | None:
        """Run the work and, in manual mode, wait for the decision."""
        if acknowledgement is None:
            return await self.run(arrival, None)
        return await self.decided(self.run(arrival, acknowledgement), acknowledgement)

    async def decided(self, work: Awaitable[T], acknowledgement: Acknowledgement) -> T | None:
        """Do work in manual mode, and wait for ``ack`` or ``nack``, which may come after it.

        What was decided counts, whatever is raised afterwards.

        Raises:
            Nacked: it was ``nack``.
            DontRetry: it was neither, for too long.
        """
        result = None
        try:
            result = await work
        except Exception:
            if not acknowledgement.decided:
                raise
            log.exception("a handler failed after it had called ack() or nack(), which counts")
        if not acknowledgement.decided:
            limit = self._options.timeout or _UNDECIDED
            try:
                async with asyncio.timeout(limit):
                    await acknowledgement.wait()
            except TimeoutError:
                raise DontRetry(
                    f"the handler called neither ack() nor nack() in {limit:g} s"
                ) from None
        if acknowledgement.requeue is not None:
            raise Nacked(requeue=acknowledgement.requeue)
        return result

    # -- calling handlers -------------------------------------------------------------------------

    async def call(
        self, function: MessageFunction, arrived: Any, data: Any, limit: float | None = None
    ) -> Any:
        """Call a handler: in a thread if it is sync, for as long as it may take.

        ``limit``: seconds, instead of those of the options.

        Raises:
            TimeoutError: it took too long.
        """
        bound = function.bind(arrived, data)
        limit, who = limit or self._options.timeout, f"the handler {function.name}"
        if not function.is_async:
            return await self._calls.in_thread(bound, limit=limit, who=who)
        if limit is None:
            return await bound()
        return await self._calls.limited(bound(), limit, who)

    # -- what becomes of a message that is not done -----------------------------------------------

    async def _redelivered(self, arrival: Arrival) -> Outcome | None:
        """Look at a redelivery before the handler runs: the message may have crashed its worker.

        A broker that counts deliveries is believed. One that only says that there was another one
        before (RabbitMQ's classic queues) gets a copy back that counts it.
        """
        delivery = arrival.delivery
        receipt = delivery.receipt
        if not receipt.redelivered:
            return None
        if receipt.delivery_count >= MAX_DELIVERIES:
            error = MaybePoisonedError(
                f"possibly poisoned: delivered {receipt.delivery_count} times without an outcome"
            )
            self._note(error)
            await self.refused(arrival, error)
            return self._kept_or_deleted(delivery, str(error))
        if receipt.exact_count:
            return None
        headers = {**delivery.headers, DELIVERIES_HEADER: receipt.delivery_count - 1}
        again = _successor(arrival, headers, 0.0)
        return Outcome(
            receipt,
            Retry(receipt, again),
            simpler=lambda: self.give_up(delivery, "cannot be retried"),
        )

    async def _malformed(self, arrival: Arrival, error: Unreadable | Unhandled) -> Outcome:
        delivery = arrival.delivery
        self.counters.malformed += isinstance(error, Unreadable)
        self._note(error)
        told = await self.refused(arrival, error)
        strategy = self._validation.malformed if isinstance(error, Unreadable) else "dead-letter"
        kept = strategy == "dead-letter" and self.keeps(delivery.receipt.queue)
        level = logging.DEBUG if told or strategy == "ignore" else logging.ERROR
        log.log(
            level,
            "a message of %s cannot be handled and was %s: %s",
            delivery.receipt.queue,
            "kept among the dead letters" if kept else "refused" if told else "deleted",
            storable_text(str(error), SHORT_TEXT),
        )
        if kept:
            self.counters.dead_lettered += 1
            return kept_as_it_arrived(delivery.receipt, DEAD_LETTER, storable_text(str(error)))
        self.counters.discarded += not told
        return Outcome(delivery.receipt, Complete(delivery.receipt))

    async def _failed(self, arrival: Arrival, error: Exception) -> Outcome:
        """The whole path of a failure: tell the sender, or decide, then settle."""
        delivery = arrival.delivery
        receipt = delivery.receipt
        self.counters.failed += 1
        self._note(error)
        if await self.failed(arrival, error):
            if not self.keeps(receipt.queue):
                return Outcome(receipt, Complete(receipt))
            failure = Failure(error, SendToDeadLetters(DEAD_LETTER, error_text(error)))
        else:
            failure = self.judge(arrival, error)
            self._note(failure.error)
            self._log(arrival, failure.error, failure.decision)
        error, decision = failure.error, failure.decision
        if isinstance(decision, RetryLater):
            self.counters.retried += 1
            headers = self._failure_headers(arrival, failure)
            retry = Retry(receipt, _successor(arrival, headers, decision.delay))
            return Outcome(
                receipt, retry, simpler=lambda: self.give_up(delivery, error_text(error))
            )
        if not isinstance(decision, SendToDeadLetters) or not self.keeps(receipt.queue):
            self.counters.discarded += 1
            return Outcome(receipt, Complete(receipt))
        self.counters.dead_lettered += 1
        headers = {
            **self._failure_headers(arrival, failure),
            ORIGINAL_QUEUE: receipt.queue,
            FAILED_AT: round(self._clock.time() * 1000),
            ERROR_TYPE_HEADER: storable_text(_name(error), SHORT_TEXT),
        }
        letter = DeadLetter(
            receipt, DEAD_LETTER, decision.reason, _successor(arrival, headers, 0.0)
        )
        return Outcome(
            receipt,
            letter,
            simpler=lambda: kept_as_it_arrived(receipt, DEAD_LETTER, decision.reason),
        )

    def decide(self, error: Exception, attempt: int) -> Decision:
        """Whether to try again after an error, as ``AckStrategy`` says."""
        ack = self._options.ack
        if not isinstance(error, Nacked):
            return ack.decide(error, attempt)
        if error.requeue and attempt < ack.max_retries:
            return RetryLater(ack.delay_after(attempt))
        return SendToDeadLetters(DEAD_LETTER, str(error))

    def _failure_headers(self, arrival: Arrival, failure: Failure) -> dict[str, str | int]:
        first = arrival.first_failure
        return {
            **arrival.headers,
            RETRY_COUNT: arrival.attempt,
            FIRST_FAILURE: round((self._clock.time() if first is None else first) * 1000),
            ERROR: error_text(failure.error, SHORT_TEXT),
            **failure.headers,
        }

    def _kept_or_deleted(self, delivery: Delivery, reason: str) -> Outcome:
        receipt = delivery.receipt
        if self.keeps(receipt.queue):
            self.counters.dead_lettered += 1
            log.error("a message of %s became a dead letter: %s", receipt.queue, reason)
            return kept_as_it_arrived(receipt, DEAD_LETTER, reason)
        self.counters.discarded += 1
        log.error("a message of %s was deleted: %s", receipt.queue, reason)
        return Outcome(receipt, Complete(receipt))

    def _note(self, error: Exception) -> None:
        noted = failure_of.get()
        if noted is not None:
            noted.append(error)
        self.counters.last_error = f"{type(error).__name__}: {error_text(error, SHORT_TEXT)}"

    def _log(self, arrival: Arrival, error: Exception, decision: Decision) -> None:
        again = isinstance(decision, RetryLater)
        if isinstance(decision, RetryLater):
            what = f"retrying in {decision.delay:.3g} s" if decision.delay else "retrying"
        else:
            kept = self.keeps(arrival.delivery.receipt.queue)
            what = "it becomes a dead letter" if kept else "it is deleted"
        log.log(
            logging.WARNING if again else logging.ERROR,
            "message %s of %s failed in attempt %d (%s: %s); %s",
            storable_text(arrival.message_id, SHORT_TEXT),
            arrival.delivery.receipt.queue,
            arrival.attempt,
            type(error).__name__,
            error_text(error, SHORT_TEXT),
            what,
            exc_info=None if again or isinstance(error, Nacked) else loggable(error),
            extra={
                "matador_queue": arrival.delivery.receipt.queue,
                "matador_message_id": arrival.message_id,
            },
        )


class Unreadable(InvalidMessageError):
    """A message that cannot be read, or whose data is not of the type that its handler takes."""


class Expired(InvalidMessageError):
    """A message that arrived after its deadline: nobody waits for it any more."""


class Unhandled(InvalidMessageError):
    """A message that nobody handles."""


class Nacked(Exception):
    """The handler has called ``nack``."""

    def __init__(self, requeue: bool) -> None:
        super().__init__("the handler called nack()")
        self.requeue = requeue


def decoded(function: MessageFunction, body: bytes) -> Any:
    """The data of a message in the type that its handler takes; None if it takes none.

    Raises:
        Unreadable: the data is not of that type.
    """
    if function.decode is None:
        return None
    try:
        return function.decode(body)
    except Exception as error:  # a validator of the user's may raise anything
        raise Unreadable(f"{function.name}: {error_text(error, SHORT_TEXT)}") from error


def _successor(arrival: Arrival, headers: Headers, delay: float) -> Message:
    delivery = arrival.delivery
    receipt = delivery.receipt
    return Message(
        arrival.message_id,
        receipt.queue,
        delivery.body,
        headers,
        delay,
        receipt.priority,
        receipt.ordering_key,
        delivery.properties,
    )


def _name(error: Exception) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
