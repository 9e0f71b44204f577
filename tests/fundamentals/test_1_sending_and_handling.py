"""Chapter 1: an event is sent, and its subscriber handles it."""

from __future__ import annotations

from tests.fundamentals.shop import OrderPlaced

from matador import Envelope, Matador, Schema, subscriber
from matador.testing import wait_for


async def test_an_event_is_handled() -> None:
    handled: list[OrderPlaced] = []

    @subscriber(description="Email the receipt.", idempotent="yes")
    async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
        handled.append(envelope.data)

    # An application: a transport, a schema, and the queues it consumes.
    app = Matador(
        "memory://",
        schema=Schema({OrderPlaced: [email_receipt]}),
        consume_from=["events"],
    )
    async with app:
        result = await app.send(OrderPlaced("o-1", amount=5))
        await wait_for(lambda: handled)

    assert result.sent == 1
    assert handled == [OrderPlaced("o-1", amount=5)]


async def test_an_envelope_tells_what_is_known_of_its_message() -> None:
    seen: list[Envelope[OrderPlaced]] = []

    @subscriber(description="Look at it.", idempotent="yes")
    async def look(envelope: Envelope[OrderPlaced]) -> None:
        seen.append(envelope)

    app = Matador("memory://", schema=Schema({OrderPlaced: [look]}), consume_from=["events"])
    async with app:
        await app.send(OrderPlaced("o-1", 5), correlation_id="c-1", metadata={"shop": "Berlin"})
        await wait_for(lambda: seen)

    docket = seen[0].docket
    assert docket.event_key == "order.placed"
    assert docket.target_subscriber == "look"
    assert docket.attempts == 1
    assert docket.correlation_id == "c-1"
    assert docket.metadata == {"shop": "Berlin"}


def test_code_without_an_event_loop_sends_too() -> None:
    @subscriber(description="A plain function, which runs in a thread.", idempotent="yes")
    def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...

    app = Matador("memory://", schema=Schema({OrderPlaced: [email_receipt]}))
    with app.sync() as shop:
        assert shop.send(OrderPlaced("o-1", 5)).sent == 1
