"""Handles messages that may be poisoned in isolation.

A crash counts as a delivery for all messages in flight, so a message that keeps killing its worker
would make its neighbors dead letters, too. Therefore, from the third delivery on (the second, if
three are the limit), a message is handled alone: the worker starts no other message, and the other
messages received with it go back uncounted. A further crash then counts only for this message.

A suspect that hangs must not stop its worker: after ``ALONE_AT_MOST`` seconds, the worker handles
other messages again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from matador.model.message import Delivery

ALONE_AT_MOST = 30.0
"""Seconds for which a worker handles only the suspect."""

_SUSPECT_FROM = 3


class Suspects:
    """Identifies suspects. Shared by all queues of a worker.

    ``alone`` is held while a suspect is being handled.
    """

    def __init__(self, max_deliveries: int) -> None:
        self._suspect_from = max(2, min(_SUSPECT_FROM, max_deliveries - 1))
        self.spares_others = max_deliveries > self._suspect_from
        """Whether a message is handled alone before it is refused. If not, one crash refuses all
        messages in flight."""
        self.alone = asyncio.Lock()

    def first_suspect(self, deliveries: Sequence[Delivery]) -> Delivery | None:
        """The first delivery that was delivered so often that it must be handled alone."""
        for delivery in deliveries:
            if delivery.receipt.delivery_count >= self._suspect_from:
                return delivery
        return None
