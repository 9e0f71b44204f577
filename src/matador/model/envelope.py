"""The envelope a subscriber receives, and the docket that travels with it.

Both are frozen; a change makes a new value (``msgspec.structs.replace``). How they become bytes is
left to ``matador.codec``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Importance: TypeAlias = Literal["can-ignore", "should-investigate", "must-investigate"]
"""How much a failure of a subscriber matters."""

Instant: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A point in time, with its time zone."""

MOST_ATTEMPTS = 2**31 - 1
"""More than that many are not believed: every format and every broker can carry this number."""

ROOM_FOR_ERRORS = 64 * 1024
"""Bytes by which a message may grow after it was sent: retries and dead letters add two texts
(``LONGEST_TEXT`` characters each, six bytes at most in JSON) and a few words. What is sent leaves
this room below what the broker can store, and whoever reads allows for as much."""


class Docket(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False
):
    """What is known of a message besides its payload: where it goes, how often it was tried, why.

    ``matador.testing.make_envelope`` makes one for tests. The times come first: ``JsonCodec``
    counts on it.

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
