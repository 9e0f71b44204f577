"""Counts what happens to plain messages, for health checks and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(slots=True)
class MessageCounters:
    """Counts since the start. One for each client, server, publisher, subscriber or service.

    Attributes:
        sent: messages that the broker has confirmed.
        unroutable: published messages that no queue wanted.
        received: deliveries, repeated ones included.
        succeeded: messages whose handlers have succeeded.
        failed: attempts that failed.
        retried: attempts that are tried again.
        dead_lettered: messages that became dead letters.
        discarded: messages that were deleted because they could not be handled.
        malformed: messages that could not be read.
        duplicates: messages whose work had been done before.
        expired: messages that arrived after their deadline.
        last_message_at: when a message was last sent or received.
        last_error: the text of the last error.
    """

    sent: int = 0
    unroutable: int = 0
    received: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    malformed: int = 0
    duplicates: int = 0
    expired: int = 0
    last_message_at: datetime | None = None
    last_error: str | None = None
