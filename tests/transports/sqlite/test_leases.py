"""Leases: what is held, for how long, by whom, and what becomes of it when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.support.taking import take_stored
from tests.transports.sqlite.conftest import Make, Open

from matador.errors import LeaseLostError, MatadorError
from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    Receipt,
    Release,
    Retry,
    Settlement,
)
from matador.testing import ManualClock, wait_for
from matador.transports.sqlite import SqliteTransport


async def receive(transport: SqliteTransport, limit: int = 10) -> Sequence[Delivery]:
    subscription = await transport.subscribe("t.q", prefetch=limit)
    async with asyncio.timeout(60):
        deliveries = await subscription.receive(limit)
    await subscription.close()
    return deliveries


async def test_a_lost_lease_fences_off_every_settlement(connect: Open, make: Make) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock, lease=30)
    message = make()
    late: list[type[Settlement]] = [Complete, Retry, DeadLetter, Release]
    await transport.send([message])
    (first,) = await receive(transport)
    clock.advance(31)
    (second,) = await receive(transport)
    assert second.receipt.redelivered
    assert second.receipt.delivery_count == 2
    for kind in late:
        settlement = {
            Complete: Complete(first.receipt),
            Retry: Retry(first.receipt, message),
            DeadLetter: DeadLetter(first.receipt, "undeliverable", "late"),
            Release: Release(first.receipt),
        }[kind]
        (outcome,) = await transport.settle([settlement])
        assert isinstance(outcome, LeaseLostError)
    assert await transport.renew([first.receipt, second.receipt]) == [False, True]
    assert await transport.settle([Complete(second.receipt)]) == [None]
    assert (await transport.depth("t.q")).total == 0
    assert (await transport.depth("t.q.undeliverable")).total == 0


async def test_one_lost_lease_leaves_the_rest_of_the_batch_alone(connect: Open, make: Make) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock, lease=30)
    await transport.send([make() for _ in range(5)])
    deliveries = await receive(transport)
    clock.advance(20)
    await transport.renew([delivery.receipt for delivery in deliveries[1:]])
    clock.advance(20)
    (again,) = await receive(transport)
    assert again.body == deliveries[0].body
    outcomes = await transport.settle([Complete(delivery.receipt) for delivery in deliveries])
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError, *[type(None)] * 4]


async def test_a_renewal_holds_for_one_lease_and_no_longer(connect: Open, make: Make) -> None:
    """Or what a worker held that died is missed for as long as it takes."""
    clock = ManualClock()
    transport = await connect(clock=clock, lease=30)
    await transport.send([make()])
    (delivery,) = await receive(transport)
    clock.advance(20)
    assert await transport.renew([delivery.receipt]) == [True]
    clock.advance(29)
    assert (await transport.depth("t.q")).in_flight == 1
    clock.advance(2)
    (again,) = await receive(transport)
    assert again.receipt.delivery_count == 2


async def test_a_lease_that_has_passed_is_lost_even_before_the_next_has_claimed(
    connect: Open, make: Make
) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock, lease=30)
    message = make()
    await transport.send([message, make(), make()])
    first, second, third = await receive(transport)
    clock.advance(31)
    assert [one.body for one in await receive(transport, 1)] == [first.body]
    # The other two are ready again, and nobody's.
    assert await transport.renew([second.receipt]) == [False]
    settlements = [Complete(second.receipt), Retry(third.receipt, message)]
    outcomes = await transport.settle(settlements)
    outcomes = [*outcomes, *await transport.settle([Complete(second.receipt)])]
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError] * 3
    assert (await transport.depth("t.q")).ready == 2


async def test_a_receipt_is_good_once(connect: Open, make: Make) -> None:
    transport = await connect()
    await transport.send([make()])
    (delivery,) = await receive(transport)
    settlements = [Release(delivery.receipt), Complete(delivery.receipt)]
    outcomes = await transport.settle(settlements)
    assert [type(outcome) for outcome in outcomes] == [type(None), LeaseLostError]
    assert (await transport.depth("t.q")).ready == 1


async def test_a_receipt_of_another_transport_is_refused(connect: Open, make: Make) -> None:
    transport = await connect()
    await transport.send([make()])
    foreign = Receipt("t.q", object())
    (outcome,) = await transport.settle([Complete(foreign)])
    assert isinstance(outcome, MatadorError)
    assert await transport.renew([foreign]) == [False]
    assert (await transport.depth("t.q")).ready == 1


async def test_what_a_cancelled_receive_took_is_returned_by_the_next(
    connect: Open, make: Make
) -> None:
    transport = await connect()
    subscription = await transport.subscribe("t.q", prefetch=10)
    await transport.send([make() for _ in range(10)])
    for _ in range(20):
        receiving = asyncio.ensure_future(subscription.receive(10))
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
    first = await subscription.receive(4)
    assert len(first) == 4
    second = await subscription.receive(10)
    assert {d.receipt.delivery_count for d in [*first, *second]} == {1}
    assert len({d.body for d in [*first, *second]}) == 10


async def test_close_gives_back_what_was_taken(connect: Open, make: Make) -> None:
    transport = await connect()
    subscription = await transport.subscribe("t.q", prefetch=10)
    await transport.send([make() for _ in range(10)])
    receiving = asyncio.ensure_future(subscription.receive(10))
    await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    await subscription.close()
    assert (await transport.depth("t.q")).ready == 10
    assert {d.receipt.delivery_count for d in await receive(transport)} == {1}


async def test_what_was_left_lying_for_long_is_not_handed_out(connect: Open, make: Make) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock, lease=30)
    subscription = await transport.subscribe("t.q", prefetch=1)
    await transport.send([make()])
    receiving = asyncio.ensure_future(subscription.receive(1))
    await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)

    async def taken() -> bool:
        return (await transport.depth("t.q")).in_flight == 1

    await wait_for(taken)
    clock.advance(29)
    (delivery,) = await subscription.receive(1)
    clock.advance(20)  # the first lease is over, this one is not
    assert (await transport.depth("t.q")).in_flight == 1
    assert await transport.settle([Complete(delivery.receipt)]) == [None]


async def test_take_leaves_out_what_others_hold(connect: Open, make: Make) -> None:
    transport = await connect()
    await transport.send([make(), make(), make(delay=100), make(ordering_key="k")])
    positions = [message.position async for message in transport.browse("t.q")]
    (held,) = await receive(transport, limit=1)
    taken = await take_stored(
        transport, "t.q", [*reversed(positions), "999", "nonsense", positions[1]]
    )
    assert [delivery.body for delivery in taken] == [b"4", b"3", b"2"]
    assert await take_stored(transport, "t.q", positions) == []
    assert held.body == b"1"
    outcomes = await transport.settle([Complete(delivery.receipt) for delivery in taken])
    assert list(outcomes) == [None] * 3


async def test_purge_spares_what_is_held(connect: Open, make: Make) -> None:
    transport = await connect()
    await transport.send([make(), make(), make(delay=100), *[make(ordering_key="k")] * 2])
    (held,) = await receive(transport, limit=1)
    assert await transport.purge("t.q") == 4
    assert await transport.settle([Complete(held.receipt)]) == [None]
