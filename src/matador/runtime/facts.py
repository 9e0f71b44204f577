"""Facts: messages sent and attempts made, as frozen values, in every way in.

The runtime reports them to hooks in batches: ``Sent`` once a message is safely stored, ``Attempt``
once the outcome of a message is settled. Times are seconds since the epoch, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from matador.model.envelope import Docket, Envelope, Importance
from matador.model.message import Delivery, Receipt
from matador.model.subscriber import Subscriber
from matador.model.text import error_text
from matador.policy.retry import Decision, Outcome, SendToDeadLetters

Way: TypeAlias = Literal["event", "job", "rpc", "message"]
"""The way in: an event, a job, a remote call, or a message of pub/sub or a channel."""

_NAMES: dict[str, tuple[str, str]] = {
    "event": ("event", "subscriber"),
    "job": ("job", "job_queue"),
    "rpc": ("command", "rpc_queue"),
    "message": ("routing_key", "consumer"),
}


class Kind(msgspec.Struct, frozen=True):
    """The attributes that all messages of one name and receiver share.

    Attributes:
        way: the way in.
        name: the key of an event, the name of a job, the command of a call, or the routing key of a
            message.
        receiver: the subscriber, the queue of a job or of a call, or the exchange.
        queue: the full name of the queue, as the broker knows it.
        transport: the name of the transport.
        importance: of the subscriber.
        description: of the event.
    """

    way: Way
    name: str
    receiver: str
    queue: str
    transport: str
    importance: Importance = "should-investigate"
    description: str | None = None


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A message that its broker has stored.

    Attributes:
        kind: its name, its receiver and their shared attributes.
        id: unique among the messages of its receiver. The id of a job may be used again once the
            job is gone; ``created_at`` tells them apart.
        created_at: when it was made.
        data: the payload as JSON, if it was sent as JSON.
        payload: the payload of an event.
        due_at: when it is due, if it is delayed.
        correlation_id: the id that related messages share.
        metadata: the sender's data besides the payload.
        before: the earlier state in a change event.
        options: further options that are needed to send it again in the same way.
    """

    kind: Kind
    id: str
    created_at: float
    data: bytes | msgspec.Raw | None = None
    payload: Any = None
    due_at: float | None = None
    correlation_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    before: Any = None
    options: Mapping[str, str | int] | None = None

    @property
    def way(self) -> Way:
        """The way in."""
        return self.kind.way

    @property
    def name(self) -> str:
        """See ``Kind.name``."""
        return self.kind.name

    @property
    def receiver(self) -> str:
        """See ``Kind.receiver``."""
        return self.kind.receiver

    @property
    def queue(self) -> str:
        """The full name of the queue."""
        return self.kind.queue

    @property
    def transport(self) -> str:
        """The name of the transport that stored it."""
        return self.kind.transport

    def stored_in(self, *, queue: str | None = None, transport: str | None = None) -> Sent:
        """The same message, in another queue or transport than planned."""
        kind = self.kind
        there = queue or kind.queue, transport or kind.transport
        if there == (kind.queue, kind.transport):
            return self
        kind = msgspec.structs.replace(kind, queue=there[0], transport=there[1])
        return msgspec.structs.replace(self, kind=kind)

    @property
    def envelope(self) -> Envelope[Any]:
        """The message as an envelope. For other ways in, it is built from this fact."""
        docket = Docket(
            event_key=self.name,
            target_subscriber=self.receiver,
            created_at=moment(self.created_at) or EPOCH,
            attempts=1,
            importance=self.kind.importance,
            event_description=self.kind.description,
            scheduled_for=moment(self.due_at),
            correlation_id=self.correlation_id,
            metadata=dict(self.metadata or {}),
        )
        data = self.payload if self.way == "event" else plain_data(self.data)
        return Envelope(self.id, data, docket, self.before)


