"""Browses dead letters, the only messages that can be browsed in SQS.

SQS shows a message only to its receiver: a receive hides the message for a while and is counted. A
message of a work queue would count as redelivered from then on, so work queues cannot be browsed.
Dead letters are received and held here: other processes see them again once this process
disconnects or their leases expire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

from matador.errors import UnsupportedError
from matador.model.message import Delivery, StoredMessage
from matador.model.topology import DEAD_LETTER_KINDS
from matador.transports.sqs.deliveries import InFlightMessage
from matador.transports.sqs.queues import SqsQueues
from matador.transports.sqs.settle import SqsSettler

_AT_ONCE = 4
_EMPTY_LOOKS = 3


class DeadLetterShelf:
    """The dead letters that this process has received in order to browse them."""

    def __init__(self, queues: SqsQueues, settler: SqsSettler, lease: float) -> None:
        self._queues = queues
        self._settler = settler
        self._lease = lease
        self._held: dict[str, dict[str, InFlightMessage]] = {}

    async def browse(
        self, queue: str, after: str | None, limit: int | None
    ) -> AsyncIterator[StoredMessage]:
        """The order is that of SQS; standard queues have none."""
        seen = after is None
        shown = 0
        async for hold in self._each(queue):
            if seen and (limit is None or shown < limit):
                shown += 1
                yield _stored(hold)
            seen = seen or hold.id == after
            if limit is not None and shown >= limit:
                return

    async def take(self, queue: str, positions: Sequence[str]) -> list[Delivery | None]:
        """Takes the dead letters held here, and searches the queue for the others."""
        wanted = set(positions)
        held = self._shelf(queue)
        if not wanted <= held.keys():
            async for hold in self._each(queue):
                wanted.discard(hold.id)
                if not wanted:
                    break
        taken = {one: hold for one in positions if (hold := held.pop(one, None)) is not None}
        # The first may have waited for the last: renew each, so that it has a whole lease.
        deliveries = {one: hold.delivery(0) for one, hold in taken.items()}
        renewed = await self._settler.renew([one.receipt for one in deliveries.values()])
        lost = [one for one, ours in zip(deliveries, renewed, strict=True) if not ours]
        return [None if one in lost else deliveries.get(one) for one in positions]

    async def give_back(self) -> None:
        """Make the held dead letters visible to other receivers."""
        holds = [hold for held in self._held.values() for hold in held.values() if hold.is_ours]
        self._held.clear()
        await self._settler.show_again(holds)

    def _shelf(self, queue: str) -> dict[str, InFlightMessage]:
        if not queue.endswith(tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)):
            raise UnsupportedError(
                f"SQS shows a message only to its receiver, so {queue!r} cannot be browsed; its "
                "dead letters can"
            )
        held = self._held.setdefault(queue, {})
        for lost in [one for one, hold in held.items() if not hold.is_ours]:
            del held[lost]
        return held

    async def _each(self, queue: str) -> AsyncIterator[InFlightMessage]:
        """The held dead letters, then those that can be received."""
        held = self._shelf(queue)
        seen = set(held)
        for hold in list(held.values()):
            yield hold
        looks, lease = 0, int(self._lease)
        while looks < _EMPTY_LOOKS:
            found = await self._queues.find(queue)
            polls = [found.receive(10, wait=0, lease=lease) for _ in range(_AT_ONCE)]
            received = [
                InFlightMessage(queue, one, lease, fifo=found.fifo, at=time.monotonic())
                for messages in await asyncio.gather(*polls)
                for one in messages
            ]
            held |= {hold.id: hold for hold in received}
            # A search that takes longer than a lease sees the first ones again.
            new = [hold for hold in received if hold.id not in seen]
            seen.update(hold.id for hold in new)
            looks = 0 if new else looks + 1
            for hold in new:
                yield hold


def _stored(hold: InFlightMessage) -> StoredMessage:
    message = hold.message
    return StoredMessage(
        position=hold.id,
        id=message.id,
        queue=hold.queue,
        body=message.body,
        headers=message.headers,
        stored_at=datetime.fromtimestamp(hold.sent, UTC) if hold.sent else None,
        priority=message.priority,
        ordering_key=message.ordering_key,
        properties=message.properties,
    )
