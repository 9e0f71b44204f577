"""The handler for events: takes one delivery from raw bytes to its outcome.

Read ``process`` from top to bottom: decode, look up, admit, validate, run. ``failures.py`` settles
the messages that fail on the way. Only at-most-once messages are settled here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, Literal

import msgspec

from matador.codec.base import PayloadDecoder, RawEnvelope, preparing
from matador.errors import (
    AmbiguousPayloadError,
    DecodeError,
    EventNotRegisteredError,
    InvalidEventError,
    MatadorError,
    MessageTooLargeError,
    SubscriberIsStubError,
    SubscriberNotRegisteredError,
)
from matador.events.config import AppConfig, MalformedStrategy
from matador.events.context import Context, EventSender, SyncContext
from matador.events.failures import Failures
from matador.events.hooks import DecodeFailure, HookSet, Processing, WorkerSuccess
from matador.events.short_forms import Success, Surrounding, TellSuccesses
from matador.events.steps import Steps
from matador.model.capabilities import DeliveryMode
from matador.model.envelope import MOST_ATTEMPTS, ROOM_FOR_ERRORS, Docket, Envelope
from matador.model.event import EventType
from matador.model.message import Complete, Delivery, Receipt, Release
from matador.model.subscriber import Subscriber, SubscriberStub
from matador.model.text import SHORT_TEXT, storable_text
from matador.policy.admission import refuse
from matador.policy.retry import Decision, Discard, SendToDeadLetters, may_run_again
from matador.runtime.calls import InOwnContext, Ran, raising
from matador.runtime.log_context import HANDLED, LogContext
from matador.runtime.settle import Outcome, kept_as_it_arrived
from matador.runtime.worker import DeliveryWorker

log = logging.getLogger("matador.worker")


class _Route(msgspec.Struct, frozen=True):
    """How messages of one event are handled for one subscriber."""

    event: EventType
    subscriber: Subscriber[Any]
    decode: PayloadDecoder
    at_most_once: bool
    steps: bool
    plain: bool  # an ``async def`` that takes only the envelope, with no hooks or timeouts
    light: bool  # the same with hooks, all of which are sync
    short: bool  # the same with hooks that have short forms
    tallies: dict[str, TellSuccesses]  # of successes, by queue


class _Attempt(msgspec.Struct, frozen=True, gc=False):
    """One message that is being handled."""

    delivery: Delivery
    raw: RawEnvelope
    envelope: Envelope[Any]
    route: _Route

    @property
    def receipt(self) -> Receipt:
        return self.delivery.receipt

    @property
    def subscriber(self) -> Subscriber[Any]:
        return self.route.subscriber


class _LogFields(msgspec.Struct, frozen=True, gc=False):
    """What log lines say of the message. Without its payload, which lives no longer than needed."""

    id: str
    docket: Docket
    queue: str

    def log_fields(self) -> dict[str, object]:
        docket = self.docket
        return {
            "message_id": self.id,
            "event": docket.event_key,
            "subscriber": docket.target_subscriber,
            "queue": self.queue,
            "correlation_id": docket.correlation_id,
            "attempt": docket.attempts,
        }


class EventHandler:
    """Handles deliveries of events for many slots at once. Keeps no state between messages."""

    def __init__(
        self, config: AppConfig, worker: DeliveryWorker, hooks: HookSet, sender: EventSender
    ) -> None:
        self._calls = worker.calls
        self._settler = worker.settler
        self._leases = worker.leases
        self._schema = config.schema
        self._codec = config.used_codec
        self._hooks = hooks
        self._hooked = bool(hooks.wraps) or hooks.on_worker_before_process is not None
        self._short = hooks.short_attempt
        self._tally = hooks.short_success
        self._checkpoints = config.checkpoints
        self._clock = config.clock
        self._time, self._monotonic = config.clock.time, config.clock.monotonic
        self._failures = Failures(config, hooks)
        self._sender = sender
        self._transport = config.transport.name
        self._malformed: MalformedStrategy = config.malformed
        self._max_size = config.max_message_size
        self._timeouts = {
            config.topology.full_name(queue.name): queue.consumer_timeout
            for queue in config.topology.queues
            if queue.consumer_timeout is not None
        }
        self._routes: dict[tuple[str, str], _Route] = {
            (key, one.name): self._route(event, one, config.delivery)
            for event, subscribers in config.schema
            for key in event.keys
            for one in subscribers
            if isinstance(one, Subscriber)
        }

    def _route(self, event: EventType, one: Subscriber[Any], delivery: DeliveryMode) -> _Route:
        prepared = preparing(self._codec)
        steps = one.idempotent == "resumable"
        at_most_once = (one.delivery or delivery) == "at-most-once"
        simple = one.is_plain and not (steps or at_most_once or self._hooked or self._timeouts)
        return _Route(
            event,
            one,
            partial(self._codec.decode_payload, event)
            if prepared is None
            else prepared.payload_decoder(event),
            at_most_once,
            steps,
            simple
            and self._hooks.around is None
            and self._hooks.on_worker_success is None
            and self._hooks.on_worker_error is None,
            simple and self._hooks.quick,
            simple
            and self._hooks.quick
            and (self._hooks.around is None or self._short is not None)
            and (self._hooks.on_worker_success is None or self._tally is not None),
            {},
        )

    async def process(self, delivery: Delivery) -> Outcome:
        """Handle a delivery. Every failure becomes an outcome."""
        try:
            raw = self._decode(delivery)
            receipt = delivery.receipt
            docket = raw.docket
            if LogContext.wanted:
                HANDLED.set(_LogFields(raw.id, docket, receipt.queue))
            route = self._routes.get((docket.event_key, docket.target_subscriber))
            if route is None:
                return self._refuse(delivery, raw, None, self._unknown(raw), "unhandled")
            if receipt.redelivered or receipt.delivery_count > 1:
                most = await self._failures.max_deliveries(raw)
                refusal = refuse(receipt, route.subscriber, most)
                if refusal is not None:
                    return self._refuse(delivery, raw, route.subscriber, refusal, "undeliverable")
            try:
                before = None if raw.before is None else route.decode(raw.before)
                envelope = Envelope(raw.id, route.decode(raw.data), docket, before)
            except AmbiguousPayloadError as error:
                raise DecodeError(str(error)) from error
            except InvalidEventError as error:
                return self._refuse(delivery, raw, route.subscriber, error, "undeliverable")
            if route.plain:  # the fast path, for most messages
                context, callback = copy_context(), route.subscriber.callback(envelope)
                try:
                    step = context.run(callback.send, None)
                except StopIteration:  # it finished without waiting
                    return Outcome(receipt, Complete(receipt))
                except BaseException as error:  # noqa: BLE001 - handled like an error after a wait
                    call = raising(error)
                else:
                    call = InOwnContext(callback, context, step)
                return await self._finish_plain(_Attempt(delivery, raw, envelope, route), call)
            if route.short:
                context = copy_context()
                around: Surrounding | bool = True
                if self._short is not None:
                    try:
                        around = self._short(
                            context, raw.id, docket, receipt.queue, self._transport
                        )
                    except Exception:
                        log.exception("the hook on_worker_enter raised an error, which was ignored")
                        around = False
                if around is not False:
                    started_at, start = self._time(), self._monotonic()
                    callback = route.subscriber.callback(envelope)
                    try:
                        step = context.run(callback.send, None)
                    except StopIteration:  # it finished without waiting
                        duration = self._monotonic() - start
                        if around is not True:
                            _finish(around, None)
                        tally = route.tallies.get(receipt.queue)
                        measured = docket, started_at, duration, raw.id, receipt.delivery_count
                        if tally is None:
                            return self._short_success(receipt, route, measured)
                        return Outcome(  # as most often
                            receipt, Complete(receipt), None, True, None, 0, tally, measured
                        )
                    except BaseException as error:  # noqa: BLE001 - handled like an error after a wait
                        call = raising(error)
                    else:
                        call = InOwnContext(callback, context, step)
                    attempt = _Attempt(delivery, raw, envelope, route)
                    return await self._finish_short(attempt, call, around, started_at, start)
            attempt = _Attempt(delivery, raw, envelope, route)
            if route.light:
                return await self._run_light(attempt)
            if route.at_most_once:
                return await self._run_at_most_once(attempt)
            return await self._run(attempt)
        except DecodeError as error:
            HANDLED.set(None)  # or it would be the last message of this slot
            return self._refuse_malformed(delivery, error, self._malformed)
        except Exception as error:  # from a user's codec or policy
            HANDLED.set(None)
            log.exception("a message of %s could not be processed", delivery.receipt.queue)
            return self.give_up(delivery, f"{type(error).__name__}: {error}")

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        """The outcome of a delivery whose processing failed unexpectedly.

        It becomes a dead letter with any ``malformed`` option: the message itself may be valid.
        """
        broken = DecodeError(f"could not be processed: {reason}")
        return self._refuse_malformed(delivery, broken, "dead-letter")

    # -- decode -----------------------------------------------------------------------------------

    def _decode(self, delivery: Delivery) -> RawEnvelope:
        if delivery.problem is not None:
            raise DecodeError(delivery.problem)
        size, limit = len(delivery.body), self._max_size
        if size > limit + ROOM_FOR_ERRORS:
            raise DecodeError(str(MessageTooLargeError(size, limit)))
        raw = self._codec.decode(delivery.body, delivery.headers, self._clock)
        if size > limit and raw.docket.last_error is None:
            raise DecodeError(str(MessageTooLargeError(size, limit)))
        more = delivery.receipt.attempts_elsewhere
        return _with_attempts(raw, more) if more else raw

    def _refuse_malformed(
        self, delivery: Delivery, error: DecodeError, strategy: MalformedStrategy
    ) -> Outcome:
        receipt = delivery.receipt
        decision: Decision | None = None
        if strategy == "dead-letter":
            decision = self._failures.dead_letter("undeliverable", f"malformed: {error}")
        elif strategy == "reject":
            decision = Discard(f"malformed: {error}")
        if decision is not None:
            kept = isinstance(decision, SendToDeadLetters)
            log.error(
                "a message of %s is malformed and was %s: %s",
                receipt.queue,
                "kept unchanged" if kept else "deleted",
                storable_text(str(error), SHORT_TEXT),
            )
        hook = self._hooks.on_decode_error
        then: Callable[[], Awaitable[None]] | None = None
        if hook is not None:
            event = DecodeFailure(error, delivery, receipt.queue, self._transport, decision)
            then = partial(hook, event)
        if not isinstance(decision, SendToDeadLetters):
            return Outcome(receipt, Complete(receipt), then, self._hooks.quick)
        return kept_as_it_arrived(
            receipt, decision.kind, decision.reason, then, quick=self._hooks.quick
        )

    # -- look up and admit ------------------------------------------------------------------------

    def _unknown(self, raw: RawEnvelope) -> MatadorError:
        key, name = raw.docket.event_key, raw.docket.target_subscriber
        if key not in self._schema:
            return EventNotRegisteredError(f"event {key!r} is not in the schema")
        if isinstance(self._schema.find_subscriber(key, name), SubscriberStub):
            return SubscriberIsStubError(f"subscriber {name!r} of {key!r} is only a stub here")
        return SubscriberNotRegisteredError(f"event {key!r} has no subscriber {name!r}")

    def _refuse(
        self,
        delivery: Delivery,
        raw: RawEnvelope,
        subscriber: Subscriber[Any] | None,
        error: MatadorError,
        kind: Literal["unhandled", "undeliverable"],
    ) -> Outcome:
        """The outcome of a message that must not, or cannot, run."""
        decision = self._failures.dead_letter(kind, str(error))
        return self._failures.outcome(delivery, raw, raw, subscriber, error, decision, ran=False)

    # -- run --------------------------------------------------------------------------------------

    async def _finish_plain(self, attempt: _Attempt, call: Awaitable[Any]) -> Outcome:
        """``_run`` for a plain callback that has already started."""
        ran = await self._calls.run(call)
        receipt = attempt.delivery.receipt
        if ran.error is None and not ran.interrupted:
            return Outcome(receipt, Complete(receipt))
        try:
            return await self._ended(attempt, ran)
        finally:
            del ran

    async def _finish_short(
        self,
        attempt: _Attempt,
        call: Awaitable[Any],
        around: Surrounding | bool,
        started_at: float,
        start: float,
    ) -> Outcome:
        """``_finish_plain`` with hooks that have short forms."""
        ran = await self._calls.run(call)
        duration = self._monotonic() - start
        if not isinstance(around, bool):
            stopped = asyncio.CancelledError() if ran.interrupted else None
            _finish(around, stopped or ran.error)
        if ran.error is None and not ran.interrupted:
            envelope, receipt = attempt.envelope, attempt.receipt
            return self._short_success(
                receipt,
                attempt.route,
                (envelope.docket, started_at, duration, envelope.id, receipt.delivery_count),
            )
        try:
            return await self._ended(attempt, ran, None, started_at, duration)
        finally:
            del ran

    def _short_success(self, receipt: Receipt, route: _Route, measured: Success) -> Outcome:
        """The outcome of a callback that returned, of which hooks are told once it is settled."""
        if self._tally is None:
            return Outcome(receipt, Complete(receipt))
        queue, docket = receipt.queue, measured[0]
        tally = route.tallies.get(queue)
        if tally is None:
            event_key, subscriber = docket.event_key, docket.target_subscriber
            tally = self._tally(queue, event_key, subscriber, self._transport)
            route.tallies[queue] = tally
        return Outcome(receipt, Complete(receipt), None, True, None, 0, tally, measured)

    async def _run_light(self, attempt: _Attempt) -> Outcome:
        """``_run`` for a plain callback with hooks that are sync: the same in less time."""
        hooks, receipt, envelope = self._hooks, attempt.delivery.receipt, attempt.envelope
        subscriber = attempt.route.subscriber
        context, around = copy_context(), hooks.around
        event = states = None
        started_at, start = self._time(), self._monotonic()
        if around is not None:
            event = Processing(envelope, subscriber, receipt.queue, self._transport, receipt)
            states = context.run(around.enter, event)
        callback = subscriber.callback(envelope)
        try:
            step = context.run(callback.send, None)
        except StopIteration as done:  # it finished without waiting
            ran = Ran(done.value)
        except BaseException as error:  # noqa: BLE001 - handled like an error after a wait
            ran = await self._calls.run(raising(error))
        else:
            ran = await self._calls.run(InOwnContext(callback, context, step))
        duration = self._monotonic() - start
        if around is not None and states is not None:
            stopped = asyncio.CancelledError() if ran.interrupted else None
            context.run(around.exit, event, states, stopped or ran.error)
        if ran.interrupted or ran.error is not None:
            try:
                return await self._ended(attempt, ran, None, started_at, duration)
            finally:
                del ran
        tell = hooks.tell_success
        if tell is None:
            return Outcome(receipt, Complete(receipt))
        success = self._success(attempt, ran, started_at, duration)
        return Outcome(receipt, Complete(receipt), partial(tell, success), True)

    async def _run_at_most_once(self, attempt: _Attempt) -> Outcome:
        """Acknowledge first, then run, so that the message never runs twice."""
        receipt = attempt.receipt
        refused = await self._settler.settle_now(Complete(receipt))
        if refused is not None:
            log.warning(
                "a message of %s could not be acknowledged, so it was not run: %s",
                receipt.queue,
                refused,
            )
            return Outcome(receipt, None)
        outcome = await self._run(attempt, settled=True)
        return msgspec.structs.replace(outcome, settlement=None)

    async def _run(self, attempt: _Attempt, *, settled: bool = False) -> Outcome:
        envelope, subscriber, receipt = attempt.envelope, attempt.subscriber, attempt.receipt
        steps: Steps | None = None
        if attempt.route.steps:
            steps = Steps(self._checkpoints, self._hooks, envelope.id, subscriber.name)
        started_at, start = self._time(), self._monotonic()
        if self._hooked:
            ran = await self._run_inside_hooks(attempt, steps)
        else:
            ran = await self._calls.run(InOwnContext(self._call_around(attempt, steps)))
        duration = self._monotonic() - start
        if ran.interrupted or ran.error is not None:
            try:
                return await self._ended(attempt, ran, steps, started_at, duration, settled)
            finally:
                del ran
        if self._hooks.on_worker_success is None and steps is None:
            return Outcome(receipt, Complete(receipt))
        success = self._success(attempt, ran, started_at, duration)
        quick = steps is None and self._hooks.quick
        return Outcome(receipt, Complete(receipt), self._after_success(success, steps), quick)

    def _success(
        self, attempt: _Attempt, ran: Ran, started_at: float, duration: float
    ) -> WorkerSuccess:
        receipt = attempt.receipt
        return WorkerSuccess(
            attempt.envelope,
            attempt.subscriber,
            ran.result,
            receipt.queue,
            self._transport,
            receipt,
            started_at,
            duration,
        )

    async def _run_inside_hooks(self, attempt: _Attempt, steps: Steps | None) -> Ran:
        """Run a callback inside the hooks. The hooks do not see its errors."""
        inner = Ran()

        async def proceed() -> BaseException | None:
            nonlocal inner
            if self._hooks.on_worker_before_process is not None:
                await self._hooks.on_worker_before_process(event)
            inner = await self._calls.run(self._call_around(attempt, steps))
            if inner.interrupted:
                raise asyncio.CancelledError
            return inner.error

        receipt = attempt.receipt
        event = Processing(
            attempt.envelope, attempt.subscriber, receipt.queue, self._transport, receipt
        )
        try:
            outer = await self._calls.run(
                InOwnContext(self._hooks.wrapped(event, proceed)),
                "a hook around the callback had it",
            )
            return outer if outer.interrupted or outer.error is not None else inner
        finally:
            del inner

    def _call_around(self, attempt: _Attempt, steps: Steps | None) -> Coroutine[Any, Any, Any]:
        """The callback between the hooks that surround it, if there are any."""
        call, around = self._call(attempt, steps), self._hooks.around
        if around is None:
            return call
        receipt = attempt.receipt
        event = Processing(
            attempt.envelope, attempt.subscriber, receipt.queue, self._transport, receipt
        )
        return around.between(event, call)

    async def _call(self, attempt: _Attempt, steps: Steps | None) -> Any:
        """The callback itself: sync or async, with or without a context, within its time limit."""
        if steps is not None:
            await steps.load()
        envelope, subscriber, receipt = attempt.envelope, attempt.subscriber, attempt.receipt
        arguments: tuple[Any, ...] = (envelope,)
        if subscriber.takes_context:
            kind = Context if subscriber.is_async else SyncContext
            context = kind(envelope, receipt, self._sender, steps)
            if self._leases is not None:
                self._leases.when_lost(receipt, context.mark_lease_lost)
            arguments = (envelope, context)
        limit = self._timeouts.get(receipt.queue)
        if not subscriber.is_async:
            who = f"the sync subscriber {subscriber.name!r}"
            return await self._calls.in_thread(
                subscriber.callback, *arguments, limit=limit, who=who
            )
        call = subscriber.callback(*arguments)
        if limit is None:
            return await call
        return await self._calls.limited(call, limit, f"subscriber {subscriber.name!r}")

    # -- ended ------------------------------------------------------------------------------------

    async def _ended(
        self,
        attempt: _Attempt,
        ran: Ran,
        steps: Steps | None = None,
        started_at: float | None = None,
        duration: float = 0.0,
        settled: bool = False,
    ) -> Outcome:
        """The outcome of a callback that did not return: it was interrupted, or it failed."""
        subscriber, receipt = attempt.subscriber, attempt.receipt
        if ran.error is None:
            # Released only if it may run again and has stopped; a thread may still finish. The
            # others are redelivered, which is treated like a redelivery after a crash.
            again = subscriber.is_async and may_run_again(subscriber)
            return Outcome(receipt, Release(receipt) if again else None)
        decision = (
            Discard("failed, and delivered at most once")
            if settled
            else await self._failures.decide(attempt.envelope, ran.error, subscriber, receipt)
        )
        return self._failures.outcome(
            attempt.delivery,
            attempt.raw,
            attempt.envelope,
            subscriber,
            ran.error,
            decision,
            steps,
            started_at,
            duration,
        )

    def _after_success(
        self, success: WorkerSuccess, steps: Steps | None
    ) -> Callable[[], Awaitable[None]]:
        async def after() -> None:
            if steps is not None and steps.recorded:
                await self._failures.clear_checkpoint(success.envelope, "success")
            if self._hooks.on_worker_success is not None:
                await self._hooks.on_worker_success(success)

        return after


def _finish(surrounding: Surrounding, error: BaseException | None) -> None:
    try:
        surrounding.finish(error)
    except Exception:
        log.exception("the hook on_worker_exit raised an error, which was ignored")


def _with_attempts(raw: RawEnvelope, more: int) -> RawEnvelope:
    """The message with ``more`` attempts, made by workers of another kind."""
    attempts = min(raw.docket.attempts + more, MOST_ATTEMPTS)
    docket = msgspec.structs.replace(raw.docket, attempts=attempts)
    return msgspec.structs.replace(raw, docket=docket)
