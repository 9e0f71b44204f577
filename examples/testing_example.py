"""Tests for the application in shop.py, without a broker, a file or waiting.

Run them with `pytest testing_example.py`.
"""

# --8<-- [start:imports]
import pytest
from shop import OrderPlaced, app, book_order, email_receipt

from matador import Context, Envelope, Schema, subscriber
from matador.errors import InvalidEventError
from matador.testing import make_envelope, running

# --8<-- [end:imports]


# --8<-- [start:function]
async def test_a_subscriber_is_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    await email_receipt(make_envelope(OrderPlaced("1", 5)))
    assert capsys.readouterr().out == "receipt for order 1 sent\n"


# --8<-- [end:function]


# --8<-- [start:application]
async def test_an_order_reaches_both_subscribers() -> None:
    async with running(app) as harness:
        await harness.send(OrderPlaced("1", 5), correlation_id="request-9")
        await harness.drain()
        (booked,) = harness.handled(book_order)
        assert booked.data == OrderPlaced("1", 5)
        assert booked.docket.correlation_id == "request-9"
        assert len(harness.handled(email_receipt)) == 1
        harness.raise_errors()  # fails if there were any


# --8<-- [end:application]


# --8<-- [start:dead-letters]
async def test_an_order_without_an_amount_is_not_booked() -> None:
    async with running(app) as harness:
        await harness.send(OrderPlaced("1", 0))
        await harness.drain()
        (letter,) = harness.dead_letters(book_order)
        assert letter.reason == "order 1 has no amount"
        assert len(harness.handled(email_receipt)) == 1


# --8<-- [end:dead-letters]


# --8<-- [start:time]
@subscriber(description="Fails at first.", idempotent="yes")
async def flaky(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    if ctx.attempt == 1:
        raise ConnectionError("try again")


async def test_a_failed_message_is_retried_after_a_second() -> None:
    async with running(Schema({OrderPlaced: [flaky]})) as harness:
        await harness.send(OrderPlaced("1", 5))
        await harness.advance(0.9)
        assert len(harness.failed(flaky)) == 1
        assert harness.handled(flaky) == []
        await harness.advance(0.1)
        assert [envelope.docket.attempts for envelope in harness.handled(flaky)] == [2]


# --8<-- [end:time]


# --8<-- [start:invalid]
async def test_an_invalid_payload_is_refused_at_send() -> None:
    async with running(app) as harness:
        with pytest.raises(InvalidEventError, match="amount"):
            await harness.send(OrderPlaced, {"order_id": "1", "amount": "five"})
        assert harness.sent == []


# --8<-- [end:invalid]
