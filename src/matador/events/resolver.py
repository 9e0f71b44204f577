"""Turns a failure into what the transport is to do about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from matador.codec.base import Codec, RawEnvelope
from matador.errors import ConfigurationError
from matador.events.hooks import HookSet
from matador.model.capabilities import Capabilities
from matador.model.envelope import Envelope
from matador.model.message import Complete, DeadLetter, Message, Receipt, Retry
from matador.model.options import optional_seconds
from matador.model.subscriber import Subscriber
from matador.model.text import LONGEST_TEXT, storable_text
from matador.model.topology import DeadLetterKind, Topology
from matador.policy.retry import (
    Decision,
    Discard,
    RetryContext,
    RetryLater,
    RetryPolicy,
    SendToDeadLetters,
)
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")


class Resolver:
    """Asks the retry policy, and makes the settlement that carries its decision out."""

    def __init__(
        self,
        *,
        codec: Codec,
        retry: RetryPolicy,
        hooks: HookSet,
        topology: Topology,
        capabilities: Capabilities,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self._codec = codec
        self._retry = retry
        self._hooks = hooks
        self._dead_letters = topology.dead_letters
        self._longest_delay = _longest_delay(topology, capabilities)
        self._clock = clock
        self._random = random

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

    def settlement(
        self,
        envelope: RawEnvelope,
        receipt: Receipt,
        error: Exception,
        decision: Decision,
        longest_text: int = LONGEST_TEXT,
    ) -> Complete | Retry | DeadLetter:
        """What the transport is to do. The payload is passed on as it came, byte for byte."""
        if isinstance(decision, Discard):
            return Complete(receipt)
        docket = envelope.docket
        text = error_text(error, longest_text)
        first = text if docket.first_error is None else docket.first_error
        changes: dict[str, Any] = {
            "first_error": storable_text(first, longest_text),
            "last_error": text,
        }
        if isinstance(decision, RetryLater):
            changes["attempts"] = docket.attempts + 1
            changes["scheduled_for"] = self._clock.now() + timedelta(seconds=decision.delay)
            return Retry(receipt, self._message(envelope, receipt, changes, decision.delay))
        changes["original_queue"] = docket.original_queue or receipt.queue
        message = self._message(envelope, receipt, changes, 0.0)
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
