"""Facts: what they say of a message, field by field, for every way in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.observe.facts import CREATED, attempt, job, received, sent

from matador.model.envelope import Docket, Envelope
from matador.policy.retry import Discard, RetryLater, SendToDeadLetters
from matador.runtime.facts import EPOCH, NotSent, moment, plain_data
from matador.testing import make_envelope

AT = datetime.fromtimestamp(CREATED, UTC)


def test_a_message_that_was_sent_is_an_envelope_too() -> None:
    fact = sent(
        **job(
            data=b'{"to":"ada"}',
            importance="must-investigate",
            description="Greets.",
            due_at=CREATED + 60,
            correlation_id="c-1",
            metadata={"tenant": "t"},
            before={"to": "bob"},
        )
    )
    named = (fact.way, fact.name, fact.receiver, fact.queue, fact.transport)
    assert named == ("job", "welcome", "emails", "bull:emails", "memory")
    docket = Docket(
        event_key="welcome",
        target_subscriber="emails",
        created_at=AT,
        attempts=1,
        importance="must-investigate",
        event_description="Greets.",
        scheduled_for=datetime.fromtimestamp(CREATED + 60, UTC),
        correlation_id="c-1",
        metadata={"tenant": "t"},
    )
    assert fact.envelope == Envelope("m-1", {"to": "ada"}, docket, {"to": "bob"})
    not_sent = NotSent(fact, OSError("full"))
    assert (not_sent.envelope, not_sent.queue) == (fact.envelope, "bull:emails")
    assert (not_sent.transport, not_sent.text) == ("memory", "")


def test_an_event_that_was_sent_has_its_payload_as_it_was_given() -> None:
    payload = object()
    assert sent(payload=payload, data=b"{}").envelope.data is payload
    assert sent(**job(payload=payload, data=b"{}")).envelope.data == {}
    bare = sent(created_at=float("inf")).envelope.docket
    assert (bare.created_at, bare.scheduled_for, bare.metadata) == (EPOCH, None, {})


@pytest.mark.parametrize(
    ("there", "queue", "transport"),
    [
        ({"queue": "shop.other"}, "shop.other", "memory"),
        ({"transport": "sqlite"}, "shop.events", "sqlite"),
        ({"queue": "shop.other", "transport": "sqlite"}, "shop.other", "sqlite"),
        ({}, "shop.events", "memory"),
    ],
)
def test_a_message_may_be_stored_elsewhere(there: Any, queue: str, transport: str) -> None:
    planned = sent(payload={"a": 1})
    stored = planned.stored_in(**there)
    assert (stored.queue, stored.transport) == (queue, transport)
    back = stored.stored_in(queue="shop.events", transport="memory")
    assert back == planned
    assert (stored is planned) == (not there)
    assert planned.stored_in(queue=planned.queue, transport=planned.transport) is planned


def test_a_message_that_was_received_is_an_envelope_too() -> None:
    fact = received(
        body=b'{"number":1}',
        attempt=3,
        due_at=CREATED + 60,
        correlation_id="c-1",
        metadata={"tenant": "t"},
        importance="can-ignore",
    )
    docket = Docket(
        event_key="order.placed",
        target_subscriber="handle",
        created_at=AT,
        attempts=3,
        importance="can-ignore",
        scheduled_for=datetime.fromtimestamp(CREATED + 60, UTC),
        correlation_id="c-1",
        metadata={"tenant": "t"},
    )
    assert fact.envelope == Envelope("m-1", {"number": 1}, docket)
    assert (fact.queue, fact.deliveries, fact.receipt.handle) == ("shop.events", 2, "1")
    assert received(body=b"{}", data=b'{"number":2}').envelope.data == {"number": 2}
    assert received(created_at=float("inf")).envelope.docket.created_at == EPOCH
    opened = make_envelope({"opened": True})
    assert received(opened=opened).envelope is opened


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"event": "order.placed", "subscriber": "handle"}),
        (
            {"handler": "charge"},
            {"event": "order.placed", "subscriber": "handle", "consumer": "charge"},
        ),
        ({"way": "job", "receiver": "shop.events"}, {"job": "order.placed"}),
        ({"way": "rpc"}, {"command": "order.placed", "rpc_queue": "handle"}),
        ({"way": "message"}, {"routing_key": "order.placed", "consumer": "handle"}),
        (
            {"way": "message", "receiver": "shop.events", "handler": "charge"},
            {"routing_key": "order.placed", "consumer": "charge"},
        ),
    ],
)
def test_log_fields_are_named_for_the_way_in(fields: Any, expected: dict[str, str]) -> None:
    logged = {
        "message_id": "m-1",
        "queue": "shop.events",
        "correlation_id": "c-1",
        "attempt": 1,
        "transport": "memory",
    }
    assert received(**fields, correlation_id="c-1").log_fields() == logged | expected


def test_an_attempt_says_what_its_message_says() -> None:
    subscriber: Any = object()
    message = received(subscriber=subscriber, attempt=4)
    fact = attempt(message)
    assert (fact.way, fact.id, fact.name, fact.receiver) == (
        "event",
        "m-1",
        "order.placed",
        "handle",
    )
    assert (fact.queue, fact.transport, fact.attempt) == ("shop.events", "memory", 4)
    assert fact.receipt is message.delivery.receipt
    assert fact.delivery is message.delivery
    assert fact.envelope == message.envelope
    assert fact.subscriber is subscriber
    assert (fact.duration, fact.duration_ms) == (0.002, 2.0)
    assert (fact.ran, fact.malformed, fact.result) == (True, False, None)


@pytest.mark.parametrize(
    ("due", "started", "wait"),
    [(None, 0.25, 0.25), (60.0, 61.0, 1.0), (60.0, 0.25, 0.0), (None, -5.0, 0.0)],
)
def test_how_long_a_message_waited_is_counted_from_when_it_was_due(
    due: float | None, started: float, wait: float
) -> None:
    message = received(due_at=None if due is None else CREATED + due)
    assert attempt(message, started_at=CREATED + started).wait == wait


@pytest.mark.parametrize(
    ("error", "decision", "expected"),
    [
        (None, None, (None, None, None, None)),
        (ValueError("no"), RetryLater(1.0), ("ValueError", "no", "failed", None)),
        (
            KeyError("id"),
            SendToDeadLetters("unhandled", "nobody"),
            ("KeyError", "id", "nobody", "unhandled"),
        ),
        (ValueError("no"), Discard("late"), ("ValueError", "no", "late", None)),
    ],
)
def test_an_attempt_says_why_its_message_was_not_handled(
    error: Any, decision: Any, expected: tuple[object, ...]
) -> None:
    fact = attempt(error=error, decision=decision)
    assert (fact.error_type, fact.error_text, fact.reason, fact.dead_letter_kind) == expected


def test_a_time_that_another_program_wrote_may_be_none() -> None:
    assert moment(None) is None
    assert moment(CREATED) == AT
    for invalid in (float("nan"), float("inf"), 1e300, -1e300):
        assert moment(invalid) is None


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (None, None),
        (b'{"a":[1]}', {"a": [1]}),
        (msgspec.Raw(b"7"), 7),
        (b"plain \xff text", "plain \N{REPLACEMENT CHARACTER} text"),
        (b"[" * 100_000, "[" * 100_000),
    ],
)
def test_data_is_plain_or_text(data: Any, plain: Any) -> None:
    assert plain_data(data) == plain
