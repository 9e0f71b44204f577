"""Taking stored messages by their positions."""

from __future__ import annotations

from collections.abc import Sequence

from matador.model.message import Delivery
from matador.transports.base import Browsing


async def take_stored(transport: Browsing, queue: str, positions: Sequence[str]) -> list[Delivery]:
    """The deliveries of these positions, without those that cannot be had."""
    found = await transport.take(queue, positions)
    assert len(found) == len(positions)
    return [delivery for delivery in found if delivery is not None]
