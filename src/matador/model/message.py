"""Values that the runtime and the transports exchange: messages, deliveries, settlements.

All are frozen. Those created for each message are msgspec structs, which are the fastest to create.
A transport never reads a body; the runtime never reads a handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from matador.errors import NotConnectedError, TransportClosedError
from matador.model.topology import DeadLetterKind

REASON_HEADER = "x-matador-dead-letter-reason"
"""The header with the reason of a dead letter."""

ERROR_TYPE_HEADER = "x-matador-error-type"
"""The header with the type of the exception that caused a dead letter."""

DELIVERIES_HEADER = "x-matador-deliveries"
"""The header of a copy with the number of earlier deliveries. Transports whose broker does not
count deliveries add it to ``Receipt.delivery_count``, and hide it."""

TRACEBACK_HEADER = "x-matador-error-traceback"
"""The header with the traceback of that exception, cut if it is too long."""

Headers: TypeAlias = Mapping[str, str | int]
"""The headers of a message."""

_NO_HEADERS: Headers = {}


class Properties(msgspec.Struct, frozen=True, gc=False):
    """Properties for RPC, jobs and pub/sub. Matador sends events without them.

    ``Capabilities.properties`` lists those a transport transmits; it refuses a message with others
    with ``UnsupportedError``.

    Attributes:
        routing_key: is matched against the bindings of an exchange.
        reply_to: where to send the reply: a name returned by ``Replying``.
        correlation_id: the request that a reply belongs to.
        type: the type of the message, such as a command or the name of a job.
        expires_at: seconds since the epoch after which the message is obsolete. The handler
            decides what to do; transports do not enforce it.
        transient: the message need not survive a restart of the broker, which may make it faster.
            Every transport accepts this. It is for the broker alone: deliveries need not have it.
    """

    routing_key: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    type: str | None = None
    expires_at: float | None = None
    transient: bool = False


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to be stored.

    Attributes:
        id: the envelope's id; a retry keeps it. Empty for a reply, which its ``correlation_id``
            identifies: RabbitMQ then gets neither an id nor a time.
        queue: the full name of the queue.
        body: the bytes.
        headers: the headers.
        delay: seconds from now until it may be delivered. Relative, so that changes of the system
            clock have no effect.
        priority: higher first; None: the lowest.
        ordering_key: messages with the same key are handled in order.
        properties: see ``Properties``; None for events.
        elsewhere: its handler is in another process, so a group of transports does not give it to
            one that delivers only within this process.
        name: a label for operators who inspect the broker: the key of an event. Deliveries do not
            have it.
    """

    id: str
    queue: str
    body: bytes
    headers: Headers = _NO_HEADERS
    delay: float = 0.0
    priority: int | None = None
    ordering_key: str | None = None
    properties: Properties | None = None
    elsewhere: bool = False
    name: str = ""


class Once(msgspec.Struct, frozen=True):
    """Identifies messages that are stored once, however often they are sent (``Deduplicating``).

    Attributes:
        scope: the sender, such as a replay, a query or a job. Ids are compared within a scope only.
        batch: the number of the batch within the scope; later batches have higher numbers.
    """

    scope: str
    batch: int = 0


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Identifies a delivery in order to settle it.

    Attributes:
        queue: the full name of the queue it came from.
        handle: identifies the message for the transport; opaque to others.
        delivery_count: how often it was delivered, including this time, as far as the transport
            knows. Counted before the delivery, so that crashes are included.
        redelivered: it was delivered before and not settled.
        priority: as it was sent; a retry keeps it.
        ordering_key: as it was sent; a retry keeps it.
        attempts_elsewhere: failed attempts of workers of another kind, which the message itself
            does not count.
        exact_count: False if the broker only says that there was a delivery before, but not how
            many.
    """

    queue: str
    handle: object
    delivery_count: int = 1
    redelivered: bool = False
    priority: int | None = None
    ordering_key: str | None = None
    attempts_elsewhere: int = 0
    exact_count: bool = True


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A raw message as it arrived.

    ``problem`` says which part the transport could not read (a header, a property, a field). Such a
    delivery is malformed: it is not decoded, and becomes a dead letter in its raw form.
    ``properties``: those it was sent with, or None. ``id``: ``Message.id``, on transports that
    transmit properties; empty if it was sent without one.
    """

    body: bytes
    headers: Headers
    receipt: Receipt
    problem: str | None = None
    properties: Properties | None = None
    id: str = ""


