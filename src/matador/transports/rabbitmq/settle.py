"""Carries out settlements: the successor is confirmed first, then the original is acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from matador.errors import MatadorError, UnstorableError
from matador.model.message import Complete, Delivery, Release, Settlement
from matador.transports.kit.errors import lease_lost
from matador.transports.rabbitmq.deliveries import AmqpHold, ChannelDeliveries
from matador.transports.rabbitmq.publisher import Publication

log = logging.getLogger("matador.rabbitmq")

_GONE = "its connection was lost, so it is delivered again"

MakeSuccessor: TypeAlias = Callable[[Settlement, AmqpHold], Publication]
Publish: TypeAlias = Callable[[Sequence[Publication]], Awaitable[Sequence[MatadorError | None]]]


async def settle(
    settlements: Sequence[Settlement],
    publish: Publish,
    make_successor: MakeSuccessor,
    *,
    blocked: bool = False,
) -> list[MatadorError | None]:
    """See ``Transport.settle``. Acknowledgements are with the kernel when it returns.

    The caller gathers what is settled together; holding acknowledgements back for longer would
    only widen the time in which a crash has messages delivered twice.
    """
    outcomes: list[MatadorError | None] = [None] * len(settlements)
    publications: list[Publication] = []
    places: list[int] = []
    acked: set[ChannelDeliveries] = set()
    for place, settlement in enumerate(settlements):
        hold = settlement.receipt.handle
        if not isinstance(hold, AmqpHold) or hold.settled or not hold.alive:
            outcomes[place] = lease_lost(settlement.receipt.queue, _GONE)
        elif isinstance(settlement, Complete):
            hold.holder.ack(hold)
            acked.add(hold.holder)
        else:
            try:
                publications.append(make_successor(settlement, hold))
            except MatadorError as error:
                outcomes[place] = _finish(settlement, error)
                continue
            hold.settled = True  # nobody else may settle it meanwhile
            places.append(place)
    for holder in acked:
        holder.flush()
    if not publications:
        return outcomes
    if blocked:
        _release_counted(settlements, places, publications)
    try:
        errors = await publish(publications)
    except Exception:
        for place in places:
            _hold(settlements[place]).settled = False
        raise
    for place, error in zip(places, errors, strict=True):
        outcomes[place] = _finish(settlements[place], error)
    for place in places:
        _hold(settlements[place]).holder.flush()
    return outcomes


async def count(
    deliveries: Sequence[Delivery], publish: Publish, copy: Callable[[AmqpHold, str], Publication]
) -> list[Delivery]:
    """Store copies that say how often they were delivered; those of which none could be stored."""
    left: list[Delivery] = []
    copied: list[tuple[Delivery, AmqpHold]] = []
    publications: list[Publication] = []
    for delivery in deliveries:
        hold = delivery.receipt.handle
        assert isinstance(hold, AmqpHold)
        try:
            publications.append(copy(hold, delivery.receipt.queue))
        except UnstorableError:
            left.append(delivery)
            continue
        hold.settled = True  # nobody else may settle it meanwhile
        copied.append((delivery, hold))
    errors = await publish(publications)
    for (delivery, hold), error in zip(copied, errors, strict=True):
        if error is None:
            hold.holder.ack(hold)
        else:
            hold.settled = False
            left.append(delivery)
    for _, hold in copied:
        hold.holder.flush()
    return left


def _finish(settlement: Settlement, error: MatadorError | None) -> MatadorError | None:
    """The successor is stored, or not: the original goes accordingly."""
    hold = _hold(settlement)
    if error is None:
        if not hold.holder.alive:
            # It is redelivered beside its successor, under the same id: twice, never lost.
            return lease_lost(settlement.receipt.queue, _GONE)
        hold.holder.ack(hold)
        return None
    hold.settled = False
    if not hold.alive:
        return lease_lost(settlement.receipt.queue, _GONE)
    if isinstance(settlement, Release):
        log.warning(
            "%s: a released message counts as delivered, as no copy of it could be stored: %s",
            settlement.receipt.queue,
            error,
        )
        hold.holder.requeue(hold)
        return None
    return error


def _release_counted(
    settlements: Sequence[Settlement], places: list[int], publications: list[Publication]
) -> None:
    """While the broker takes no copies, what is released goes back at once, and is counted."""
    for at in reversed(range(len(places))):
        settlement = settlements[places[at]]
        hold = settlement.receipt.handle
        if isinstance(settlement, Release) and isinstance(hold, AmqpHold):
            hold.holder.requeue(hold)
            del places[at], publications[at]


def _hold(settlement: Settlement) -> AmqpHold:
    hold = settlement.receipt.handle
    assert isinstance(hold, AmqpHold)
    return hold
