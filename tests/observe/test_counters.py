"""One counter for everybody who counts outcomes."""

from __future__ import annotations

from typing import Any

from tests.observe.facts import attempt, job, received
from tests.support.shop import OrderPlaced, failing, make_app, settled

from matador import StandardRetryPolicy
from matador.model.message import Message
from matador.observe.counters import OutcomeCounter, describe


async def test_every_way_to_end_is_counted() -> None:
    counter = OutcomeCounter()
    handler = failing(ValueError("first"), ValueError("second"), None)
    retry = StandardRetryPolicy(base_delay=0, max_attempts=2)
    async with make_app(None, handler, hooks=counter, retry=retry) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        await app.send(OrderPlaced("o-2"))
        await app.transport.send([Message("m", "shop.events", b"not an envelope")])
        await settled(app)
    total = counter.total
    assert [total(None, one) for one in ("success", "retry", "dead-letter")] == [1, 1, 2]
    assert total("shop.events") == total() == 4
    assert total("shop.billing") == 0
    retried = next(one for one in counter.counts if one.outcome == "retry")
    assert (retried.event_key, retried.subscriber, retried.error) == (
        "order.placed",
        "handle",
        "ValueError: first",
    )
    assert retried.mean_ms == retried.total_ms == retried.max_ms >= 0
    malformed = next(one for one in counter.counts if not one.event_key)
    assert malformed.outcome == "dead-letter"
    assert len(counter.take()) == 4
    assert (counter.total(), counter.take()) == (0, [])


def test_an_error_is_one_short_line() -> None:
    assert describe(ValueError("a\nb" + "c" * 500)).startswith("ValueError: a bcc")
    assert len(describe(ValueError("c" * 500))) <= 200


async def test_what_is_counted_is_bounded() -> None:
    counter = OutcomeCounter()
    counter.on_attempted([attempt(received(name=f"event {n}", queue="q")) for n in range(1500)])
    assert len(counter.counts) == 1001
    assert counter.total("q", "success") == 1500


def test_facts_of_every_way_in() -> None:
    counter = OutcomeCounter()
    failed: dict[str, Any] = {"outcome": "retry", "error": ValueError("no")}
    counter.on_attempted(
        [
            attempt(),
            attempt(duration=0.5),
            attempt(**failed),
            attempt(received(**job()), **failed),
            attempt(outcome="dead-letter", error=ValueError("bad"), malformed=True, ran=False),
        ]
    )
    assert [
        (one.queue, one.event_key, one.outcome, one.count, one.max_ms, one.error)
        for one in counter.counts
    ] == [
        ("shop.events", "order.placed", "success", 2, 500.0, None),
        ("shop.events", "order.placed", "retry", 1, 2.0, "ValueError: no"),
        ("bull:emails", "welcome", "retry", 1, 2.0, "ValueError: no"),
        ("shop.events", "", "dead-letter", 1, 2.0, "ValueError: bad"),
    ]