class NotSent(msgspec.Struct, frozen=True):
    """A message that was not stored as requested, or not at all.

    Attributes:
        message: the message to be sent.
        error: the error.
        text: what happened instead; empty if the message was not stored.
    """

    message: Sent
    error: BaseException | None
    text: str = ""

    @property
    def envelope(self) -> Envelope[Any]:
        """The message as an envelope."""
        return self.message.envelope

    @property
    def queue(self) -> str:
        """The full name of the queue."""
        return self.message.queue

    @property
    def transport(self) -> str:
        """The name of the transport."""
        return self.message.transport


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message that was received, as far as it could be read.

    See ``Sent`` and ``Kind`` for the attributes.

    Attributes:
        delivery: the message as it arrived.
        attempt: the number of this attempt, from 1.
        known: False if no handler here has this name: only the sender knows it.
        subscriber: the subscriber of an event, if there is one here.
        opened: the envelope of an event, decoded; None for other messages.
        data: the payload as JSON; None: the whole body.
        handler: the function that handles it, for logs, if ``receiver`` does not name it.
    """

    way: Way
    id: str
    name: str
    receiver: str
    transport: str
    delivery: Delivery
    attempt: int
    created_at: float
    due_at: float | None = None
    correlation_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    importance: Importance = "should-investigate"
    known: bool = True
    subscriber: Subscriber[Any] | None = None
    opened: Envelope[Any] | None = None
    data: bytes | None = None
    handler: str = ""

    @property
    def receipt(self) -> Receipt:
        """The receipt of the delivery."""
        return self.delivery.receipt

    @property
    def queue(self) -> str:
        """The full name of the queue."""
        return self.delivery.receipt.queue

    @property
    def deliveries(self) -> int:
        """How often the message was delivered, this time included."""
        return self.delivery.receipt.delivery_count

    @property
    def envelope(self) -> Envelope[Any]:
        """The message as an envelope. For other ways in, it is built from this fact."""
        if self.opened is not None:
            return self.opened
        docket = Docket(
            event_key=self.name,
            target_subscriber=self.receiver,
            created_at=moment(self.created_at) or EPOCH,
            attempts=self.attempt,
            importance=self.importance,
            scheduled_for=moment(self.due_at),
            correlation_id=self.correlation_id,
            metadata=dict(self.metadata or {}),
        )
        data = self.delivery.body if self.data is None else self.data
        return Envelope(self.id, plain_data(data), docket)

    def log_fields(self) -> Mapping[str, object]:
        """The fields of a log line about the message."""
        name, receiver = _NAMES[self.way]
        fields: dict[str, object] = {
            "message_id": self.id,
            name: self.name,
            "queue": self.queue,
            "correlation_id": self.correlation_id,
            "attempt": self.attempt,
            "transport": self.transport,
        }
        if self.receiver != self.queue:
            fields[receiver] = self.receiver
        if self.handler:
            fields["consumer"] = self.handler
        return fields


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt to handle a message, whose outcome is settled.

    Attributes:
        message: the message.
        outcome: ``success``, ``retry``, ``dead-letter`` or ``discard``.
        started_at: when it began.
        duration: how long the handler ran.
        error: why the handler failed, or the message was refused.
        decision: the decision about a message that was not handled.
        result: the result of the handler.
        ran: False if the message was refused, so that no user code ran.
        malformed: True if the message could not be read.
    """

    message: Received
    outcome: Outcome
    started_at: float
    duration: float = 0.0
    error: BaseException | None = None
    decision: Decision | None = None
    result: Any = None
    ran: bool = True
    malformed: bool = False

    @property
    def way(self) -> Way:
        """The way in."""
        return self.message.way

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.message.id

    @property
    def name(self) -> str:
        """See ``Kind.name``."""
        return self.message.name

    @property
    def receiver(self) -> str:
        """See ``Kind.receiver``."""
        return self.message.receiver

    @property
    def queue(self) -> str:
        """The full name of the queue."""
        return self.message.delivery.receipt.queue

    @property
    def transport(self) -> str:
        """The name of the transport."""
        return self.message.transport

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.message.attempt

    @property
    def receipt(self) -> Receipt:
        """The receipt of the delivery."""
        return self.message.delivery.receipt

    @property
    def delivery(self) -> Delivery:
        """The message as it arrived."""
        return self.message.delivery

    @property
    def envelope(self) -> Envelope[Any]:
        """The message as an envelope."""
        return self.message.envelope

    @property
    def subscriber(self) -> Subscriber[Any] | None:
        """The subscriber of an event, if there is one here."""
        return self.message.subscriber

    @property
    def duration_ms(self) -> float:
        """The duration in milliseconds."""
        return self.duration * 1000

    @property
    def wait(self) -> float:
        """Seconds between the time when the message was due and the start of the attempt."""
        message = self.message
        due = message.created_at if message.due_at is None else message.due_at
        return max(0.0, self.started_at - due)

    @property
    def error_type(self) -> str | None:
        """The name of the error's class."""
        return None if self.error is None else type(self.error).__name__

    @property
    def error_text(self) -> str | None:
        """The message of the error."""
        return None if self.error is None else error_text(self.error)

    @property
    def reason(self) -> str | None:
        """The reason why the message was not handled."""
        return None if self.decision is None else self.decision.reason

    @property
    def dead_letter_kind(self) -> str | None:
        """The kind of dead letters where the message is kept."""
        decision = self.decision
        return decision.kind if isinstance(decision, SendToDeadLetters) else None


EPOCH = datetime.fromtimestamp(0, UTC)


def moment(seconds: float | None) -> datetime | None:
    """A time as a ``datetime``; None if there is none, or another program wrote an invalid one."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def plain_data(data: bytes | msgspec.Raw | None) -> Any:
    """JSON as plain data; other bytes as text."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return bytes(data).decode(errors="replace")
