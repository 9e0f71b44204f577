"""Carries out settlements: the successor is confirmed first, then the original is acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from matador.errors import MatadorError
from matador.model.message import Complete, Release, Settlement
from matador.transports.kit.errors import lease_lost
from matador.transports.rabbitmq.deliveries import AmqpHold, ChannelDeliveries, hold_of
from matador.transports.rabbitmq.outgoing import OutgoingMessages
from matador.transports.rabbitmq.publisher import Publication
from matador.transports.rabbitmq.session import AmqpSession

log = logging.getLogger("matador.rabbitmq")

_GONE = "its connection was lost, so it is delivered again"

Publish: TypeAlias = Callable[[Sequence[Publication]], Awaitable[Sequence[MatadorError | None]]]


async def settle(
    session: AmqpSession,
    outgoing: OutgoingMessages,
    settlements: Sequence[Settlement],
    publish: Publish | None = None,
    *,
    requeue: bool = True,
) -> list[MatadorError | None]:
    """Carry out settlements. Acknowledgements are in the kernel's buffer when it returns.

    The caller collects what is settled together; holding acknowledgements back for longer would
    only widen the time in which a crash has messages delivered twice.

    A release of which no copy can be stored goes back counted; without ``requeue`` it fails.
    """
    publish = publish or session.publisher.publish
    blocked = requeue and session.publishing.blocked is not None
    outcomes: list[MatadorError | None] = [None] * len(settlements)
    publications: list[Publication] = []
    places: list[int] = []
    acked: set[ChannelDeliveries] = set()
    for place, settlement in enumerate(settlements):
        hold = settlement.receipt.handle
        if not isinstance(hold, AmqpHold) or not hold.alive:
            outcomes[place] = lease_lost(settlement.receipt.queue, _GONE)
        elif isinstance(settlement, Complete):
            hold.holder.ack(hold)
            acked.add(hold.holder)
        elif blocked and isinstance(settlement, Release):
            hold.holder.requeue(hold)  # no copy can be stored now
        else:
            try:
                publications.append(outgoing.successor(settlement, hold))
            except MatadorError as error:
                outcomes[place] = _finish(settlement, error, requeue)
                continue
            hold.settled = True  # so that it cannot be settled twice meanwhile
            places.append(place)
    for holder in acked:
        holder.flush()
    if not publications:
        return outcomes
    try:
        errors = await publish(publications)
    except Exception:
        for place in places:
            hold_of(settlements[place].receipt).settled = False
        raise
    for place, error in zip(places, errors, strict=True):
        outcomes[place] = _finish(settlements[place], error, requeue)
    for place in places:
        hold_of(settlements[place].receipt).holder.flush()
    return outcomes


def _finish(
    settlement: Settlement, error: MatadorError | None, requeue: bool
) -> MatadorError | None:
    """Settle the original: its successor is stored, or ``error`` says why not."""
    receipt = settlement.receipt
    hold = hold_of(receipt)
    if not hold.holder.alive:
        # It is delivered again beside its successor, with the same id: twice, but never lost.
        return lease_lost(receipt.queue, _GONE)
    if error is None:
        hold.holder.ack(hold)
        return None
    hold.settled = False
    if requeue and isinstance(settlement, Release):
        log.warning(
            "%s: a released message counts as delivered, because no copy of it could be stored: %s",
            receipt.queue,
            error,
        )
        hold.holder.requeue(hold)
        return None
    return error
