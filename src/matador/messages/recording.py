"""Records plain messages: what was sent, and what came of each attempt, with any ``Recorder``.

Nothing here makes a send or an attempt fail: what a recorder raises is logged.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from matador.errors import MatadorError, MaybePoisonedError
from matador.messages.context import RETRY_COUNT, header_number
from matador.messages.handler import Expired, Unhandled, Unreadable
from matador.model.message import Complete, DeadLetter, Delivery, Message, Release, Retry
from matador.model.text import SHORT_TEXT, error_text
from matador.policy.retry import Outcome as OutcomeName
from matador.runtime.recorder import (
    AttemptedMessage,
    Recorder,
    SentMessage,
    Way,
    check_recorder,
)
from matador.runtime.settle import Handler, Outcome
from matador.runtime.traces import Traces, failure_of
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.messages")

_REFUSED = (Expired, MaybePoisonedError, Unhandled, Unreadable)
"""Errors of messages that no function of the user's has seen."""

Carry: TypeAlias = Callable[
    [str | None, Sequence[Message]], Awaitable[Sequence[int | MatadorError]]
]
"""Sends messages to their queues, or publishes them to an exchange."""


def traced_send(
    recording: MessageRecording | None,
    operation: str,
    name: str,
    receiver: str,
    metadata: Mapping[str, Any] | None,
) -> contextlib.AbstractContextManager[Mapping[str, Any] | None]:
    """Surround a send with a span, if anybody makes some. Gives the metadata to send."""
    if recording is None:
        return contextlib.nullcontext(metadata)
    return recording.traces.send(operation, name, receiver, recording.transport, metadata)


def recording_of(
    journal: object,
    way: Way,
    where: str,
    clock: Clock,
    plain: Callable[[Message], bytes] = lambda message: message.body,
) -> MessageRecording | None:
    """What records for the option ``journal``; None if it is not given.

    Raises:
        ConfigurationError: it is no recorder.
    """
    found = check_recorder(journal, where + ":")
    return None if found is None else MessageRecording(found, way, plain=plain, clock=clock)


