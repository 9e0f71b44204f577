"""What passes between the runtime and a transport: messages, deliveries, receipts, settlements.

All are frozen values (those made once a message are structs, the cheapest to make). A transport
never looks into a body; the runtime never looks into a handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from matador.model.topology import DeadLetterKind

REASON_HEADER = "x-matador-dead-letter-reason"
"""The header in which a dead letter says why it is one."""

ERROR_TYPE_HEADER = "x-matador-error-type"
"""The header in which a dead letter names the type of the exception that was raised."""

TRACEBACK_HEADER = "x-matador-error-traceback"
"""The header in which a dead letter keeps the traceback of that exception, cut if it is long."""

Headers: TypeAlias = Mapping[str, str | int]
"""What travels beside a body."""

_NO_HEADERS: Headers = {}


class Properties(msgspec.Struct, frozen=True, gc=False):
    """What some ways in need beside body and headers. Events have none of it.

    ``Capabilities.properties`` says which of them a transport carries. It refuses a message that
    has another with ``UnsupportedError``.

    Attributes:
        routing_key: what the bindings of an exchange are matched with.
        reply_to: where an answer goes: the name that ``Replying`` gave.
        correlation_id: what an answer belongs to.
        type: what kind of message it is: a command, the name of a job.
        expires_at: seconds since the epoch after which nobody wants it any more. Carried, not
            enforced: the handler decides.
    """

    routing_key: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    type: str | None = None
    expires_at: float | None = None


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to be stored.

    Attributes:
        id: the envelope's id; a retry keeps it.
        queue: the full name of the queue.
        body: the bytes.
        headers: what travels beside them.
        delay: seconds from now until it may be delivered. Relative, so that a clock that is set
            meanwhile does not matter.
        priority: higher first; None: the lowest.
        ordering_key: messages with one key are handled in order.
        properties: what some ways in need beside these; None for events.
    """

    id: str
    queue: str
    body: bytes
    headers: Headers = _NO_HEADERS
    delay: float = 0.0
    priority: int | None = None
    ordering_key: str | None = None
    properties: Properties | None = None


class Once(msgspec.Struct, frozen=True):
    """Whose messages are stored once each, however often they are sent (``Deduplicating``).

    Attributes:
        scope: what sends them: a replay, a query, a job. Ids are told apart within a scope only.
        batch: its part; a later part has a higher number.
    """

    scope: str
    batch: int = 0


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Proof of a delivery, with which it is settled. ``handle`` belongs to the transport.

    Attributes:
        queue: the full name of the queue it came from.
        handle: what the transport needs to find the message again.
        delivery_count: how often it was delivered, this time included, as far as the transport
            can tell. Counted before it is handed over, so that a crash counts.
        redelivered: it was handed out before, and nobody settled it.
        priority: as it was sent; a retry keeps it.
        ordering_key: as it was sent; a retry keeps it.
        attempts_elsewhere: attempts that failed under workers of another kind, and that the message
            itself does not count.
    """

    queue: str
    handle: object
    delivery_count: int = 1
    redelivered: bool = False
    priority: int | None = None
    ordering_key: str | None = None
    attempts_elsewhere: int = 0


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message as it arrived: raw.

    ``problem`` says what the transport could not read of it (a header, a property, a field). Such
    a delivery is malformed: it is not decoded, and its raw form is kept among the dead letters.
    ``properties`` are those it was sent with, and those of foreign senders; None: none.
    """

    body: bytes
    headers: Headers
    receipt: Receipt
    problem: str | None = None
    properties: Properties | None = None


# -- settlements: what becomes of a delivery ---------------------------------------------------


class Complete(msgspec.Struct, frozen=True, gc=False):
    """Done: forget it (or keep it until the queue's retention is over).

    ``result`` is JSON that a transport with ``JobStoring`` stores with the completed job.
    """

    receipt: Receipt
    result: bytes | None = None


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Store ``message`` (its queue and its delay say where and when), then forget the original."""

    receipt: Receipt
    message: Message


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """Put it among the dead letters of its queue, then forget the original.

    ``message`` is None for bytes that nobody could read: the raw ones are kept, with their headers
    and properties. ``bare`` is the form that always fits, for what was refused in every other: the
    raw body with the reason, and no header or property that the sender chose.
    """

    receipt: Receipt
    kind: DeadLetterKind
    reason: str
    message: Message | None = None
    bare: bool = False


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give it back as if it had never been delivered: no attempt, and no delivery, is counted."""

    receipt: Receipt


Settlement: TypeAlias = Complete | Retry | DeadLetter | Release

# -- what can be seen of a queue from outside ---------------------------------------------------

MessageState: TypeAlias = Literal["ready", "delayed", "in-flight", "done"]


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message looked at without being consumed.

    ``position`` orders the messages of a queue and finds this one again (``Browsing.take``).
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

    @property
    def reason(self) -> str | None:
        """Why it is a dead letter, if it is one."""
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
    """How many messages of a queue are in which state.

    ``unknown`` names the numbers that the broker does not tell: they are 0 for want of knowing.
    """

    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    unknown: frozenset[UnknownDepth] = field(default=frozenset(), compare=False)

    @property
    def total(self) -> int:
        """All that is not finished."""
        return self.ready + self.delayed + self.in_flight


# -- connections -------------------------------------------------------------------------------

ConnectionStatus: TypeAlias = Literal[
    "disconnected", "connecting", "connected", "reconnecting", "failed"
]


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """Where a connection stands: status, how many tries since it was lost, and why it was."""

    status: ConnectionStatus
    attempt: int = 0
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class TopologyNote:
    """Something of a topology that a transport could not honour, or did in another way."""

    queue: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a broker that ``matador doctor`` shows: fine, or with what to do about it.

    ``fix``: empty if all is well. ``serious``: it does not work like this.
    """

    subject: str
    text: str
    fix: str = ""
    serious: bool = False
