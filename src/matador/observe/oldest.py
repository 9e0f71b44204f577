"""The age of the oldest message of a queue, if the broker reports it or can be browsed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeGuard

from matador.errors import QueueNotFoundError
from matador.transports.base import (
    Aging,
    Browsing,
    Choosing,
    Transport,
    browses_by_taking,
    members_of,
)

_LOOKED_AT = 50


def can_look(transport: Transport) -> TypeGuard[Browsing]:
    """Whether messages can be browsed without taking them."""
    browses = transport.capabilities.browse and isinstance(transport, Browsing)
    return browses and not browses_by_taking(transport)


def tells_age(transport: Transport) -> bool:
    """Whether the age of the oldest message can be determined."""
    return all(can_look(one) or _is_aging(one) for one in members_of(transport))


async def oldest_due(transport: Transport, queue: str) -> datetime | None:
    """The time since which the oldest due message of a queue has been waiting.

    None if none is due, or ``tells_age`` is False for the transport. If messages can be browsed,
    only the first ones in the order of sending are checked.

    Raises:
        QueueNotFoundError: there is no such queue.
    """
    if isinstance(transport, Choosing):
        return await _oldest_of(transport, queue)
    if _is_aging(transport):
        return await transport.oldest_due(queue)
    if not can_look(transport):
        return None
    now = datetime.now(UTC)
    oldest: datetime | None = None
    async for stored in transport.browse(queue, limit=_LOOKED_AT):
        since = stored.due_at or stored.stored_at
        if since is not None and since <= now and (oldest is None or since < oldest):
            oldest = since
    return oldest


async def _oldest_of(group: Choosing, queue: str) -> datetime | None:
    """The same for the connected transports of a group."""
    found: list[datetime | None] = []
    missing: QueueNotFoundError | None = None
    for transport in group.transports:
        if transport.state.status == "connected":
            try:
                found.append(await oldest_due(transport, queue))
            except QueueNotFoundError as error:
                missing = error
    if missing is not None and not found:
        raise missing
    return min((since for since in found if since is not None), default=None)


async def oldest_age(transport: Transport, queue: str) -> float | None:
    """Seconds that the oldest due message of a queue has been waiting.

    0 if none is due, None if ``tells_age`` is False for the transport.

    Raises:
        QueueNotFoundError: there is no such queue.
    """
    if not tells_age(transport):
        return None
    since = await oldest_due(transport, queue)
    return 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())


def _is_aging(transport: Transport) -> TypeGuard[Aging]:
    return transport.capabilities.depth and isinstance(transport, Aging)