class MessageRecording:
    """The recorder of one client, server, publisher, subscriber or service.

    Args:
        recorder: takes the records.
        way: ``rpc`` or ``message``.
        plain: makes the plain body of a message that is sent in another form.
        clock: where time comes from.
    """

    def __init__(
        self,
        recorder: Recorder,
        way: Way,
        *,
        plain: Callable[[Message], bytes] = lambda message: message.body,
        clock: Clock | None = None,
    ) -> None:
        self._recorder = recorder
        self._way: Way = way
        self.traces = Traces(recorder, way)
        self._plain = plain
        self._clock = clock or SystemClock()
        self._transport = ""
        self._started = False

    def start(self, transport: str) -> None:
        """Begin to record messages on the transport of that name. Idempotent."""
        self._transport = transport
        if not self._started:
            self._started = True
            try:
                self._recorder.on_start()
            except Exception:
                log.exception("the journal could not be opened")

    async def stop(self) -> None:
        """Record nothing more. Idempotent."""
        if self._started:
            self._started = False
            try:
                await self._recorder.on_stop()
            except Exception:
                log.exception("the journal could not be closed")

    @property
    def transport(self) -> str:
        """The name of the transport, once it has started."""
        return self._transport

    # -- sending ----------------------------------------------------------------------------------

    def sending(self, carry: Carry) -> Carry:
        """A function that sends and records what was stored, even if nobody waits any more."""

        async def recorded(
            exchange: str | None, messages: Sequence[Message]
        ) -> Sequence[int | MatadorError]:
            outcomes = await carry(exchange, messages)
            try:
                for message, outcome in zip(messages, outcomes, strict=False):
                    if isinstance(outcome, int):
                        self._recorder.record_sent(self._sent(exchange, message))
            except Exception:
                log.exception("messages that were sent were not recorded")
            return outcomes

        return recorded

    def _sent(self, exchange: str | None, message: Message) -> SentMessage:
        properties = message.properties
        now = self._clock.time()
        return SentMessage(
            way=self._way,
            id=message.id,
            name=_name(message.properties, self._way) or message.queue,
            receiver=message.queue if exchange is None else exchange,
            queue=message.queue if exchange is None else exchange,
            transport=self._transport,
            created_at=now,
            data=self._plain(message),
            due_at=now + message.delay if message.delay else None,
            correlation_id=None if properties is None else properties.correlation_id,
            metadata=msgspec.json.encode(message.headers) if message.headers else None,
        )

    # -- attempts ---------------------------------------------------------------------------------

    def handling(self, handler: Handler) -> Handler:
        """A handler that does the same and records what came of each attempt."""
        way = self._way

        def read(delivery: Delivery) -> tuple[str, str, Mapping[str, Any]]:
            name = _name(delivery.properties, way) or delivery.receipt.queue
            return name, delivery.id, delivery.headers

        return _Recorded(self.traces.handling(handler, self._transport, read), self)

    def attempted(
        self,
        delivery: Delivery,
        outcome: Outcome,
        started: float,
        took: float,
        failed: list[Exception],
    ) -> Outcome:
        """The outcome, which records itself once it is settled."""
        name: OutcomeName
        match outcome.settlement:
            case Complete():
                name = "discard" if failed else "success"
            case Retry():
                name = "retry"
            case DeadLetter():
                name = "dead-letter"
            case Release() | None:
                return outcome
        error = failed[-1] if failed else None
        reason = outcome.settlement.reason if isinstance(outcome.settlement, DeadLetter) else None
        properties = delivery.properties
        attempt = AttemptedMessage(
            way=self._way,
            id=delivery.id,
            name=_name(properties, self._way) or delivery.receipt.queue,
            receiver=delivery.receipt.queue,
            queue=delivery.receipt.queue,
            transport=self._transport,
            created_at=started,  # plain messages do not say when they were made
            attempt=(header_number(delivery.headers, RETRY_COUNT) or 0) + 1,
            outcome=name,
            started_at=started,
            duration=took,
            deliveries=delivery.receipt.delivery_count,
            ran=not isinstance(error, _REFUSED),
            known=delivery.problem is None and not isinstance(error, Unhandled),
            error_type=None if error is None else type(error).__name__,
            error=None if error is None else error_text(error, SHORT_TEXT),
            reason=reason,
            correlation_id=None if properties is None else properties.correlation_id,
        )
        then = outcome.then

        async def record() -> None:
            try:
                self._recorder.record_attempt(attempt)
            except Exception:
                log.exception("an attempt was not recorded")
            if then is not None and (waiting := then()) is not None:
                await waiting

        simpler = outcome.simpler
        if simpler is None:
            return msgspec.structs.replace(outcome, then=record)
        facts = started, took, failed
        return msgspec.structs.replace(
            outcome, then=record, simpler=lambda: self.attempted(delivery, simpler(), *facts)
        )


class _Recorded:
    """A handler whose attempts are recorded."""

    def __init__(self, handler: Handler, recording: MessageRecording) -> None:
        self._handler = handler
        self._recording = recording
        self._clock: Clock = SystemClock()

    async def process(self, delivery: Delivery) -> Outcome:
        """See ``Handler``."""
        failed: list[Exception] = []
        token = failure_of.set(failed)
        started, began = self._clock.time(), self._clock.monotonic()
        try:
            outcome = await self._handler.process(delivery)
        finally:
            failure_of.reset(token)
        took = self._clock.monotonic() - began
        return self._recording.attempted(delivery, outcome, started, took, failed)

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        """See ``Handler``."""
        return self._handler.give_up(delivery, reason)


def _name(properties: object, way: Way) -> str | None:
    name = getattr(properties, "type" if way == "rpc" else "routing_key", None)
    return name if isinstance(name, str) else None
