"""The counters of a service: the same for every way in."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from matador.model.text import SHORT_TEXT, error_text


@dataclass(frozen=True, slots=True)
class Metrics:
    """The counters of a service since it was created.

    Attributes:
        messages_sent: messages that the broker has confirmed.
        messages_received: deliveries, repeated ones included.
        messages_succeeded: messages whose handlers have succeeded.
        messages_failed: attempts that failed, and messages that were refused or malformed.
        messages_retried: failed attempts that are retried.
        messages_dead_lettered: messages that became dead letters.
        messages_discarded: messages that were deleted because they could not be handled, or that
            Redis pub/sub delivered faster than they were handled.
        duplicates: messages whose work was already done.
        expired: messages that arrived after their deadline.
        connection_losses: how often the connection was lost.
        connection_recoveries: how often it was restored.

    Example:
        >>> app.metrics().messages_sent
        0
    """

    messages_sent: int = 0
    messages_received: int = 0
    messages_succeeded: int = 0
    messages_failed: int = 0
    messages_retried: int = 0
    messages_dead_lettered: int = 0
    messages_discarded: int = 0
    duplicates: int = 0
    expired: int = 0
    connection_losses: int = 0
    connection_recoveries: int = 0


@dataclass(slots=True)
class Counters:
    """The mutable state behind ``Metrics`` and ``Health``, which the event loop updates.

    Attributes:
        last_message_at: when a message was last sent or received, in seconds since the epoch.
        last_error: the last error.
    """

    sent: int = 0
    received: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    duplicates: int = 0
    expired: int = 0
    connection_losses: int = 0
    connection_recoveries: int = 0
    last_message_at: float | None = None
    last_error: str | None = None

    def note_error(self, error: BaseException) -> None:
        """Remember an error as the last one."""
        self.last_error = f"{type(error).__name__}: {error_text(error, SHORT_TEXT)}"

    def snapshot(self) -> Metrics:
        """The current counters as ``Metrics``."""
        return Metrics(*astuple(self)[:-2])
