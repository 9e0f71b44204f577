"""The makers make what the rest of Matador accepts."""

from __future__ import annotations

from datetime import UTC, datetime

from matador.testing import (
    make_delivery,
    make_docket,
    make_envelope,
    make_message,
    make_receipt,
)


def test_an_envelope_says_what_it_was_told() -> None:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    envelope = make_envelope(
        {"order_id": "o-1"},
        id="m-1",
        event_key="order.placed",
        subscriber="email-receipt",
        attempts=2,
        created_at=created,
        correlation_id="c-1",
        metadata={"tenant": 7},
    )
    assert (envelope.id, envelope.data) == ("m-1", {"order_id": "o-1"})
    docket = envelope.docket
    assert (docket.event_key, docket.target_subscriber) == ("order.placed", "email-receipt")
    assert (docket.attempts, docket.created_at) == (2, created)
    assert (docket.correlation_id, docket.metadata) == ("c-1", {"tenant": 7})


def test_a_docket_can_be_given_whole() -> None:
    docket = make_docket(last_error="boom", attempts=4)
    assert make_envelope(1, docket=docket).docket is docket
    assert docket.last_error == "boom"


def test_envelopes_and_messages_have_ids_of_their_own() -> None:
    assert make_envelope(1).id != make_envelope(1).id
    assert make_message().id != make_message().id


def test_a_docket_is_made_now() -> None:
    before = datetime.now(UTC)
    assert before <= make_docket().created_at <= datetime.now(UTC)


def test_redelivered_follows_from_the_count() -> None:
    assert not make_receipt().redelivered
    assert make_receipt(delivery_count=2).redelivered
    assert not make_receipt(delivery_count=2, redelivered=False).redelivered


def test_a_delivery_has_a_receipt() -> None:
    receipt = make_receipt(queue="shop.events")
    delivery = make_delivery(b"x", headers={"h": 1}, receipt=receipt)
    assert (delivery.body, delivery.headers, delivery.receipt) == (b"x", {"h": 1}, receipt)
    assert make_delivery().receipt.delivery_count == 1
