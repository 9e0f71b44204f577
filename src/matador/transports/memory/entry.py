"""A message in memory, the hold of its receiver, and the values made from them."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import Literal, TypeAlias

import msgspec

from matador.errors import ConfigurationError
from matador.model.message import Delivery, Message, MessageState, Receipt, StoredMessage

EntryState: TypeAlias = Literal["fresh", "ready", "blocked", "delayed", "held", "done"]
"""``fresh``: in the deque. ``ready``: in the heap. ``blocked``: behind another of its key."""

_STATES: dict[EntryState, MessageState] = {
    "fresh": "ready",
    "ready": "ready",
    "blocked": "ready",
    "delayed": "delayed",
    "held": "in-flight",
    "done": "done",
}


class Entry(msgspec.Struct, gc=False):
    """A stored message. ``seq`` is its place in the queue; times are of the monotonic clock."""

    seq: int
    message: Message
    stored: float
    due: float = 0.0
    state: EntryState = "fresh"
    deliveries: int = 0
    turn: int = 0
    """How often the message was held; distinguishes an older hold from the current one."""
    lease_until: float = inf


class MemoryHold(msgspec.Struct, frozen=True, gc=False):
    """The handle of a delivery: the message and the number of this hold."""

    entry: Entry
    turn: int

    @property
    def valid(self) -> bool:
        """Whether this is still the current hold."""
        return self.entry.state == "held" and self.entry.turn == self.turn


def delivery_of(queue: str, hold: MemoryHold) -> Delivery:
    """The delivery of a held message."""
    entry = hold.entry
    message = entry.message
    count = entry.deliveries
    receipt = Receipt(queue, hold, count, count > 1, message.priority, message.ordering_key)
    return Delivery(message.body, message.headers, receipt, None, message.properties, message.id)


def stored_of(queue: str, entry: Entry, epoch: float) -> StoredMessage:
    """A stored message; ``epoch`` is the time of day when the monotonic clock was 0."""
    message = entry.message
    return StoredMessage(
        # Padded, so that positions sort as text too.
        position=f"{entry.seq:016d}",
        id=message.id,
        queue=queue,
        body=message.body,
        headers=message.headers,
        state=_STATES[entry.state],
        stored_at=datetime.fromtimestamp(epoch + entry.stored, UTC),
        due_at=datetime.fromtimestamp(epoch + entry.due, UTC) if entry.due else None,
        delivery_count=entry.deliveries,
        priority=message.priority,
        ordering_key=message.ordering_key,
        properties=message.properties,
    )


def place_of(position: str | None) -> int:
    """The sequence number of a position; 0, which precedes the first, for None."""
    if position is None:
        return 0
    if not position.isdecimal():
        raise ConfigurationError(f"{position!r} is not a position of a message in memory")
    return int(position)
