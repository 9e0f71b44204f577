"""The events' handler: one delivery, from raw bytes to its outcome.

Read ``process`` from top to bottom: decode, look up, admit, validate, run. Whatever fails on the
way is settled by ``failures.py``. Nothing is settled here but messages delivered at most once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from matador.codec.base import Codec, PayloadDecoder, RawEnvelope, preparing
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
from matador.events.checkpoints import CheckpointStore
from matador.events.context import Context, EventSender, SyncContext
from matador.events.failures import Failures
from matador.events.hooks import (
    DecodeFailure,
    HookSet,
    Processing,
    WorkerError,
    WorkerSuccess,
)
from matador.events.steps import Steps
from matador.model.capabilities import DeliveryMode
from matador.model.envelope import MOST_ATTEMPTS, ROOM_FOR_ERRORS, Envelope
from matador.model.event import EventType
from matador.model.message import Complete, Delivery, Receipt, Release
from matador.model.schema import Schema
from matador.model.subscriber import Subscriber, SubscriberStub
from matador.model.text import SHORT_TEXT, storable_text
from matador.policy.admission import refuse
from matador.policy.retry import Decision, Discard, SendToDeadLetters, may_run_again
from matador.runtime.calls import InOwnContext, Ran, raising
from matador.runtime.settle import Outcome, kept_as_it_arrived
from matador.runtime.worker import DeliveryWorker
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")

MalformedStrategy: TypeAlias = Literal["dead-letter", "reject", "ignore"]
"""What becomes of bytes that are not an envelope. ``dead-letter`` (default): kept as they are among
the undeliverable ones. ``reject``: deleted, with an error in the log. ``ignore``: deleted."""


class _Route(msgspec.Struct, frozen=True):
    """Who handles the messages of one event for one subscriber, and how."""

    event: EventType
    subscriber: Subscriber[Any]
    decode: PayloadDecoder
    at_most_once: bool
    steps: bool
    plain: bool  # an ``async def`` of the envelope alone, and nothing around it


class EventHandler:
    """Handles deliveries of events. Called by many slots at once; keeps no state between messages.

    ``timeouts`` has the longest run a queue allows, by its full name.
    """

    def __init__(
        self,
        worker: DeliveryWorker,
        *,
        schema: Schema,
        codec: Codec,
        hooks: HookSet,
        checkpoints: CheckpointStore,
        clock: Clock,
        failures: Failures,
        sender: EventSender,
        transport_name: str,
        delivery: DeliveryMode,
        malformed: MalformedStrategy,
        max_message_size: int,
        timeouts: Mapping[str, float],
    ) -> None:
        self._calls = worker.calls
        self._settler = worker.settler
        self._leases = worker.leases
        self._schema = schema
        self._codec = codec
        self._hooks = hooks
        self._hooked = bool(hooks.wraps) or hooks.on_worker_before_process is not None
        self._checkpoints = checkpoints
        self._clock = clock
        self._failures = failures
        self._sender = sender
        self._transport = transport_name
        self._malformed: MalformedStrategy = malformed
        self._max_size = max_message_size
        self._timeouts = timeouts
        self._routes: dict[tuple[str, str], _Route] = {
            (key, one.name): self._route(event, one, delivery)
            for event, subscribers in schema
            for key in event.keys
            for one in subscribers
            if isinstance(one, Subscriber)
        }

    def _route(self, event: EventType, one: Subscriber[Any], delivery: DeliveryMode) -> _Route:
        prepared = preparing(self._codec)
        steps = one.idempotent == "resumable"
        at_most_once = (one.delivery or delivery) == "at-most-once"
        return _Route(
            event,
            one,
            partial(self._codec.decode_payload, event)
            if prepared is None
            else prepared.payload_decoder(event),
            at_most_once,
            steps,
            one.is_plain
            and not (steps or at_most_once or self._hooked or self._timeouts)
            and self._hooks.on_worker_success is None
            and self._hooks.on_worker_error is None,
        )

    async def process(self, delivery: Delivery) -> Outcome:
        """Handle a delivery. Whatever happens is an outcome."""
        try:
            raw = self._decode(delivery)
            receipt = delivery.receipt
            docket = raw.docket
            route = self._routes.get((docket.event_key, docket.target_subscriber))
            if route is None:
                return self._refuse(raw, receipt, None, self._unknown(raw), "unhandled")
            if receipt.redelivered or receipt.delivery_count > 1:
                most = await self._failures.max_deliveries(raw)
                refusal = refuse(receipt, route.subscriber, most)
                if refusal is not None:
                    return self._refuse(raw, receipt, route.subscriber, refusal, "undeliverable")
            try:
                before = None if raw.before is None else route.decode(raw.before)
                envelope = Envelope(raw.id, route.decode(raw.data), docket, before)
            except AmbiguousPayloadError as error:
                raise DecodeError(str(error)) from error
            except InvalidEventError as error:
                return self._refuse(raw, receipt, route.subscriber, error, "undeliverable")
            if route.plain:  # most messages: nothing is around the callback, and nobody is told
                context, callback = copy_context(), route.subscriber.callback(envelope)
                try:
                    step = context.run(callback.send, None)
                except StopIteration:  # it did not have to wait for anything
                    return Outcome(receipt, Complete(receipt))
                except BaseException as error:  # noqa: BLE001 - the same as of one that waited
                    call = raising(error)
                else:
                    call = InOwnContext(callback, context, step)
                return await self._run_plainly(raw, envelope, route.subscriber, receipt, call)
            if route.at_most_once:
                return await self._run_at_most_once(raw, envelope, route, receipt)
            return await self._run(raw, envelope, route, receipt)
        except DecodeError as error:
            return self._refuse_malformed(delivery, error, self._malformed)
        except Exception as error:  # a codec or a policy of the user's that does what it must not
            log.exception("a message of %s could not be processed", delivery.receipt.queue)
            return self.give_up(delivery, f"{type(error).__name__}: {error}")

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        """The outcome of a delivery that cannot be processed to its end.

        It is kept whatever the strategy: for all we know the message itself is a good one.
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
                "kept as it is" if kept else "deleted",
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
        raw: RawEnvelope,
        receipt: Receipt,
        subscriber: Subscriber[Any] | None,
        error: MatadorError,
        kind: Literal["unhandled", "undeliverable"],
    ) -> Outcome:
        """A message that must not, or cannot, run."""
        decision = self._failures.dead_letter(kind, str(error))
        failure = WorkerError(
            raw,
            subscriber,
            error,
            decision,
            receipt.queue,
            self._transport,
            receipt,
            self._clock.time(),
            0.0,
            False,
        )
        return self._failures.outcome(raw, failure, None)

    # -- run --------------------------------------------------------------------------------------

    async def _run_plainly(
        self,
        raw: RawEnvelope,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        call: Awaitable[Any],
    ) -> Outcome:
        """``_run`` for a callback that has begun, with nothing around it."""
        ran = await self._calls.run(call)
        if ran.error is None and not ran.interrupted:
            return Outcome(receipt, Complete(receipt))
        try:
            return await self._ended(raw, envelope, subscriber, receipt, ran)
        finally:
            del ran

    async def _run_at_most_once(
        self, raw: RawEnvelope, envelope: Envelope[Any], route: _Route, receipt: Receipt
    ) -> Outcome:
        """Acknowledge, then run: whatever happens afterwards, it does not run again."""
        refused = await self._settler.settle_now(Complete(receipt))
        if refused is not None:
            log.warning(
                "a message of %s could not be acknowledged, so it was not run: %s",
                receipt.queue,
                refused,
            )
            return Outcome(receipt, None)
        outcome = await self._run(raw, envelope, route, receipt, settled=True)
        return msgspec.structs.replace(outcome, settlement=None)

    async def _run(
        self,
        raw: RawEnvelope,
        envelope: Envelope[Any],
        route: _Route,
        receipt: Receipt,
        *,
        settled: bool = False,
    ) -> Outcome:
        subscriber = route.subscriber
        steps: Steps | None = None
        if route.steps:
            steps = Steps(self._checkpoints, self._hooks, envelope.id, subscriber.name)
        started_at, start = self._clock.time(), self._clock.monotonic()
        if self._hooked:
            ran = await self._run_inside_hooks(envelope, subscriber, receipt, steps)
        else:
            ran = await self._calls.run(
                InOwnContext(self._call(envelope, subscriber, receipt, steps))
            )
        duration = self._clock.monotonic() - start
        if ran.interrupted or ran.error is not None:
            try:
                return await self._ended(
                    raw, envelope, subscriber, receipt, ran, steps, started_at, duration, settled
                )
            finally:
                del ran
        if self._hooks.on_worker_success is None and steps is None:
            return Outcome(receipt, Complete(receipt))
        success = WorkerSuccess(
            envelope,
            subscriber,
            ran.result,
            receipt.queue,
            self._transport,
            receipt,
            started_at,
            duration,
        )
        quick = steps is None and self._hooks.quick
        return Outcome(receipt, Complete(receipt), self._after_success(success, steps), quick)

    async def _run_inside_hooks(
        self,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        steps: Steps | None,
    ) -> Ran:
        """Run a callback inside the hooks. What it raises is noted, and not seen by the hooks."""
        inner = Ran()

        async def proceed() -> None:
            nonlocal inner
            if self._hooks.on_worker_before_process is not None:
                await self._hooks.on_worker_before_process(event)
            inner = await self._calls.run(self._call(envelope, subscriber, receipt, steps))
            if inner.interrupted:
                raise asyncio.CancelledError

        event = Processing(envelope, subscriber, receipt.queue, self._transport, receipt)
        try:
            outer = await self._calls.run(
                InOwnContext(self._hooks.wrapped(event, proceed)),
                "a hook around the callback had it",
            )
            return outer if outer.interrupted or outer.error is not None else inner
        finally:
            del inner

    async def _call(
        self,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        steps: Steps | None,
    ) -> Any:
        """The callback itself: sync or async, with or without a context, within its time limit."""
        if steps is not None:
            await steps.load()
        arguments: tuple[Any, ...] = (envelope,)
        if subscriber.takes_context:
            context = Context(envelope, receipt, self._sender, steps)
            if self._leases is not None:
                self._leases.when_lost(receipt, context.mark_lease_lost)
            arguments = (
                envelope,
                context
                if subscriber.is_async
                else SyncContext(context, asyncio.get_running_loop()),
            )
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
        raw: RawEnvelope,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        ran: Ran,
        steps: Steps | None = None,
        started_at: float | None = None,
        duration: float = 0.0,
        settled: bool = False,
    ) -> Outcome:
        """A callback that did not return: it was interrupted, or it failed."""
        if ran.error is None:
            # Given back only if it may run again, and has stopped: a thread may still finish. The
            # others come back as redelivered, which decides about them as after a crash.
            again = subscriber.is_async and may_run_again(subscriber)
            return Outcome(receipt, Release(receipt) if again else None)
        decision = (
            Discard("failed, and delivered at most once")
            if settled
            else await self._failures.decide(envelope, ran.error, subscriber, receipt)
        )
        failure = WorkerError(
            envelope,
            subscriber,
            ran.error,
            decision,
            receipt.queue,
            self._transport,
            receipt,
            self._clock.time() if started_at is None else started_at,
            duration,
            True,
        )
        return self._failures.outcome(raw, failure, steps)

    def _after_success(
        self, success: WorkerSuccess, steps: Steps | None
    ) -> Callable[[], Awaitable[None]]:
        async def after() -> None:
            if steps is not None and steps.recorded:
                await self._failures.clear_checkpoint(success.envelope, "success")
            if self._hooks.on_worker_success is not None:
                await self._hooks.on_worker_success(success)

        return after


def _with_attempts(raw: RawEnvelope, more: int) -> RawEnvelope:
    """The message, counting attempts that others made, too."""
    attempts = min(raw.docket.attempts + more, MOST_ATTEMPTS)
    docket = msgspec.structs.replace(raw.docket, attempts=attempts)
    return msgspec.structs.replace(raw, docket=docket)
