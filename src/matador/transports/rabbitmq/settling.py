"""Carries out settlements: the successor is confirmed first, then the original is acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from matador.errors import LeaseLostError, MatadorError, UnstorableError
from matador.model.message import Complete, Delivery, Receipt, Release, Settlement
from matador.transports.rabbitmq.holding import Hold, Holder
from matador.transports.rabbitmq.publishing import Parcel

log = logging.getLogger("matador.rabbitmq")

MakeParcel: TypeAlias = Callable[[Settlement, Hold], Parcel]
Publish: TypeAlias = Callable[[Sequence[Parcel]], Awaitable[Sequence[MatadorError | None]]]


async def settle(
    settlements: Sequence[Settlement],
    publish: Publish,
    make_parcel: MakeParcel,
    *,
    blocked: bool = False,
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
                outcomes[place] = _finish(settlement, error)
                continue
            hold.settled = True  # nobody else may settle it meanwhile
            places.append(place)
    for holder in acked:
        holder.flush()
    if not parcels:
        return outcomes
    if blocked:
        _release_counted(settlements, places, parcels)
    try:
        errors = await publish(parcels)
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
    deliveries: Sequence[Delivery], publish: Publish, copy: Callable[[Hold, str], Parcel]
) -> list[Delivery]:
    """Store copies that say how often they were delivered; those of which none could be stored."""
    left: list[Delivery] = []
    copied: list[tuple[Delivery, Hold]] = []
    parcels: list[Parcel] = []
    for delivery in deliveries:
        hold = delivery.receipt.handle
        assert isinstance(hold, Hold)
        try:
            parcels.append(copy(hold, delivery.receipt.queue))
        except UnstorableError:
            left.append(delivery)
            continue
        hold.settled = True  # nobody else may settle it meanwhile
        copied.append((delivery, hold))
    errors = await publish(parcels)
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


def _hold(settlement: Settlement) -> Hold:
    hold = settlement.receipt.handle
    assert isinstance(hold, Hold)
    return hold


def _lost(receipt: Receipt) -> LeaseLostError:
    return LeaseLostError(
        f"a delivery from {receipt.queue!r} was settled already, or the connection it came "
        f"through is gone: then it is delivered again"
    )
