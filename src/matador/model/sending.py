"""What goes into a send, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from matador.errors import SendFailedError
from matador.model.options import Seconds


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one event in ``send_many``; the same as the keywords of ``send``, and three.

    Attributes:
        id: the id of the envelope, if ``subscribers`` names one; else what the ids of all
            envelopes are derived from. Sent again, the event has the same ids.
        subscribers: only these of its subscribers, by name.
        queue: the queue to send to, instead of each subscriber's own.

    Example:
        >>> await app.send_many([(OrderPlaced("1", 5), SendOptions(delay=30)), OrderPlaced("2", 7)])
    """

    metadata: Mapping[str, Any] | None = None
    correlation_id: str | None = None
    delay: Seconds | None = None
    before: Any = None
    priority: int | None = None
    ordering_key: str | None = None
    id: str | None = None
    subscribers: tuple[str, ...] | None = None
    queue: str | None = None


class Sent(msgspec.Struct, frozen=True):
    """One message that was stored: for whom, where, and its id."""

    subscriber: str
    queue: str
    id: str


class SendResult(msgspec.Struct, frozen=True):
    """What came of sending one event.

    Attributes:
        event_key: the key of the event.
        sent: how many subscribers it was sent to.
        skipped: how many were not enabled.
        errors: for each that failed, why; ``error.subscriber`` and ``error.queue`` say which.
        messages: what was stored.

    Example:
        >>> result = await app.send(OrderPlaced("1", 5))
        >>> result.sent, result.skipped, result.ok
        (2, 0, True)
    """

    event_key: str
    sent: int
    skipped: int
    errors: tuple[SendFailedError, ...] = ()
    messages: tuple[Sent, ...] = ()

    @property
    def ok(self) -> bool:
        """Did nothing fail?"""
        return not self.errors

    def raise_for_errors(self) -> SendResult:
        """Raise the first error, if there is one; else return the result itself.

        Example:
            >>> (await app.send(OrderPlaced("1", 5))).raise_for_errors()
        """
        if self.errors:
            raise self.errors[0]
        return self
