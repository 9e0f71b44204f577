"""Keeps messages that may be poisoned away from others.

A crash counts as a delivery for all that its process held, so a message that kills its worker again
and again would take its neighbors along, all the way to the dead letters. From the third delivery
on (the second, if three are the limit) a message is therefore handled alone: nothing new is taken
up beside it, and what came with it goes back uncounted. A further crash counts for it, and for no
other suspect.

A suspect that hangs must not stop its worker: after ``ALONE_AT_MOST`` seconds others are taken up
beside it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from matador.model.message import Delivery

ALONE_AT_MOST = 30.0
"""Seconds for which a suspect has its worker to itself."""

_SUSPECT_FROM = 3


class Suspects:
    """Tells suspects from others. One for all queues of a worker.

    ``alone`` is held while a suspect is being handled.
    """

    def __init__(self, max_deliveries: int) -> None:
        self._suspect_from = max(2, min(_SUSPECT_FROM, max_deliveries - 1))
        self.spares_others = max_deliveries > self._suspect_from
        """Is a message handled alone before it is refused? If not, one crash refuses all held."""
        self.alone = asyncio.Lock()

    def first_suspect(self, deliveries: Sequence[Delivery]) -> Delivery | None:
        """The first one that was delivered so often that it has to be handled alone."""
        for delivery in deliveries:
            if delivery.receipt.delivery_count >= self._suspect_from:
                return delivery
        return None
