"""How long the oldest message of a queue has been waiting, where the broker shows messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeGuard

from matador.transports.base import Browsing, Transport

# To look at a message, these take it out of its queue and put it back.
_TAKE_TO_LOOK = frozenset(("rabbitmq", "multi"))
_LOOKED_AT = 50


def can_look(transport: Transport) -> TypeGuard[Browsing]:
    """Can messages be looked at without touching them?"""
    browses = transport.capabilities.browse and isinstance(transport, Browsing)
    return browses and transport.name not in _TAKE_TO_LOOK


async def oldest_age(transport: Transport, queue: str) -> float | None:
    """Seconds that the oldest due message of a queue has been waiting.

    0 if none is due, None if the broker does not show messages. Looks at the first messages in the
    order of sending.

    Raises:
        QueueNotFoundError: there is no such queue.
    """
    if not can_look(transport):
        return None
    now = datetime.now(UTC)
    oldest: datetime | None = None
    async for stored in transport.browse(queue, limit=_LOOKED_AT):
        since = stored.due_at or stored.stored_at
        if since is not None and since <= now and (oldest is None or since < oldest):
            oldest = since
    return 0.0 if oldest is None else (now - oldest).total_seconds()
