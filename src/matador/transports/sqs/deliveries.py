"""Received, unsettled messages, and the times at which SQS delivers them again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from matador.model.message import Delivery, Message, Receipt
from matador.transports.sqs.wire import Attributes, SqsContent, read

LONGEST_HIDDEN = 43_200
"""Seconds for which SQS hides a message at most, counted from when it was received."""

_MOST_RELEASED = 10_000


class InFlightMessage:
    """A message in flight, identified by its receipt handle.

    SQS may accept an outdated receipt handle, so this class decides whether the lease has expired:
    ``until`` is shortly before SQS delivers the message again.

    ``behind`` are later messages of its group that were received with it. ``follow`` takes them
    once this message is settled, unless their leases have expired.
    """

    __slots__ = (
        *("attributes", "behind", "body", "content", "count", "fifo", "follow", "group", "handle"),
        *("id", "queue", "received", "remaining", "sent", "settled", "stored", "until"),
    )

    def __init__(
        self, queue: str, found: Mapping[str, Any], lease: float, *, fifo: bool, at: float
    ) -> None:
        """``at``: the latest time at which SQS delivered the message, by the monotonic clock."""
        system: Mapping[str, Any] = found.get("Attributes") or {}
        self.queue = queue
        self.id = str(found.get("MessageId", ""))
        self.handle = str(found.get("ReceiptHandle", ""))
        self.body = str(found.get("Body") or "")
        self.attributes: Attributes = found.get("MessageAttributes") or {}
        self.fifo = fifo
        self.group: str | None = system.get("MessageGroupId") if fifo else None
        self.content: SqsContent = read(self.body, self.attributes, self.group)
        self.behind: list[InFlightMessage] = []
        self.follow: Callable[[list[InFlightMessage]], bool] | None = None
        self.sent = _number(system, "SentTimestamp", 0) / 1000
        self.remaining = 0.0
        self.received = _number(system, "ApproximateReceiveCount", 1)
        self.count = self.received + self.content.deliveries
        if self.content.delay:
            self._look_at_delay(system)
        self.settled = False
        self.stored = False
        self.until = 0.0
        self.renewed(lease, at)

    def _look_at_delay(self, system: Mapping[str, Any]) -> None:
        """Uses only times of SQS, so that a wrong local clock cannot deliver a message early."""
        first = _number(system, "ApproximateFirstReceiveTimestamp", 0) / 1000
        waited = max(0.0, first - self.sent)
        early = math.ceil((self.content.delay - waited) / LONGEST_HIDDEN)
        if self.received > 1:  # SQS does not say when it was received now
            waited = max(waited, time.time() - self.sent)
        self.remaining = self.content.delay - waited
        # Receives before the message was due do not count as deliveries.
        self.count -= max(0, early)

    @property
    def is_ours(self) -> bool:
        """Whether this process may still settle the message."""
        return not self.settled and time.monotonic() < self.until

    def renewed(self, lease: float, at: float) -> None:
        """Record that the lease was renewed at ``at``, by the monotonic clock."""
        self.until = at + lease - min(0.5, lease / 10)

    @property
    def message(self) -> Message:
        """The message as it was sent, for its dead letter."""
        found = self.content
        return Message(
            found.id or self.id,
            self.queue,
            found.body,
            found.headers,
            0.0,
            found.priority,
            found.ordering_key,
            found.properties,
        )

    def delivery(self, released: int) -> Delivery:
        """The delivery; ``released``: how often it was received and given back."""
        found = self.content
        count = max(1, self.count - released)
        receipt = Receipt(self.queue, self, count, count > 1, found.priority, found.ordering_key)
        return Delivery(
            found.body, found.headers, receipt, found.problem, found.properties, found.id
        )


def lined_up(holds: Iterable[InFlightMessage]) -> list[InFlightMessage]:
    """The first message of every group, with the others behind it."""
    heads: dict[str, InFlightMessage] = {}
    for hold in holds:
        head = heads.setdefault(hold.id if hold.group is None else hold.group, hold)
        if head is not hold:
            head.behind.append(hold)
    return list(heads.values())


class Released:
    """How often this process released messages of FIFO queues. SQS counts each as a receive, and a
    copy, which it would not count, would lose its place. Remembers the last ten thousand."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def add(self, message_id: str) -> None:
        self._times[message_id] = self._times.pop(message_id, 0) + 1
        if len(self._times) > _MOST_RELEASED:
            del self._times[next(iter(self._times))]

    def times(self, message_id: str) -> int:
        return self._times.get(message_id, 0)


def _number(found: Mapping[str, Any], name: str, default: int) -> int:
    try:
        return int(found.get(name, default))
    except (TypeError, ValueError):
        return default
