"""Decides what happens to a failed message, and settles it.

The path of a failure, from top to bottom: ``decide`` asks the retry policy, ``outcome`` logs the
failure and creates the settlement, with simpler forms in case the broker cannot store it, and
``_after`` runs once the message is settled.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from random import random
from typing import Any

import msgspec

from matador.codec.base import RawEnvelope
from matador.errors import ConfigurationError, DontRetry, EventAssertionError
from matador.events.checkpoints import DEAD_LETTER_TTL
from matador.events.config import AppConfig
from matador.events.hooks import CheckpointEvent, HookSet, WorkerError
from matador.events.steps import Steps
from matador.model.capabilities import Capabilities
from matador.model.envelope import Envelope
from matador.model.message import (
    ERROR_TYPE_HEADER,
    TRACEBACK_HEADER,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Properties,
    Receipt,
    Retry,
)
from matador.model.options import optional_seconds
from matador.model.subscriber import Subscriber
from matador.model.text import LONGEST_TEXT, SHORT_TEXT, error_text, loggable, storable_text
from matador.model.topology import DeadLetterKind, Topology
from matador.policy.retry import (
    Decision,
    Discard,
    RetryContext,
    RetryLater,
    SendToDeadLetters,
)
from matador.runtime.settle import AS_IT_ARRIVED, Outcome, kept_as_it_arrived

log = logging.getLogger("matador.worker")

_LONGEST_TRACEBACK = 4000


class Failures:
    """Decides what happens to failures and settles them. Keeps no state between messages."""

    def __init__(self, config: AppConfig, hooks: HookSet) -> None:
        self._codec = config.used_codec
        self._retry = config.retry
        self._hooks = hooks
        self._checkpoints = config.checkpoints
        self._dead_letters = config.topology.dead_letters
        self._longest_delay = _longest_delay(config.topology, config.transport.capabilities)
        self._clock = config.clock
        self._transport = config.transport.name

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
        """Decide what happens to a message whose callback raised ``error``."""
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
            random=random(),
            max_attempts=attempts,
            max_deliveries=deliveries,
            delay=_usable(delay),
        )
        try:
            decision = self._retry.decide(context)
        except Exception as broken:
            log.exception("the retry policy raised an error; the message becomes a dead letter")
            return self.dead_letter("undeliverable", f"the retry policy failed: {broken}")
        if isinstance(decision, SendToDeadLetters):
            return self.dead_letter(decision.kind, decision.reason)
        if isinstance(decision, RetryLater) and decision.delay > self._longest_delay:
            return replace(decision, delay=self._longest_delay)
        return decision

    def dead_letter(self, kind: DeadLetterKind, reason: str) -> SendToDeadLetters | Discard:
        """The decision to keep a dead letter, or to discard it if that kind is disabled.

        Makes the reason storable.
        """
        reason = storable_text(reason)
        if self._dead_letters[kind].enabled:
            return SendToDeadLetters(kind, reason)
        return Discard(f"{reason} (dead letters of kind {kind!r} are disabled)")

    # -- settle -----------------------------------------------------------------------------------

    def outcome(
        self,
        delivery: Delivery,
        raw: RawEnvelope,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any] | None,
        error: Exception,
        decision: Decision,
        steps: Steps | None = None,
        started_at: float | None = None,
        duration: float = 0.0,
        *,
        ran: bool = True,
    ) -> Outcome:
        """The outcome of a failed message.

        If the broker cannot store it: with short texts and no properties, then as it arrived.
        """
        receipt = delivery.receipt
        failure = WorkerError(
            envelope=envelope,
            subscriber=subscriber,
            error=error,
            decision=decision,
            queue=receipt.queue,
            transport=self._transport,
            receipt=receipt,
            started_at=self._clock.time() if started_at is None else started_at,
            duration=duration,
            ran=ran,
        )
        _log_failure(failure)
        settlement = self._settlement(raw, failure, delivery.properties)
        then, quick = self._after(failure, steps)
        if isinstance(decision, Discard):
            return Outcome(receipt, settlement, then, quick)

        def with_short_texts() -> Outcome:
            try:
                short = self._settlement(raw, failure, None, SHORT_TEXT)
            except Exception:  # from a user's codec
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
        self,
        raw: RawEnvelope,
        failure: WorkerError,
        properties: Properties | None,
        longest_text: int = LONGEST_TEXT,
    ) -> Complete | Retry | DeadLetter:
        """What the transport must do. The payload is passed on unchanged, byte for byte."""
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
            message = self._message(raw, receipt, changes, properties, decision.delay)
            return Retry(receipt, message)
        changes["original_queue"] = docket.original_queue or receipt.queue
        message = self._message(raw, receipt, changes, properties)
        if failure.ran and longest_text == LONGEST_TEXT:
            headers = {**message.headers, **_error_headers(failure.error)}
            message = msgspec.structs.replace(message, headers=headers)
        reason = storable_text(decision.reason, longest_text)
        return DeadLetter(receipt, decision.kind, reason, message)

    def _message(
        self,
        envelope: RawEnvelope,
        receipt: Receipt,
        changes: dict[str, Any],
        properties: Properties | None,
        delay: float = 0.0,
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
            properties,
        )

    # -- afterwards -------------------------------------------------------------------------------

    def _after(
        self, failure: WorkerError, steps: Steps | None
    ) -> tuple[Callable[[], Awaitable[None]] | None, bool]:
        """What to run once a failure is settled, and whether it never waits."""
        # A message that was refused before it ran may have steps of an earlier attempt.
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
            try:  # a redrive must not repeat completed steps
                await self._checkpoints.keep(envelope.id, DEAD_LETTER_TTL)
            except Exception:
                log.exception("could not set the expiry of the checkpoint of %s", envelope.id)

    async def clear_checkpoint(self, envelope: Envelope[Any], reason: str) -> None:
        """Delete the steps of a finished message. An error is logged."""
        try:
            await self._checkpoints.delete(envelope.id)
        except Exception:
            log.exception("could not clear the checkpoint of %s; it is harmless", envelope.id)
            return
        if self._hooks.on_checkpoint_cleared is not None:
            await self._hooks.on_checkpoint_cleared(
                CheckpointEvent(envelope.id, envelope.docket.target_subscriber, reason=reason)
            )


def _usable(delay: Any) -> float | None:
    """The delay from a hook in seconds; None, with a log line, if it is invalid."""
    try:
        return optional_seconds(delay, "get_retry_delay")
    except ConfigurationError as error:
        log.error("%s; using the delay of the retry policy", error)
        return None


def _longest_delay(topology: Topology, capabilities: Capabilities) -> float:
    """The longest wait before a retry; 0 if delays are unsupported or disabled."""
    if not topology.retry.enabled:
        return 0.0
    if not capabilities.delays:
        log.warning("the transport cannot delay messages: failed messages are retried at once")
        return 0.0
    return min(topology.retry.max_delay, capabilities.max_delay or topology.retry.max_delay)


def _error_headers(error: BaseException) -> dict[str, str]:
    """The type and traceback of an error, for the headers of its dead letter."""
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
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
        exc_info=loggable(failure.error)
        if level == logging.ERROR and _is_surprising(failure)
        else None,
        extra={
            "matador_event": docket.event_key,
            "matador_subscriber": docket.target_subscriber,
            "matador_envelope": failure.envelope.id,
            "matador_queue": failure.queue,
        },
    )


def _is_surprising(failure: WorkerError) -> bool:
    """Does it deserve a traceback? Errors that a callback or Matador raised on purpose do not."""
    if not failure.ran or isinstance(failure.error, DontRetry | EventAssertionError):
        return False
    try:
        str(failure.error)
    except Exception:  # noqa: BLE001 - a log handler could not print it either
        return False
    return True


def _short(text: str) -> str:
    """A sender's text, shortened for the log."""
    return storable_text(text, SHORT_TEXT)