# -- settlements ----------------------------------------------------------------------------------


class Complete(msgspec.Struct, frozen=True, gc=False):
    """Done: delete the message (or keep it until the queue's retention expires).

    ``result`` is JSON that a transport with ``JobStoring`` stores with the completed job.
    """

    receipt: Receipt
    result: bytes | None = None


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Store ``message`` with its queue and delay, then delete the original."""

    receipt: Receipt
    message: Message


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """Store a dead letter of the queue, then delete the original.

    ``message`` is None if the original could not be decoded: then its raw body, headers and
    properties are kept. ``bare`` is a form that the broker can always store: the raw body and the
    reason, without the sender's headers and properties.
    """

    receipt: Receipt
    kind: DeadLetterKind
    reason: str
    message: Message | None = None
    bare: bool = False


class Release(msgspec.Struct, frozen=True, gc=False):
    """Return the message to its queue as if it had not been delivered: nothing is counted."""

    receipt: Receipt


Settlement: TypeAlias = Complete | Retry | DeadLetter | Release

# -- browsing -------------------------------------------------------------------------------------

MessageState: TypeAlias = Literal["ready", "delayed", "in-flight", "done"]


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that was read without being consumed.

    ``position`` orders the messages of a queue and identifies this one (``Browsing.take``).
    """

    position: str
    id: str
    queue: str
    body: bytes
    headers: Headers = _NO_HEADERS
    state: MessageState = "ready"
    stored_at: datetime | None = None
    due_at: datetime | None = None
    delivery_count: int = 0
    priority: int | None = None
    ordering_key: str | None = None
    properties: Properties | None = None

    @property
    def reason(self) -> str | None:
        """The reason why it is a dead letter, if it is one."""
        return self._text(REASON_HEADER)

    @property
    def error_type(self) -> str | None:
        """The type of the exception that made it a dead letter, if there was one."""
        return self._text(ERROR_TYPE_HEADER)

    @property
    def traceback(self) -> str | None:
        """The traceback of that exception."""
        return self._text(TRACEBACK_HEADER)

    def _text(self, header: str) -> str | None:
        value = self.headers.get(header)
        return None if value is None else str(value)


UnknownDepth: TypeAlias = Literal["delayed", "in_flight"]


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The number of messages of a queue in each state.

    ``unknown`` names the numbers that the broker does not provide; they are 0. ``consumers`` is the
    number of active consumers; None: the broker does not report it.
    """

    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    unknown: frozenset[UnknownDepth] = field(default=frozenset(), compare=False)
    consumers: int | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        """All messages that are not finished."""
        return self.ready + self.delayed + self.in_flight


# -- connections ----------------------------------------------------------------------------------

ConnectionStatus: TypeAlias = Literal[
    "disconnected", "connecting", "connected", "reconnecting", "failed"
]


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """The state of a connection: its status, attempts to reconnect, and the last error.

    ``closed``: disconnected by this process, after it had connected.
    """

    status: ConnectionStatus
    attempt: int = 0
    error: BaseException | None = None
    closed: bool = False

    def refusal(self, text: str) -> NotConnectedError:
        """The error of an operation that needs a connection; its cause is the connection error."""
        error = TransportClosedError(text) if self.closed else NotConnectedError(text)
        error.__cause__ = self.error
        return error

    def __str__(self) -> str:
        """``reconnecting: the connection was refused``: for logs and errors."""
        return self.status if self.error is None else f"{self.status}: {self.error}"


@dataclass(frozen=True, slots=True)
class TopologyNote:
    """A part of a topology that a transport does not support, or implements differently."""

    queue: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of ``matador doctor`` about a broker.

    ``fix``: what to do; empty if there is no problem. ``serious``: the transport cannot work this
        way.
    """

    subject: str
    text: str
    fix: str = ""
    serious: bool = False
