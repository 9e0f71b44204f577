"""The pipeline: takes one delivery of any way in from raw bytes to its outcome.

Read ``process`` from top to bottom: read, admit, run, decide. Each way in implements its specifics
in a ``WayIn``; everything else is here. The settler carries out the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from random import random
from typing import Any

import msgspec

from matador.errors import (
    ConfigurationError,
    DecodeError,
    DontRetry,
    EventAssertionError,
    InvalidMessageError,
    MaybePoisonedError,
    StoreUnavailableError,
    TimeoutError,
)
from matador.model.message import DELIVERIES_HEADER, Complete, DeadLetter, Delivery, Release, Retry
from matador.model.options import optional_seconds, optional_whole_number
from matador.model.text import LONGEST_TEXT, SHORT_TEXT, error_text, storable_text
from matador.policy.admission import refuse
from matador.policy.retry import (
    Decision,
    Discard,
    RetryLater,
    SendToDeadLetters,
    may_run_again,
)
from matador.runtime.acknowledgement import Acknowledgement, decided
from matador.runtime.calls import INTERRUPTED, Calls, InOwnContext, Ran, raising
from matador.runtime.checkpoints import DEAD_LETTER_TTL, CheckpointStore, NoCheckpointStore
from matador.runtime.dedup import Deduplicator
from matador.runtime.error_headers import log_info
from matador.runtime.facts import Attempt, Received, plain_data
from matador.runtime.hooks import CheckpointEvent, HookSet
from matador.runtime.leases import LeaseKeeper
from matador.runtime.log_context import HANDLED, LogContext
from matador.runtime.metrics import Counters
from matador.runtime.settle import AS_IT_ARRIVED, Outcome, Settler, kept_as_it_arrived
from matador.runtime.steps import Steps
from matador.runtime.way import NOTHING_ASKED, Asked, Failure, Finished, Refusal, Scope, WayIn, Work
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")


class Expired(InvalidMessageError):
    """A message arrived after its deadline, so its sender no longer waits."""


class _Kept(msgspec.Struct, frozen=True):
    """The encoded result of work that duplicates share, and the result itself."""

    body: bytes | None
    result: Any


class _Unacknowledged(Exception):
    """A message that is delivered at most once could not be acknowledged."""


class Pipeline:
    """Handles deliveries of one way in, for many slots at once. Keeps no state between messages.

    Args:
        way: the way in.
        calls: runs handlers.
        settler: settles before a handler runs, for at-most-once delivery.
        leases: reports lost leases.
        hooks: the hooks to call.
        counters: the counters to update.
        clock: the source of time.
        checkpoints: the store for the steps of resumable handlers.
        dedup: detects duplicates; None: they run, too.
        manual: handlers acknowledge their messages themselves.
        minds_deadlines: a message that arrives after its deadline is deleted without running.
        longest_delay: the longest delay of a retry that the transport supports; None: no limit.
    """

    def __init__(
        self,
        way: WayIn,
        calls: Calls,
        *,
        settler: Settler | None = None,
        leases: LeaseKeeper | None = None,
        hooks: HookSet,
        counters: Counters,
        clock: Clock,
        checkpoints: CheckpointStore | None = None,
        dedup: Deduplicator | None = None,
        manual: bool = False,
        minds_deadlines: bool = True,
        longest_delay: float | None = None,
    ) -> None:
        self._way = way
        self._calls = calls
        self._settler = settler
        self._leases = leases
        self._hooks = hooks
        self._counters = counters
        self._time, self._monotonic = clock.time, clock.monotonic
        self._checkpoints = NoCheckpointStore() if checkpoints is None else checkpoints
        self._dedup = dedup
        self._manual = manual
        self._minds_deadlines = minds_deadlines
        self._longest_delay = longest_delay
        self._read, self._open, self._call = way.read, way.open, way.call
        self._encode, self._finished = way.encode, way.finished
        self._wrapped = bool(hooks.wraps) or hooks.on_worker_before_process is not None
        self._is_bare = not (self._wrapped or hooks.around is not None or dedup or manual)

    # -- one delivery, from top to bottom ---------------------------------------------------------

    async def process(self, delivery: Delivery) -> Outcome:
        """Process a delivery; return its outcome. Raises only exceptions that end the process."""
        receipt, telling = delivery.receipt, self._hooks.attempted is not None
        try:
            work = self._read(delivery)
            if type(work) is Refusal:
                return await self._refused(work)
            if LogContext.wanted:
                HANDLED.set(self._way.fact(work))
            if receipt.redelivered or receipt.delivery_count > 1 or work.deadline is not None:
                outcome = await self._admit(work)
                if outcome is not None:
                    return outcome
            if self._open is not None and (refusal := self._open(work)) is not None:
                return await self._refused(refusal)
            route, scope = work.route, None
            if self._is_bare and route.is_bare:
                call: Any = self._call(work, None)
            else:
                scope = self._scope(work)
                call = self._whole(work, scope)
            started_at, start = (self._time(), self._monotonic()) if telling else (0.0, 0.0)
            context = copy_context()  # not visible to the next message
            try:
                step = context.run(call.send, None)
            except StopIteration as done:  # it finished without waiting, as most handlers do
                result, error = done.value, None
            except BaseException as raised:  # noqa: BLE001 - handled like an error after a wait
                result, error = (await self._calls.run(raising(raised))).outcome
            else:
                result, error = (await self._calls.run(InOwnContext(call, context, step))).outcome
            if error is INTERRUPTED:
                return self._interrupted(work)
            duration = self._monotonic() - start if telling else 0.0
            body: bytes | None = None
            if error is None and self._encode is not None:
                body, error = self._encoded(work, result)
            if error is not None:
                try:
                    return await self._failed(work, error, scope, started_at, duration)
                finally:
                    del error  # or its traceback would keep it in a cycle
            if self._finished is not None:
                body = await _awaited(self._finished(work, body, None))
            self._counters.succeeded += 1
            attempt = None
            if telling:
                message = self._way.fact(work)
                told = result.result if isinstance(result, _Kept) else result
                attempt = Attempt(message, "success", started_at, duration, None, None, told)
            if scope is None and body is None and not route.at_most_once:
                return Outcome(receipt, Complete(receipt), attempt)
            return self._completed(work, scope, body, attempt)
        except Exception as error:  # raised by a user's codec, policy or option
            HANDLED.set(None)
            log.exception("a message of %s could not be processed", receipt.queue)
            return self.give_up(delivery, f"{type(error).__name__}: {error_text(error)}")

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        """The outcome of a delivery whose processing failed unexpectedly, or was torn down.

        It becomes a dead letter even if ``malformed`` says otherwise: the message itself may be
        valid.
        """
        error = DecodeError(f"could not be processed: {reason}")
        self._counters.note_error(error)
        decision = self._kept(delivery, "malformed", str(error))
        return self._as_it_arrived(delivery, decision, self._way.unread(delivery), error)

    # -- admit ------------------------------------------------------------------------------------

    async def _admit(self, work: Work) -> Outcome | None:
        """The outcome of a message that must not run; None if it may."""
        delivery, receipt, deadline = work.delivery, work.delivery.receipt, work.deadline
        if deadline is not None and self._minds_deadlines and deadline < self._time():
            self._counters.expired += 1
            error = Expired("it arrived after its deadline, and was not handled")
            decision = Discard(str(error))
            return Outcome(
                receipt, Complete(receipt), self._attempt(work, error, decision, ran=False)
            )
        if receipt.redelivered or receipt.delivery_count > 1:
            most = (await self._asked(work)).max_deliveries
            most = self._way.policy(work).max_deliveries if most is None else most
            refusal = refuse(receipt, work.route.idempotent, most)
            if self._dedup is not None and isinstance(refusal, MaybePoisonedError):
                # Deliveries whose process died while they waited for another process did not run.
                earlier = (_delivery(work, n) for n in range(1, receipt.delivery_count))
                try:
                    counted = receipt.delivery_count - await self._dedup.waited(earlier)
                except StoreUnavailableError as error:
                    return await self._failed(work, error, None, 0.0, 0.0)
                counting = msgspec.structs.replace(receipt, delivery_count=counted)
                refusal = refuse(counting, work.route.idempotent, most)
            if refusal is not None:
                return await self._refused(Refusal(delivery, refusal, "undeliverable", work))
            if not receipt.exact_count:
                return self._counted(work)
        return None

    def _counted(self, work: Work) -> Outcome:
        """Release a message whose broker does not count deliveries: store a copy with the count."""
        delivery, receipt = work.delivery, work.delivery.receipt
        again = msgspec.structs.replace(
            self._way.successor(
                work,
                Failure(DontRetry("redelivered"), RetryLater(0.0), False, SHORT_TEXT, bare=True),
            ),
            body=delivery.body,
            headers={**delivery.headers, DELIVERIES_HEADER: receipt.delivery_count - 1},
            delay=0.0,
            properties=delivery.properties,
        )
        return Outcome(
            receipt,
            Retry(receipt, again),
            simpler=lambda: self.give_up(delivery, "cannot be retried"),
        )

    # -- run --------------------------------------------------------------------------------------

    def _scope(self, work: Work) -> Scope | None:
        """The scope for the context of a handler; None if the handler takes no context."""
        route, steps = work.route, None
        if not (route.takes_context or self._manual or route.idempotent == "resumable"):
            return None
        if route.idempotent == "resumable":
            id_ = self._way.checkpoint_id(work)
            steps = Steps(self._checkpoints, self._hooks, id_, route.handler)
        receipt, leases = work.delivery.receipt, self._leases

        def when_lost(tell: Callable[[], None]) -> None:
            if leases is not None:
                leases.when_lost(receipt, tell)

        return Scope(steps, Acknowledgement() if self._manual else None, when_lost)

    async def _whole(self, work: Work, scope: Scope | None) -> Any:
        """Run the handler inside its layers, from the outside in: hooks, duplicates, limits."""
        around, message = self._hooks.around, None
        if around is not None or self._wrapped:
            message = self._way.fact(work)
        call = self._handled(work, scope) if self._dedup is None else self._once(work, scope)
        if around is not None:
            call = around.between(message, call)
        if message is None or not self._wrapped:
            return await call
        return await self._inside_wraps(message, call)

    async def _inside_wraps(self, message: Received, call: Awaitable[Any]) -> Any:
        """Run a handler inside the hooks that wrap it. The hooks do not change its outcome."""
        inner = Ran()

        async def proceed() -> BaseException | None:
            nonlocal inner
            if self._hooks.on_worker_before_process is not None:
                await self._hooks.on_worker_before_process(message)
            inner = await self._calls.run(call)
            if inner.interrupted:
                raise asyncio.CancelledError
            return inner.error

        failure: Exception | None = None
        try:
            _, failure = (
                await self._calls.run(
                    self._hooks.wrapped(message, proceed), "a hook around the handler had it"
                )
            ).outcome
            if failure is INTERRUPTED:
                raise asyncio.CancelledError
            failure = failure or inner.error
            if failure is not None:
                raise failure
            return inner.result
        finally:
            del inner, failure  # or a traceback would keep them in a cycle

    async def _once(self, work: Work, scope: Scope | None) -> _Kept:
        """Run the handler, unless it ran for another message with the same key."""
        dedup = self._dedup
        assert dedup is not None
        key, result = self._way.duplicate_key(work, dedup), None

        async def run() -> bytes:
            nonlocal result
            result = await self._handled(work, scope)
            return b"" if self._encode is None else self._encode(work, result) or b""

        delivery = _delivery(work, work.delivery.receipt.delivery_count)
        handled = await dedup.run(key, run, delivery)
        if handled.duplicate:
            self._counters.duplicates += 1
            result = plain_data(handled.result or None)
        return _Kept(handled.result or None, result)

    async def _handled(self, work: Work, scope: Scope | None) -> Any:
        """Run the handler itself: with its steps, in a thread if it is sync, within its timeout."""
        if scope is not None and scope.steps is not None:
            await scope.steps.load()
        route = work.route
        if route.at_most_once:  # after the stores, for which a message may wait
            await self._acknowledge(work)
        call: Any = self._call(work, scope)
        if not route.is_async:
            call = self._calls.in_thread(call, limit=route.timeout, who=route.handler)
        elif route.timeout is not None:
            call = self._limited(work, call, route.timeout, scope)
        if scope is not None and scope.acknowledgement is not None:
            return await decided(call, scope.acknowledgement, route.timeout)
        return await call

    async def _acknowledge(self, work: Work) -> None:
        """Acknowledge a message before its handler runs, so that it never runs twice.

        Raises:
            _Unacknowledged: the broker refused; the handler must not run.
        """
        assert self._settler is not None
        refused = await self._settler.settle_now(Complete(work.delivery.receipt))
        if refused is not None:
            raise _Unacknowledged(str(refused))

    async def _limited(
        self, work: Work, call: Awaitable[Any], limit: float, scope: Scope | None
    ) -> Any:
        try:
            steps = None if scope is None else scope.steps
            return await self._calls.limited(call, limit, work.route.handler, steps)
        except TimeoutError as error:
            late = self._way.late(work, limit) if error.interrupted else None
            if late is None:
                raise
            late.interrupted = True
            raise late from error

    def _encoded(self, work: Work, result: Any) -> tuple[bytes | None, Exception | None]:
        """The encoded result to store. A result that cannot be encoded is a failure."""
        assert self._encode is not None
        if isinstance(result, _Kept):
            return result.body, None
        try:
            return self._encode(work, result), None
        except Exception as error:  # noqa: BLE001 - encoding a user's result may raise anything
            return None, error

    def _completed(
        self, work: Work, scope: Scope | None, body: bytes | None, attempt: Attempt | None
    ) -> Outcome:
        """The outcome of a handler that succeeded, with its steps and its result."""
        receipt, simpler = work.delivery.receipt, None
        settlement = None if work.route.at_most_once else Complete(receipt, body)
        if body is not None and settlement is not None:
            simpler = lambda: self._unstorable(work, len(body))  # noqa: E731
        then = None if scope is None else self._after_success(work, scope)
        return Outcome(receipt, settlement, attempt, then, simpler)

    def _interrupted(self, work: Work) -> Outcome:
        """The outcome of a handler that was interrupted because the worker stops.

        The message is released only if the handler may run again and has stopped; a thread may
        still finish. Other messages are redelivered, which is treated like a redelivery after a
        crash.
        """
        receipt, route = work.delivery.receipt, work.route
        again = route.is_async and may_run_again(route.idempotent) and not route.at_most_once
        return Outcome(receipt, Release(receipt) if again else None)

    # -- decide -----------------------------------------------------------------------------------

    async def _failed(
        self, work: Work, error: Exception, scope: Scope | None, started_at: float, duration: float
    ) -> Outcome:
        """The outcome of a handler that failed."""
        receipt = work.delivery.receipt
        if isinstance(error, StoreUnavailableError):
            log.warning("%s goes back to its queue, uncounted: %s", self._way.label(work), error)
            return Outcome(receipt, Release(receipt))
        if isinstance(error, _Unacknowledged):
            log.warning(
                "%s could not be acknowledged, so it was not run: %s", self._way.label(work), error
            )
            return Outcome(receipt, None)
        if work.route.at_most_once:
            decision: Decision = Discard("failed, and delivered at most once")
        else:
            decision = await self._decide(work, error)
        failure = Failure(error, decision, True, LONGEST_TEXT)
        if self._finished is not None:
            await _awaited(self._finished(work, None, failure))
        return self._settled(work, failure, scope, started_at, duration)

    async def _decide(self, work: Work, error: Exception) -> Decision:
        queue = work.delivery.receipt.queue
        try:
            decision = self._way.decide(work, error, await self._asked(work), random())
        except Exception as broken:
            log.exception("the retry policy raised an error; the message becomes a dead letter")
            reason = f"the retry policy failed: {error_text(broken)}"
            decision = SendToDeadLetters("undeliverable", reason)
        if isinstance(decision, SendToDeadLetters):
            kind = "unhandled" if decision.kind == "unhandled" else "undeliverable"
            return self._way.kept(queue, kind, storable_text(decision.reason))
        longest = self._longest_delay
        if isinstance(decision, RetryLater) and longest is not None and decision.delay > longest:
            return RetryLater(longest, decision.reason)
        return decision

    async def _asked(self, work: Work) -> Asked:
        """The decisions of hooks about a message. Invalid values are logged and ignored."""
        hooks = self._hooks
        asks = (hooks.get_attempts, hooks.get_max_deliveries, hooks.get_retry_delay)
        if asks == (None, None, None):
            return NOTHING_ASKED
        envelope = self._way.fact(work).envelope
        answers = [None if ask is None else await ask(envelope) for ask in asks]
        return Asked(
            _usable(optional_whole_number, answers[0], "get_attempts", minimum=1),
            _usable(optional_whole_number, answers[1], "get_max_deliveries", minimum=1),
            _usable(optional_seconds, answers[2], "get_retry_delay"),
        )

    # -- the outcome of a failure -----------------------------------------------------------------

    async def _refused(self, refusal: Refusal) -> Outcome:
        """The outcome of a message that must not, or cannot, run."""
        delivery, work, error = refusal.delivery, refusal.work, refusal.error
        decision = self._way.refuse(refusal)
        if isinstance(decision, SendToDeadLetters):
            reason = storable_text(decision.reason)
            decision = self._kept(delivery, refusal.kind, reason)
        if work is not None:
            ended = decision or Discard(str(error))
            failure = Failure(error, ended, False, LONGEST_TEXT)
            if self._finished is not None:
                await _awaited(self._finished(work, None, failure))
            if refusal.kind != "malformed":
                return self._settled(work, failure, None, self._time(), 0.0)
        if LogContext.wanted:
            HANDLED.set(None)  # or the cancellation would end this slot
        self._counters.failed += 1
        self._counters.note_error(error)
        message = self._way.unread(delivery) if work is None else self._way.fact(work)
        return self._as_it_arrived(delivery, decision, message, error)

    def _kept(self, delivery: Delivery, kind: Any, reason: str) -> SendToDeadLetters | Discard:
        malformed = f"malformed: {reason}" if kind == "malformed" else reason
        return self._way.kept(delivery.receipt.queue, kind, storable_text(malformed))

    def _as_it_arrived(
        self, delivery: Delivery, decision: Decision | None, message: Received, error: Exception
    ) -> Outcome:
        """The outcome of a message that cannot be read: kept in its raw form, or deleted."""
        receipt = delivery.receipt
        outcome = "discard" if decision is None else decision.outcome
        attempt = None
        if self._hooks.attempted is not None:
            attempt = Attempt(
                message, outcome, self._time(), 0.0, error, decision, ran=False, malformed=True
            )
        answered = isinstance(decision, Discard) and decision.answered
        if decision is not None:
            kept = isinstance(decision, SendToDeadLetters)
            log.log(
                logging.INFO if answered else logging.ERROR,
                "a message of %s cannot be handled and was %s: %s",
                receipt.queue,
                "kept unchanged among the dead letters" if kept else "deleted",
                storable_text(str(error) if answered else decision.reason, SHORT_TEXT),
                extra=_extra(message),
            )
        if isinstance(decision, SendToDeadLetters):
            self._counters.dead_lettered += 1
            return kept_as_it_arrived(
                receipt,
                decision.kind,
                decision.reason,
                attempt,
                letter=lambda made: self._way.letter(made, delivery),
            )
        self._counters.discarded += not answered
        return Outcome(receipt, Complete(receipt), attempt)

    def _settled(
        self,
        work: Work,
        failure: Failure,
        scope: Scope | None,
        started_at: float,
        duration: float,
    ) -> Outcome:
        """The outcome of a failure, with simpler forms in case the broker cannot store it."""
        decision, counters = failure.decision, self._counters
        counters.failed += 1
        counters.note_error(failure.shown)
        if isinstance(decision, RetryLater):
            counters.retried += 1
        elif isinstance(decision, SendToDeadLetters):
            counters.dead_lettered += 1
        elif not decision.answered:
            counters.discarded += 1
        self._log(work, failure)

        def form(failure: Failure, simpler: Callable[[], Outcome] | None) -> Outcome:
            receipt, decision = work.delivery.receipt, failure.decision
            if work.route.at_most_once and failure.ran:
                settlement = None
            elif isinstance(decision, Discard):
                settlement = Complete(receipt)
            else:
                message = self._way.successor(work, failure)
                if isinstance(decision, RetryLater):
                    settlement = Retry(receipt, message)
                else:
                    reason = storable_text(decision.reason, failure.longest_text)
                    settlement = self._way.letter(
                        DeadLetter(receipt, decision.kind, reason, message), work.delivery
                    )
            attempt = self._attempt(
                work, failure.shown, decision, started_at, duration, ran=failure.ran
            )
            return Outcome(
                receipt, settlement, attempt, self._after_failure(work, decision, scope), simpler
            )

        def with_short_texts() -> Outcome:
            try:
                short = msgspec.structs.replace(failure, longest_text=SHORT_TEXT, bare=True)
                return form(short, as_it_arrived)
            except Exception:  # raised by a user's codec
                queue = work.delivery.receipt.queue
                log.exception("a message of %s could not be encoded again", queue)
                return as_it_arrived()

        def as_it_arrived() -> Outcome:
            receipt = work.delivery.receipt
            kind = "unhandled" if _kind(decision) == "unhandled" else "undeliverable"
            instead = self._way.kept(receipt.queue, kind, AS_IT_ARRIVED)
            last = form(msgspec.structs.replace(failure, decision=Discard(instead.reason)), None)
            attempt = last.attempt
            if attempt is not None:
                attempt = msgspec.structs.replace(
                    attempt, outcome=instead.outcome, decision=instead
                )
            then = self._after_failure(work, instead, scope)
            if isinstance(instead, Discard):
                return Outcome(receipt, Complete(receipt), attempt, then)
            return kept_as_it_arrived(
                receipt,
                instead.kind,
                instead.reason,
                attempt,
                then,
                letter=lambda made: self._way.letter(made, work.delivery),
            )

        return form(failure, None if isinstance(decision, Discard) else with_short_texts)

    def _unstorable(self, work: Work, size: int) -> Outcome:
        """The outcome of a message whose result can never be stored: a failure, because a retry
        would fail again."""
        error = DontRetry(
            f"it ran to its end, but its result of {size:,} bytes cannot be stored; return a "
            f"reference to the data instead of the data"
        )
        self._counters.succeeded -= 1
        queue = work.delivery.receipt.queue
        decision = self._way.kept(queue, "undeliverable", str(error))
        failure = Failure(error, decision, True, LONGEST_TEXT)
        return self._settled(work, failure, None, self._time(), 0.0)

    def _attempt(
        self,
        work: Work,
        error: Exception,
        decision: Decision,
        started_at: float | None = None,
        duration: float = 0.0,
        *,
        ran: bool,
    ) -> Attempt | None:
        if self._hooks.attempted is None:
            return None
        at = self._time() if started_at is None else started_at
        message = self._way.fact(work)
        return Attempt(message, decision.outcome, at, duration, error, decision, ran=ran)

    def _log(self, work: Work, failure: Failure) -> None:
        decision, error = failure.decision, failure.shown
        if isinstance(decision, RetryLater):
            level, next_ = logging.WARNING, f"retrying in {decision.delay:.3g} s"
        elif isinstance(decision, Discard) and decision.answered:
            level, next_ = logging.INFO, decision.reason
        elif isinstance(decision, SendToDeadLetters):
            level, next_ = logging.ERROR, f"dead-lettered as {decision.kind}: {decision.reason}"
        else:
            level, next_ = logging.ERROR, f"discarded: {decision.reason}"
        surprising = failure.ran and not isinstance(error, DontRetry | EventAssertionError)
        log.log(
            level,
            "%s %s in attempt %d (%s: %s); %s",
            self._way.label(work),
            "failed" if failure.ran else "was not run",
            work.attempt,
            type(error).__name__,
            error_text(error),
            next_,
            exc_info=log_info(error) if level == logging.ERROR and surprising else None,
            extra=_extra(self._way.fact(work)),
        )

    # -- afterwards -------------------------------------------------------------------------------

    def _after_success(self, work: Work, scope: Scope) -> Callable[[], Awaitable[None]] | None:
        steps = scope.steps
        if steps is None or not steps.recorded:
            return None
        return lambda: self._clear(work, "success")

    def _after_failure(
        self, work: Work, decision: Decision, scope: Scope | None
    ) -> Callable[[], Awaitable[None]] | None:
        """Delete or keep stored steps once a failure is settled."""
        # A message that was refused before it ran may have steps of an earlier attempt.
        if work.route.idempotent != "resumable" or isinstance(decision, RetryLater):
            return None
        if scope is not None and scope.steps is not None and not scope.steps.recorded:
            return None
        if isinstance(decision, Discard):
            return lambda: self._clear(work, "discarded")

        async def keep() -> None:
            try:  # a redrive must not repeat completed steps
                await self._checkpoints.keep(self._way.checkpoint_id(work), DEAD_LETTER_TTL)
            except Exception:
                log.exception("could not set the expiry of the checkpoint of %s", work.id)

        return keep

    async def _clear(self, work: Work, reason: str) -> None:
        """Delete the steps of a finished message. An error is logged."""
        try:
            await self._checkpoints.delete(self._way.checkpoint_id(work))
        except Exception:
            log.exception("could not clear the checkpoint of %s; it is harmless", work.id)
            return
        if self._hooks.on_checkpoint_cleared is not None:
            await self._hooks.on_checkpoint_cleared(
                CheckpointEvent(work.id, work.route.handler, reason=reason)
            )


def _extra(message: Received) -> dict[str, object]:
    """The fields of a log line about a message."""
    return {f"matador_{name}": value for name, value in message.log_fields().items()}


def _delivery(work: Work, number: int) -> str:
    """The id of one delivery of a message."""
    return f"{work.delivery.receipt.queue}:{work.id}:{work.attempt}:{number}"


def _kind(decision: Decision) -> str | None:
    return decision.kind if isinstance(decision, SendToDeadLetters) else None


def _usable(check: Callable[..., Any], value: Any, name: str, **limits: Any) -> Any:
    try:
        return check(value, name, **limits)
    except ConfigurationError as error:
        log.error("%s; the retry policy decides instead", error)
        return None


async def _awaited(finished: Finished) -> bytes | None:
    return finished if finished is None or isinstance(finished, bytes) else await finished


def longest_delay(delays: bool, max_delay: float | None) -> float | None:
    """The longest delay of a retry on a transport: none at all where delays are unsupported."""
    if not delays:
        log.warning("the transport cannot delay messages: failed messages are retried at once")
        return 0.0
    return max_delay
