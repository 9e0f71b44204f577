"""Stores messages and carries out settlements.

SQS has no transactions, so a successor is stored before the original is deleted. A worker that dies
in between leaves both. A message cannot be changed either. A released message is stored again,
which SQS does not count as a delivery. In a FIFO queue, where the copy would lose its place, the
message is made visible again, which SQS counts.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from matador.errors import LeaseLostError, MatadorError
from matador.model.message import (
    REASON_HEADER,
    Complete,
    DeadLetter,
    Message,
    Receipt,
    Release,
    Settlement,
)
from matador.model.topology import dead_letter_name
from matador.transports.clock import SystemClock
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.errors import lease_lost
from matador.transports.sqs.deliveries import LONGEST_HIDDEN, InFlightMessage, Released
from matador.transports.sqs.names import group_of
from matador.transports.sqs.queue import Outcome, SqsQueue
from matador.transports.sqs.queues import SqsQueues
from matador.transports.sqs.wire import (
    LARGEST,
    LONGEST_DELAY,
    SqsEntry,
    bare,
    copied,
    written,
)

_new_id = SystemClock().new_id


class SqsSettler:
    """Stores and settles messages; calls may run concurrently."""

    def __init__(self, queues: SqsQueues, released: Released, lease: float) -> None:
        self._queues = queues
        self._released = released
        self._lease = lease

    async def send(self, messages: Sequence[Message]) -> list[Outcome]:
        """For each, None or the error."""
        return await asyncio.gather(*[self._send(message) for message in messages])

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """For each, None or the error."""
        return await asyncio.gather(*[self._settle(one) for one in settlements])

    async def renew(self, receipts: Sequence[Receipt]) -> list[bool]:
        """For each, whether its lease was still valid.

        Raises:
            TransportError: SQS could not be reached.
        """
        return await asyncio.gather(*[self._renew(receipt.handle) for receipt in receipts])

    async def defer(self, hold: InFlightMessage) -> Outcome:
        """Postpone a message that is not due yet and was never delivered."""
        if not hold.is_ours:
            return None  # another call settles it
        if hold.fifo:
            seconds = min(math.ceil(hold.remaining), LONGEST_HIDDEN)
            outcome = await self._on_queue(hold, lambda queue: queue.hide(hold.handle, seconds))
            await self.show_again(hold.behind)
            return outcome
        return await self._move(hold, hold.remaining)

    async def show_again(self, holds: Sequence[InFlightMessage]) -> None:
        """Make messages that were received but not delivered visible at once. If that fails, they
        become visible when their leases expire."""
        await asyncio.gather(*[self._show(hold) for hold in holds])

    # -- inside ------------------------------------------------------------------------------------

    async def _send(self, message: Message) -> Outcome:
        return await self._queues.use(message.queue, lambda queue: _store(queue, message))

    async def _settle(self, settlement: Settlement) -> Outcome:
        hold = settlement.receipt.handle
        if not isinstance(hold, InFlightMessage) or not hold.is_ours:
            return lease_lost(settlement.receipt.queue)
        hold.settled = True  # no other call settles it meanwhile
        try:
            outcome = await self._carry_out(hold, settlement)
        except BaseException:  # canceled, for example
            hold.settled = False
            raise
        hold.settled = outcome is None or isinstance(outcome, LeaseLostError)
        if hold.behind and outcome is None:
            await self._follow(hold, released=isinstance(settlement, Release))
        return outcome

    async def _follow(self, hold: InFlightMessage, *, released: bool) -> None:
        behind, hold.behind = hold.behind, []
        if released or hold.follow is None or not hold.follow(behind):
            await self.show_again(behind)

    async def _carry_out(self, hold: InFlightMessage, settlement: Settlement) -> Outcome:
        match settlement:
            case Complete():
                return await self._delete(hold)
            case Release():
                return await self._release(hold)
            case DeadLetter():
                queue = dead_letter_name(hold.queue, settlement.kind)
                letter = dead_letter_of(settlement, hold.message)
                if not settlement.bare:
                    return await self._replace(hold, queue, letter)
                entry = bare(hold.body, hold.attributes, REASON_HEADER, settlement.reason)
                return await self._replace(hold, queue, entry)
            case _:
                return await self._replace(hold, settlement.message.queue, settlement.message)

    async def _replace(
        self, hold: InFlightMessage, name: str, successor: Message | SqsEntry
    ) -> Outcome:
        if not hold.stored:  # otherwise only deleting the original failed last time
            outcome = await self._queues.use(name, lambda queue: _store(queue, successor))
            if outcome is not None:
                return outcome
            hold.stored = True
        return await self._delete(hold)

    async def _release(self, hold: InFlightMessage) -> Outcome:
        if hold.fifo and not hold.stored:
            return await self._show(hold)
        return await self._move(hold, 0.0)

    async def _show(self, hold: InFlightMessage) -> Outcome:
        outcome = await self._on_queue(hold, lambda queue: queue.hide(hold.handle, 0))
        if outcome is None:
            self._released.add(hold.id)
        return outcome

    async def _move(self, hold: InFlightMessage, delay: float) -> Outcome:
        """Move the message to the end of its queue, without counting this delivery."""
        left = delay if delay > LONGEST_DELAY else 0.0
        earlier = max(0, hold.count - 1)
        attributes = copied(hold.attributes, delay=left, deliveries=earlier)
        entry = SqsEntry(hold.body, attributes or {}, min(math.ceil(delay), LONGEST_DELAY))
        if attributes is None or entry.size > LARGEST:
            return await self._show(hold)
        return await self._replace(hold, hold.queue, entry)

    async def _delete(self, hold: InFlightMessage) -> Outcome:
        return await self._on_queue(hold, lambda queue: queue.delete(hold.handle))

    async def _renew(self, hold: object) -> bool:
        if not isinstance(hold, InFlightMessage) or not hold.is_ours:
            return False
        if hold.behind:  # keep them in flight while they wait for this one
            await asyncio.gather(*[self._renew(one) for one in hold.behind])
        asked = time.monotonic()
        outcome = await self._on_queue(
            hold, lambda queue: queue.hide(hold.handle, int(self._lease))
        )
        if outcome is None:
            hold.renewed(self._lease, asked)
            return True
        if isinstance(outcome, LeaseLostError):
            return False
        raise outcome

    async def _on_queue(
        self, hold: InFlightMessage, act: Callable[[SqsQueue], Awaitable[Outcome]]
    ) -> Outcome:
        """Make a call about the original, in the queue it came from."""
        return await self._queues.use(hold.queue, act)


async def _store(queue: SqsQueue, message: Message | SqsEntry) -> Outcome:
    try:
        entry = message if isinstance(message, SqsEntry) else _entry(queue, message)
    except MatadorError as error:
        return error
    if queue.fifo:
        # Every stored message gets a unique id, so that SQS does not treat a retry or a redriven
        # dead letter as a duplicate.
        group = entry.group or _new_id()
        entry = msgspec.structs.replace(entry, delay=0, group=group, deduplication=_new_id())
    return await queue.send(entry)


def _entry(queue: SqsQueue, message: Message) -> SqsEntry:
    if queue.fifo:  # SQS cannot delay single messages of a FIFO queue
        return msgspec.structs.replace(
            written(message, later=message.delay), group=group_of(message)
        )
    later = message.delay if message.delay > LONGEST_DELAY else 0.0
    entry = written(message, later=later)
    if message.delay <= 0:
        return entry
    return msgspec.structs.replace(entry, delay=min(math.ceil(message.delay), LONGEST_DELAY))
