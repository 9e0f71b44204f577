"""Carries out settlements: the successor is confirmed first, then the original is acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from matador.errors import LeaseLostError, MatadorError
from matador.model.message import Complete, Delivery, Receipt, Release, Settlement
from matador.transports.rabbitmq.holding import Hold, Holder
from matador.transports.rabbitmq.publishing import Parcel, Publisher

log = logging.getLogger("matador.rabbitmq")

MakeParcel = Callable[[Settlement, Hold], Parcel]


async def settle(
    settlements: Sequence[Settlement], publisher: Publisher, make_parcel: MakeParcel
) -> list[MatadorError | None]:
    """See ``Transport.settle``. Acknowledgements are with the kernel when it returns.

    The caller gathers what is settled together; holding acknowledgements back for longer would
    only widen the time in which a crash has messages delivered twice.
    """
    outcomes: list[MatadorError | None] = [None] * len(settlements)
    parcels: list[Parcel] = []
    places: list[int] = []
    acked: set[Holder] = set()
    for place, settlement in enumerate(settlements):
        hold = settlement.receipt.handle
        if not isinstance(hold, Hold) or hold.settled or not hold.alive:
            outcomes[place] = _lost(settlement.receipt)
        elif isinstance(settlement, Complete):
            hold.holder.ack(hold)
            acked.add(hold.holder)
        else:
            try:
                parcels.append(make_parcel(settlement, hold))
            except MatadorError as error:
                outcomes[place] = error
                continue
            hold.settled = True  # nobody else may settle it meanwhile
            places.append(place)
    for holder in acked:
        holder.flush()
    if not parcels:
        return outcomes
    if publisher.blocked is not None:
        _release_counted(settlements, places, parcels)
    errors = await publisher.publish(parcels)
    for place, error in zip(places, errors, strict=True):
        outcomes[place] = _finish(settlements[place], error)
    for place in places:
        hold = settlements[place].receipt.handle
        assert isinstance(hold, Hold)
        hold.holder.flush()
    return outcomes


async def count(
    deliveries: Sequence[Delivery], publisher: Publisher, copy: Callable[[Hold, str], Parcel]
) -> list[Delivery]:
    """Store copies that say how often they were delivered; those of which none could be stored."""
    if publisher.blocked is not None:
        return list(deliveries)
    holds: list[Hold] = []
    for delivery in deliveries:
        hold = delivery.receipt.handle
        assert isinstance(hold, Hold)
        hold.settled = True  # nobody else may settle it meanwhile
        holds.append(hold)
    pairs = list(zip(deliveries, holds, strict=True))
    errors = await publisher.publish([copy(hold, one.receipt.queue) for one, hold in pairs])
    left: list[Delivery] = []
    for (delivery, hold), error in zip(pairs, errors, strict=True):
        if error is None:
            hold.holder.ack(hold)
        else:
            hold.settled = False
            left.append(delivery)
    for hold in holds:
        hold.holder.flush()
    return left


def _finish(settlement: Settlement, error: MatadorError | None) -> MatadorError | None:
    """The successor is stored, or not: the original goes accordingly."""
    hold = settlement.receipt.handle
    assert isinstance(hold, Hold)
    if error is None:
        if not hold.holder.alive:
            # It is redelivered beside its successor, under the same id: twice, never lost.
            return _lost(settlement.receipt)
        hold.holder.ack(hold)
        return None
    hold.settled = False
    if not hold.alive:
        return _lost(settlement.receipt)
    if isinstance(settlement, Release):
        log.warning(
            "a message of %s is given back counted, as no copy of it could be stored: %s",
            settlement.receipt.queue,
            error,
        )
        hold.holder.requeue(hold)
        return None
    return error


def _release_counted(
    settlements: Sequence[Settlement], places: list[int], parcels: list[Parcel]
) -> None:
    """While the broker takes no copies, what is released goes back at once, and is counted."""
    for at in reversed(range(len(places))):
        settlement = settlements[places[at]]
        hold = settlement.receipt.handle
        if isinstance(settlement, Release) and isinstance(hold, Hold):
            hold.holder.requeue(hold)
            del places[at], parcels[at]


def _lost(receipt: Receipt) -> LeaseLostError:
    return LeaseLostError(
        f"a delivery from {receipt.queue!r} was settled already, or the connection it came "
        f"through is gone: then it is delivered again"
    )
