"""One delivery, from raw bytes to its outcome: decode, look up, admit, validate, run, resolve.

Nothing is settled here: the outcome says what is to be done, and the settler does it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from matador.codec.base import Codec, RawEnvelope
from matador.codec.json import find_duplicate_key
from matador.errors import (
    DecodeError,
    DontRetry,
    EventAssertionError,
    EventNotRegisteredError,
    InvalidEventError,
    MatadorError,
    MessageTooLargeError,
    SubscriberIsStubError,
    SubscriberNotRegisteredError,
)
from matador.events.checkpoints import DEAD_LETTER_TTL, CheckpointStore
from matador.events.hooks import (
    CheckpointEvent,
    DecodeFailure,
    HookSet,
    WorkerError,
    WorkerSuccess,
)
from matador.events.resolver import Resolver, error_text
from matador.events.runner import Runner
from matador.events.steps import Steps
from matador.model.capabilities import DeliveryMode
from matador.model.envelope import MOST_ATTEMPTS, ROOM_FOR_ERRORS, Envelope
from matador.model.event import EventType
from matador.model.message import Complete, DeadLetter, Delivery, Receipt, Release
from matador.model.schema import Schema
from matador.model.subscriber import Subscriber, SubscriberStub
from matador.model.text import SHORT_TEXT, storable_text
from matador.policy.admission import refuse
from matador.policy.retry import (
    Decision,
    Discard,
    RetryLater,
    SendToDeadLetters,
    may_run_again,
)
from matador.runtime.settle import Outcome, Settler
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")

MalformedStrategy: TypeAlias = Literal["dead-letter", "reject", "ignore"]
"""What becomes of bytes that are not an envelope. ``dead-letter`` (default): kept as they are among
the undeliverable ones. ``reject``: deleted, with an error in the log. ``ignore``: deleted."""

AS_IT_ARRIVED = "kept as it arrived: the broker could not store it together with its error"
"""The reason of a dead letter that did not fit with its own."""


class Processor:
    """Handles deliveries. Called by many slots at once; keeps no state between messages."""

    def __init__(
        self,
        *,
        schema: Schema,
        codec: Codec,
        hooks: HookSet,
        checkpoints: CheckpointStore,
        clock: Clock,
        resolver: Resolver,
        runner: Runner,
        settler: Settler,
        transport_name: str,
        delivery: DeliveryMode,
        malformed: MalformedStrategy,
        max_message_size: int,
    ) -> None:
        self._schema = schema
        self._codec = codec
        self._hooks = hooks
        self._checkpoints = checkpoints
        self._clock = clock
        self._resolver = resolver
        self._runner = runner
        self._settler = settler
        self._transport = transport_name
        self._delivery: DeliveryMode = delivery
        self._malformed: MalformedStrategy = malformed
        self._max_size = max_message_size
        self._routes: dict[tuple[str, str], tuple[EventType, Subscriber[Any]]] = {
            (key, one.name): (event, one)
            for event, subscribers in schema
            for key in event.keys
            for one in subscribers
            if isinstance(one, Subscriber)
        }

    async def process(self, delivery: Delivery) -> Outcome:
        """Handle a delivery. Raises nothing: whatever happens is an outcome."""
        try:
            raw = self._decode(delivery)
            receipt = delivery.receipt
            if receipt.attempts_elsewhere:
                raw = _with_attempts(raw, receipt.attempts_elsewhere)
            docket = raw.docket
            route = self._routes.get((docket.event_key, docket.target_subscriber))
            if route is None:
                unknown = self._unknown(raw)
                decision = self._resolver.dead_letter("unhandled", str(unknown))
                return self._refuse(raw, receipt, None, unknown, decision)
            event, subscriber = route
            if receipt.redelivered or receipt.delivery_count > 1:
                refusal = refuse(receipt, subscriber, await self._resolver.max_deliveries(raw))
                if refusal is not None:
                    return self._refuse_delivery(raw, receipt, subscriber, refusal)
            try:
                envelope = self._validate(event, raw)
            except InvalidEventError as error:
                return self._refuse_delivery(raw, receipt, subscriber, error)
            if (subscriber.delivery or self._delivery) == "at-most-once":
                return await self._run_at_most_once(raw, envelope, subscriber, receipt)
            return await self._run(raw, envelope, subscriber, receipt)
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
        body = delivery.body
        if delivery.problem is not None:
            raise DecodeError(delivery.problem)
        size, limit = len(body), self._max_size
        if size > limit + ROOM_FOR_ERRORS:
            raise DecodeError(str(MessageTooLargeError(size, limit)))
        raw = self._codec.decode(body, delivery.headers, self._clock)
        if size > limit and raw.docket.last_error is None:
            raise DecodeError(str(MessageTooLargeError(size, limit)))
        if body[:1] in b"{ \t\r\n" and (twice := find_duplicate_key(body)) is not None:
            raise DecodeError(f"the body has the key {_brief(twice)!r} twice in one object")
        return raw

    def _refuse_malformed(
        self, delivery: Delivery, error: DecodeError, strategy: MalformedStrategy
    ) -> Outcome:
        receipt = delivery.receipt
        decision: Decision | None = None
        if strategy == "dead-letter":
            decision = self._resolver.dead_letter("undeliverable", f"malformed: {error}")
        elif strategy == "reject":
            decision = Discard(f"malformed: {error}")
        kept = isinstance(decision, SendToDeadLetters)
        if decision is not None:
            what = "kept as it is" if kept else "deleted"
            log.error(
                "a message of %s is malformed and was %s: %s",
                receipt.queue,
                what,
                _brief(str(error)),
            )
        hook = self._hooks.on_decode_error
        then: Callable[[], Awaitable[None]] | None = None
        if hook is not None:
            event = DecodeFailure(error, delivery, receipt.queue, self._transport, decision)
            then = partial(hook, event)
        if not isinstance(decision, SendToDeadLetters):
            return Outcome(receipt, Complete(receipt), then, self._hooks.quick)
        return _as_it_arrived(receipt, decision, then, self._hooks.quick)

    # -- look up ----------------------------------------------------------------------------------

    def _unknown(self, raw: RawEnvelope) -> MatadorError:
        key, name = raw.docket.event_key, raw.docket.target_subscriber
        if key not in self._schema:
            return EventNotRegisteredError(f"event {key!r} is not in the schema")
        if isinstance(self._schema.find_subscriber(key, name), SubscriberStub):
            return SubscriberIsStubError(f"subscriber {name!r} of {key!r} is only a stub here")
        return SubscriberNotRegisteredError(f"event {key!r} has no subscriber {name!r}")

    def _refuse_delivery(
        self,
        raw: RawEnvelope,
        receipt: Receipt,
        subscriber: Subscriber[Any],
        error: MatadorError,
    ) -> Outcome:
        decision = self._resolver.dead_letter("undeliverable", str(error))
        return self._refuse(raw, receipt, subscriber, error, decision)

    def _refuse(
        self,
        raw: RawEnvelope,
        receipt: Receipt,
        subscriber: Subscriber[Any] | None,
        error: MatadorError,
        decision: Decision,
    ) -> Outcome:
        """A message that must not, or cannot, run."""
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
        return self._failed(raw, error, failure, None)

    # -- validate ---------------------------------------------------------------------------------

    def _validate(self, event: EventType, raw: RawEnvelope) -> Envelope[Any]:
        decode = self._codec.decode_payload
        before = None if raw.before is None else decode(event, raw.before)
        return Envelope(raw.id, decode(event, raw.data), raw.docket, before)

    # -- run --------------------------------------------------------------------------------------

    async def _run_at_most_once(
        self,
        raw: RawEnvelope,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
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
        outcome = await self._run(raw, envelope, subscriber, receipt, settled=True)
        return msgspec.structs.replace(outcome, settlement=None)

    async def _run(
        self,
        raw: RawEnvelope,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        *,
        settled: bool = False,
    ) -> Outcome:
        steps: Steps | None = None
        if subscriber.idempotent == "resumable":
            steps = Steps(self._checkpoints, self._hooks, envelope.id, subscriber.name)
        clock = self._clock
        started_at, start = clock.time(), clock.monotonic()
        ran = await self._runner.run(envelope, subscriber, receipt, steps)
        duration = clock.monotonic() - start
        if ran.interrupted:
            # Given back only if it may run again, and has stopped: a thread may still finish. The
            # others come back as redelivered, which decides about them as after a crash.
            again = subscriber.is_async and may_run_again(subscriber)
            return Outcome(receipt, Release(receipt) if again else None)
        if ran.error is not None:
            decision = (
                Discard("failed, and delivered at most once")
                if settled
                else await self._resolver.decide(envelope, ran.error, subscriber, receipt)
            )
            failure = WorkerError(
                envelope,
                subscriber,
                ran.error,
                decision,
                receipt.queue,
                self._transport,
                receipt,
                started_at,
                duration,
                True,
            )
            return self._failed(raw, ran.error, failure, steps)
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
        return Outcome(
            receipt,
            Complete(receipt),
            self._after_success(success, steps),
            steps is None and self._hooks.quick,
        )

    # -- resolve ----------------------------------------------------------------------------------

    def _failed(
        self, raw: RawEnvelope, error: Exception, failure: WorkerError, steps: Steps | None
    ) -> Outcome:
        _log_failure(failure)
        receipt, decision = failure.receipt, failure.decision
        settlement = self._resolver.settlement(raw, receipt, error, decision)
        then, quick = self._after_failure(failure, steps)
        if isinstance(decision, Discard):
            return Outcome(receipt, settlement, then, quick)

        def with_short_texts() -> Outcome:
            try:
                short = self._resolver.settlement(raw, receipt, error, decision, SHORT_TEXT)
            except Exception:  # a codec of the user's that does what it must not
                log.exception("a message of %s could not be encoded again", receipt.queue)
                return as_it_arrived()
            return Outcome(receipt, short, then, quick, as_it_arrived)

        def as_it_arrived() -> Outcome:
            kind = decision.kind if isinstance(decision, SendToDeadLetters) else "undeliverable"
            instead = self._resolver.dead_letter(kind, AS_IT_ARRIVED)
            then, quick = self._after_failure(
                msgspec.structs.replace(failure, decision=instead), steps
            )
            if isinstance(instead, Discard):
                return Outcome(receipt, Complete(receipt), then, quick)
            return _as_it_arrived(receipt, instead, then, quick)

        return Outcome(receipt, settlement, then, quick, with_short_texts)

    def _after_success(
        self, success: WorkerSuccess, steps: Steps | None
    ) -> Callable[[], Awaitable[None]]:
        async def after() -> None:
            if steps is not None and steps.recorded:
                await self._clear_checkpoint(success.envelope, "success")
            if self._hooks.on_worker_success is not None:
                await self._hooks.on_worker_success(success)

        return after

    def _after_failure(
        self, failure: WorkerError, steps: Steps | None
    ) -> tuple[Callable[[], Awaitable[None]] | None, bool]:
        """What is to be done once a failure is settled, and whether that never waits."""
        # One that was refused before it ran may have steps of an earlier attempt.
        resumable = failure.subscriber is not None and failure.subscriber.idempotent == "resumable"
        if self._hooks.on_worker_error is None and not resumable:
            return None, False

        async def after() -> None:
            if resumable and (steps is None or steps.recorded):
                await self._end_checkpoint(failure)
            if self._hooks.on_worker_error is not None:
                await self._hooks.on_worker_error(failure)

        return after, not resumable and self._hooks.quick

    async def _end_checkpoint(self, failure: WorkerError) -> None:
        envelope = failure.envelope
        if isinstance(failure.decision, Discard):
            await self._clear_checkpoint(envelope, "discarded")
        elif isinstance(failure.decision, SendToDeadLetters):
            try:  # for the redrive, which must not repeat what was done
                await self._checkpoints.keep(envelope.id, DEAD_LETTER_TTL)
            except Exception:
                log.exception("could not limit the life of the checkpoint of %s", envelope.id)

    async def _clear_checkpoint(self, envelope: Envelope[Any], reason: str) -> None:
        try:
            await self._checkpoints.delete(envelope.id)
        except Exception:
            log.exception("could not clear the checkpoint of %s; it does no harm", envelope.id)
            return
        if self._hooks.on_checkpoint_cleared is not None:
            await self._hooks.on_checkpoint_cleared(
                CheckpointEvent(envelope.id, envelope.docket.target_subscriber, reason=reason)
            )


def _with_attempts(raw: RawEnvelope, more: int) -> RawEnvelope:
    """The message, counting attempts that others made, too."""
    attempts = min(raw.docket.attempts + more, MOST_ATTEMPTS)
    docket = msgspec.structs.replace(raw.docket, attempts=attempts)
    return msgspec.structs.replace(raw, docket=docket)


def _as_it_arrived(
    receipt: Receipt,
    decision: SendToDeadLetters,
    then: Callable[[], Awaitable[None]] | None,
    quick: bool,
) -> Outcome:
    """A dead letter of the raw message; with a fixed reason, then bare, if that does not fit."""
    full = DeadLetter(receipt, decision.kind, decision.reason)
    fixed = DeadLetter(receipt, decision.kind, AS_IT_ARRIVED)
    bare = DeadLetter(receipt, decision.kind, AS_IT_ARRIVED, bare=True)
    last = Outcome(receipt, bare, then, quick)
    next_ = Outcome(receipt, fixed, then, quick, lambda: last)
    return Outcome(receipt, full, then, quick, lambda: next_)


def _brief(text: str) -> str:
    """A text of a sender's, as it may appear in a log."""
    return storable_text(text, SHORT_TEXT)


def _log_failure(failure: WorkerError) -> None:
    docket = failure.envelope.docket
    decision = failure.decision
    if isinstance(decision, RetryLater):
        level, next_ = logging.WARNING, f"retrying in {decision.delay:.3g} s"
    elif isinstance(decision, SendToDeadLetters):
        level, next_ = logging.ERROR, f"dead-lettered as {decision.kind}: {decision.reason}"
    else:
        level, next_ = logging.ERROR, f"discarded: {decision.reason}"
    log.log(
        level,
        "%s of %s failed in attempt %d (%s: %s); %s",
        _brief(docket.target_subscriber),
        _brief(docket.event_key),
        docket.attempts,
        type(failure.error).__name__,
        error_text(failure.error),
        next_,
        exc_info=failure.error if _is_surprising(failure) and level == logging.ERROR else None,
        extra={
            "matador_event": docket.event_key,
            "matador_subscriber": docket.target_subscriber,
            "matador_envelope": failure.envelope.id,
            "matador_queue": failure.queue,
        },
    )


def _is_surprising(failure: WorkerError) -> bool:
    """Is it worth a traceback? What a callback raised on purpose, or we did, is not."""
    return failure.ran and not isinstance(failure.error, DontRetry | EventAssertionError)
