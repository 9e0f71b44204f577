"""Good messages to start from: every codec, every payload kind, older bodies."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from tests.support.envelopes import CODECS, make_docket
from tests.support.payloads import KINDS, plain_order

from matador.model.envelope import Envelope


class Sample(NamedTuple):
    """A message as a transport would hand it over, and the name of the codec that is to read it.

    Nothing about it need be right: headers may have any type a broker can deliver.
    """

    codec: str
    body: bytes
    headers: dict[str, Any]


OLDER = [
    {
        "key": "order.struct",
        "data": plain_order(),
        "metadata": {"tenant": "acme"},
        "universal": {"event_id": "e-1", "user_id": None, "correlation_id": "c-1", "x": 1},
        "before": plain_order(note="before"),
        "options": {"delayMs": 1500},
        "targetSubscriber": "send-email",
    },
    {"key": "order.struct", "data": plain_order(), "targetSubscriber": "send-email"},
]


def _full() -> dict[str, Any]:
    return {
        "event_description": "A customer placed an order.",
        "original_queue": "shop.events",
        "scheduled_for": datetime(2026, 11, 15, 19, 3, tzinfo=UTC),
        "attempts": 3,
        "first_error": "first é",
        "last_error": "last 😀",
        "correlation_id": "corr-123",
        "metadata": {"tenant": "acme", "numbers": [1, 2.5, -3], "nested": {"deep": {"er": None}}},
    }


def _samples() -> Iterator[Sample]:
    for name, codec in CODECS.items():
        for kind in KINDS.values():
            data = codec.encode_payload(kind.event, kind.make())
            for before, docket in ((None, {}), (data, _full())):
                made = make_docket(event_key=kind.event.key, **docket)
                encoded = codec.encode(
                    Envelope("50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e", data, made, before)
                )
                yield Sample(name, encoded.body, dict(encoded.headers))
    for older in OLDER:
        body = msgspec.json.encode(older)
        yield Sample("headers", body, {"x-matador-attempts": 2, "x-event-id": "e-9"})
        yield Sample("json", body, {})


CORPUS: tuple[Sample, ...] = tuple(_samples())
