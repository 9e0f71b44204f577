"""Tests of an application, from a single function to time travel. `pytest testing_example.py`.

The fixtures `manual_clock` and `memory_transport` come with matador-events[testing].
"""

from dataclasses import dataclass

import pytest

from matador import Context, DontRetry, Envelope, Matador, Schema, event, subscriber
from matador.errors import InvalidEventError
from matador.testing import ManualClock, make_envelope, wait_for
from matador.transports import MemoryTransport


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


booked: list[tuple[str, int]] = []


@subscriber(description="Write the order into the books.", idempotent="yes")
async def book(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    if envelope.data.amount <= 0:
        raise DontRetry("no amount")
    if envelope.docket.metadata.get("flaky") and ctx.attempt == 1:
        raise ConnectionError("the ledger is locked")
    booked.append((envelope.data.order_id, ctx.attempt))


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> str:
    return f"receipt for {envelope.data.order_id}"


@pytest.fixture(autouse=True)
def empty_books() -> None:
    booked.clear()


# --8<-- [start:function]
async def test_a_subscriber_is_a_function() -> None:
    envelope = make_envelope(OrderPlaced("1", 5), attempts=2)
    assert await email_receipt(envelope) == "receipt for 1"


# --8<-- [end:function]


# --8<-- [start:application]
async def test_an_order_is_booked(memory_transport: MemoryTransport) -> None:
    app = Matador(memory_transport, schema=Schema({OrderPlaced: [book]}), consume_from=["events"])
    async with app:
        result = await app.send(OrderPlaced("1", 5))
        assert result.sent == 1
        await wait_for(lambda: booked == [("1", 1)])


# --8<-- [end:application]


# --8<-- [start:time]
async def test_a_failed_booking_is_tried_again_after_a_second(manual_clock: ManualClock) -> None:
    app = Matador(
        MemoryTransport(clock=manual_clock),
        schema=Schema({OrderPlaced: [book]}),
        consume_from=["events"],
        clock=manual_clock,
    )
    async with app:
        await app.send(OrderPlaced("1", 5), metadata={"flaky": True})
        await wait_for(lambda: manual_clock.alarms == 1, message="the retry to wait")
        assert booked == []
        manual_clock.advance(1)  # no test waits for a second to pass
        await wait_for(lambda: booked == [("1", 2)])


# --8<-- [end:time]


# --8<-- [start:dead-letters]
async def test_an_order_without_an_amount_is_a_dead_letter(
    memory_transport: MemoryTransport,
) -> None:
    app = Matador(memory_transport, schema=Schema({OrderPlaced: [book]}), consume_from=["events"])
    dead = app.topology.dead_letter_name("events", "undeliverable")

    async def letters() -> list[str | None]:
        return [letter.reason async for letter in memory_transport.browse(dead)]

    async with app:
        await app.send(OrderPlaced("1", 0))
        assert await wait_for(letters) == ["no amount"]


# --8<-- [end:dead-letters]


# --8<-- [start:invalid]
async def test_what_does_not_fit_is_refused_at_send(memory_transport: MemoryTransport) -> None:
    async with Matador(memory_transport, schema=Schema({OrderPlaced: [book]})) as app:
        with pytest.raises(InvalidEventError, match="amount"):
            await app.send(OrderPlaced, {"order_id": "1", "amount": "five"})


# --8<-- [end:invalid]
