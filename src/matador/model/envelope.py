"""The envelope that a subscriber receives, and its docket.

Both are frozen; ``msgspec.structs.replace`` creates a changed copy. ``matador.codec`` encodes them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Importance: TypeAlias = Literal["can-ignore", "should-investigate", "must-investigate"]
"""How important a failure of a subscriber is."""

Instant: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A point in time, with a time zone."""

MOST_ATTEMPTS = 2**31 - 1
"""The largest valid number of attempts. Every format and every broker can store it."""

ROOM_FOR_ERRORS = 64 * 1024
"""How many bytes a message may grow by after it was sent: retries and dead letters add two errors
(``LONGEST_TEXT`` characters each, at most six bytes per character in JSON) and a few words. Senders
stay that much below the broker's limit, and receivers accept that much more."""


class Docket(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False
):
    """The data about a message besides its payload: its event, subscriber, attempts and errors.

    ``matador.testing.make_envelope`` creates one for tests. ``JsonCodec`` relies on the times being
    the first fields.

    Example:
        >>> from datetime import datetime, timezone
        >>> Docket(event_key="order.placed", target_subscriber="email-receipt", attempts=1,
        ...        created_at=datetime(2026, 11, 15, tzinfo=timezone.utc),
        ...        importance="should-investigate").attempts
        1
    """

    created_at: Instant
    scheduled_for: Instant | None = None
    event_key: str
    target_subscriber: str
    attempts: Annotated[int, msgspec.Meta(ge=1, le=MOST_ATTEMPTS)]
    importance: Importance
    event_description: str | None = None
    original_queue: str | None = None
    first_error: str | None = None
    last_error: str | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] = {}


class Envelope(msgspec.Struct, Generic[T], frozen=True):
    """One event on its way to one subscriber.

    Example:
        >>> async def email_receipt(envelope: "Envelope[OrderPlaced]") -> None:
        ...     print(envelope.id, envelope.data.order_id, envelope.docket.attempts)
    """

    id: str
    data: T
    docket: Docket
    before: T | None = None
