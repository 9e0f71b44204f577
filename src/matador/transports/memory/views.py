"""What can be seen of a message in memory: by its receiver, and from outside."""

from __future__ import annotations

from datetime import UTC, datetime

from matador.errors import ConfigurationError
from matador.model.message import Delivery, MessageState, Receipt, StoredMessage
from matador.transports.memory.entry import Entry, EntryState, Hold

_STATES: dict[EntryState, MessageState] = {
    "fresh": "ready",
    "ready": "ready",
    "blocked": "ready",
    "delayed": "delayed",
    "held": "in-flight",
    "done": "done",
}


def delivery_of(queue: str, hold: Hold) -> Delivery:
    """What a receiver gets to see of a message it holds."""
    entry = hold.entry
    message = entry.message
    count = entry.deliveries
    receipt = Receipt(queue, hold, count, count > 1, message.priority, message.ordering_key)
    return Delivery(message.body, message.headers, receipt)


def stored_of(queue: str, entry: Entry, epoch: float) -> StoredMessage:
    """A message as it is stored; ``epoch``: the time of day when the monotonic clock was 0."""
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
    )


def place_of(position: str | None) -> int:
    """The place that a position names; 0, which is before the first, for None."""
    if position is None:
        return 0
    if not position.isdecimal():
        raise ConfigurationError(f"{position!r} is not a position of a message in memory")
    return int(position)
