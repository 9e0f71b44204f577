"""What becomes of a failed message: the retry policy decides, and it is settled as fits.

The path of a failure, from top to bottom: ``decide`` asks the policy, ``outcome`` logs it and makes
the settlement, with simpler forms for a broker that cannot store it, and ``_after`` does what is
left to do once it is settled.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from matador.codec.base import Codec, RawEnvelope
from matador.errors import ConfigurationError, DontRetry, EventAssertionError
from matador.events.checkpoints import DEAD_LETTER_TTL, CheckpointStore
from matador.events.hooks import CheckpointEvent, HookSet, WorkerError
from matador.events.steps import Steps
from matador.model.capabilities import Capabilities
from matador.model.envelope import Envelope
from matador.model.message import (
    ERROR_TYPE_HEADER,
    TRACEBACK_HEADER,
    Complete,
    DeadLetter,
    Message,
    Receipt,
    Retry,
)
from matador.model.options import optional_seconds
from matador.model.subscriber import Subscriber
from matador.model.text import LONGEST_TEXT, SHORT_TEXT, storable_text
from matador.model.topology import DeadLetterKind, Topology
from matador.policy.retry import (
    Decision,
    Discard,
    RetryContext,
    RetryLater,
    RetryPolicy,
    SendToDeadLetters,
)
from matador.runtime.settle import AS_IT_ARRIVED, Outcome, kept_as_it_arrived
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")

_LONGEST_TRACEBACK = 4000


class Failures:
    """Decides about failures, and settles them. Keeps no state between messages."""

    def __init__(
        self,
        *,
        codec: Codec,
        retry: RetryPolicy,
        hooks: HookSet,
        checkpoints: CheckpointStore,
        topology: Topology,
        capabilities: Capabilities,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self._codec = codec
        self._retry = retry
        self._hooks = hooks
        self._checkpoints = checkpoints
        self._dead_letters = topology.dead_letters
        self._longest_delay = _longest_delay(topology, capabilities)
        self._clock = clock
        self._random = random

    # -- decide -----------------------------------------------------------------------------------

    async def max_deliveries(self, envelope: Envelope[Any]) -> int:
        """How often this message may be delivered."""
        if self._hooks.get_max_deliveries is not None:
            asked = await self._hooks.get_max_deliveries(envelope)
            if asked is not None:
                return asked
        return self._retry.max_deliveries

    async def decide(
        self,
        envelope: Envelope[Any],
        error: Exception,
        subscriber: Subscriber[Any],
        receipt: Receipt,
    ) -> Decision:
        """What becomes of a message whose callback raised ``error``."""
        hooks = self._hooks
        attempts, deliveries, delay = [
            None if ask is None else await ask(envelope)
            for ask in (hooks.get_attempts, hooks.get_max_deliveries, hooks.get_retry_delay)
        ]
        context = RetryContext(
            envelope=envelope,
            error=error,
            subscriber=subscriber,
            receipt=receipt,
            random=self._random(),
            max_attempts=attempts,
            max_deliveries=deliveries,
            delay=_usable(delay),
        )
        try:
            decision = self._retry.decide(context)
        except Exception as broken:
            log.exception("the retry policy raised; the message goes to the dead letters")
            return self.dead_letter("undeliverable", f"the retry policy failed: {broken}")
        if isinstance(decision, SendToDeadLetters):
            return self.dead_letter(decision.kind, decision.reason)
        if isinstance(decision, RetryLater) and decision.delay > self._longest_delay:
            return replace(decision, delay=self._longest_delay)
        return decision

    def dead_letter(self, kind: DeadLetterKind, reason: str) -> SendToDeadLetters | Discard:
        """A dead letter; discarded, and the reason says so, if that kind is switched off.

        Every reason passes through here, and leaves fit to be stored.
        """
        reason = storable_text(reason)
        if self._dead_letters[kind].enabled:
            return SendToDeadLetters(kind, reason)
        return Discard(f"{reason} (dead letters of kind {kind!r} are switched off)")

    # -- settle -----------------------------------------------------------------------------------

    def outcome(self, raw: RawEnvelope, failure: WorkerError, steps: Steps | None) -> Outcome:
        """The outcome of a failed message.

        If the broker cannot store it: with shorter texts, then as it arrived.
        """
        _log_failure(failure)
        receipt, decision = failure.receipt, failure.decision
        settlement = self._settlement(raw, failure)
        then, quick = self._after(failure, steps)
        if isinstance(decision, Discard):
            return Outcome(receipt, settlement, then, quick)

        def with_short_texts() -> Outcome:
            try:
                short = self._settlement(raw, failure, SHORT_TEXT)
            except Exception:  # a codec of the user's that does what it must not
                log.exception("a message of %s could not be encoded again", receipt.queue)
                return as_it_arrived()
            return Outcome(receipt, short, then, quick, as_it_arrived)

        def as_it_arrived() -> Outcome:
            kind = decision.kind if isinstance(decision, SendToDeadLetters) else "undeliverable"
            instead = self.dead_letter(kind, AS_IT_ARRIVED)
            then, quick = self._after(msgspec.structs.replace(failure, decision=instead), steps)
            if isinstance(instead, Discard):
                return Outcome(receipt, Complete(receipt), then, quick)
            return kept_as_it_arrived(receipt, instead.kind, instead.reason, then, quick=quick)

        return Outcome(receipt, settlement, then, quick, with_short_texts)

    def _settlement(
        self, raw: RawEnvelope, failure: WorkerError, longest_text: int = LONGEST_TEXT
    ) -> Complete | Retry | DeadLetter:
        """What the transport is to do. The payload is passed on as it came, byte for byte."""
        receipt, decision = failure.receipt, failure.decision
        if isinstance(decision, Discard):
            return Complete(receipt)
        docket = raw.docket
        text = error_text(failure.error, longest_text)
        first = text if docket.first_error is None else docket.first_error
        changes: dict[str, Any] = {
            "first_error": storable_text(first, longest_text),
            "last_error": text,
        }
        if isinstance(decision, RetryLater):
            changes["attempts"] = docket.attempts + 1
            changes["scheduled_for"] = self._clock.now() + timedelta(seconds=decision.delay)
            return Retry(receipt, self._message(raw, receipt, changes, decision.delay))
        changes["original_queue"] = docket.original_queue or receipt.queue
        message = self._message(raw, receipt, changes, 0.0)
        if failure.ran and longest_text == LONGEST_TEXT:
            headers = {**message.headers, **_error_headers(failure.error)}
            message = msgspec.structs.replace(message, headers=headers)
        reason = storable_text(decision.reason, longest_text)
        return DeadLetter(receipt, decision.kind, reason, message)

    def _message(
        self, envelope: RawEnvelope, receipt: Receipt, changes: dict[str, Any], delay: float
    ) -> Message:
        docket = msgspec.structs.replace(envelope.docket, **changes)
        encoded = self._codec.encode(msgspec.structs.replace(envelope, docket=docket))
        return Message(
            envelope.id,
            receipt.queue,
            encoded.body,
            encoded.headers,
            delay,
            receipt.priority,
            receipt.ordering_key,
        )

    # -- afterwards -------------------------------------------------------------------------------

    def _after(
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
            await self.clear_checkpoint(envelope, "discarded")
        elif isinstance(failure.decision, SendToDeadLetters):
            try:  # for the redrive, which must not repeat what was done
                await self._checkpoints.keep(envelope.id, DEAD_LETTER_TTL)
            except Exception:
                log.exception("could not limit the life of the checkpoint of %s", envelope.id)

    async def clear_checkpoint(self, envelope: Envelope[Any], reason: str) -> None:
        """Forget the steps of a message that is finished. An error is logged."""
        try:
            await self._checkpoints.delete(envelope.id)
        except Exception:
            log.exception("could not clear the checkpoint of %s; it does no harm", envelope.id)
            return
        if self._hooks.on_checkpoint_cleared is not None:
            await self._hooks.on_checkpoint_cleared(
                CheckpointEvent(envelope.id, envelope.docket.target_subscriber, reason=reason)
            )


def _usable(delay: Any) -> float | None:
    """The delay a hook gave as seconds; None, and a line in the log, if it is none."""
    try:
        return optional_seconds(delay, "get_retry_delay")
    except ConfigurationError as error:
        log.error("%s; the retry policy decides", error)
        return None


def _longest_delay(topology: Topology, capabilities: Capabilities) -> float:
    """How long a retry may wait at most; 0 where nothing can, or nothing is to, wait."""
    if not topology.retry.enabled:
        return 0.0
    if not capabilities.delays:
        log.warning("the transport cannot delay messages: what fails is tried again at once")
        return 0.0
    return min(topology.retry.max_delay, capabilities.max_delay or topology.retry.max_delay)


def error_text(error: BaseException, longest: int = LONGEST_TEXT) -> str:
    """An error as it is kept in a docket: its message, or its name if it has none, cut if long."""
    try:
        text = str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - an error that cannot say what it is
        text = type(error).__name__
    return storable_text(text, longest)


def _error_headers(error: BaseException) -> dict[str, str]:
    """The type and the traceback of an error, for its dead letter."""
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - an error that cannot say what it is
        lines = name
    cut = lines if len(lines) <= _LONGEST_TRACEBACK else "…" + lines[-_LONGEST_TRACEBACK:]
    return {
        ERROR_TYPE_HEADER: storable_text(name, SHORT_TEXT),
        TRACEBACK_HEADER: storable_text(cut, _LONGEST_TRACEBACK + 1),
    }


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
        _short(docket.target_subscriber),
        _short(docket.event_key),
        docket.attempts,
        type(failure.error).__name__,
        error_text(failure.error),
        next_,
        exc_info=failure.error if level == logging.ERROR and _is_surprising(failure) else None,
        extra={
            "matador_event": docket.event_key,
            "matador_subscriber": docket.target_subscriber,
            "matador_envelope": failure.envelope.id,
            "matador_queue": failure.queue,
        },
    )


def _is_surprising(failure: WorkerError) -> bool:
    """Is it worth a traceback? What a callback raised on purpose, or we did, is not."""
    if not failure.ran or isinstance(failure.error, DontRetry | EventAssertionError):
        return False
    try:
        str(failure.error)
    except Exception:  # noqa: BLE001 - a log handler could not print it, either
        return False
    return True


def _short(text: str) -> str:
    """A text of a sender, as it may appear in a log."""
    return storable_text(text, SHORT_TEXT)
