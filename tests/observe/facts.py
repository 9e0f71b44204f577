"""Facts, as the pipeline tells them, for tests of what listens to them."""

from __future__ import annotations

from typing import Any

from matador.model.message import Delivery, Receipt
from matador.runtime.facts import Attempt, Kind, Received, Sent
from matador.runtime.hooks import Sending

CREATED = 1_763_200_000.5


def sent(**more: Any) -> Sent:
    """An event that was stored."""
    fields: dict[str, Any] = {
        "way": "event",
        "id": "m-1",
        "name": "order.placed",
        "receiver": "handle",
        "queue": "shop.events",
        "transport": "memory",
        "created_at": CREATED,
    }
    if not {"data", "payload"} & more.keys():
        more["data"] = b'{"order_id":"o-1"}'
    fields |= more
    kind = Kind(**{name: fields.pop(name) for name in Kind.__struct_fields__ if name in fields})
    return Sent(kind, **fields)


def received(*, queue: str = "shop.events", body: bytes = b"{}", **more: Any) -> Received:
    """An event that was received."""
    fields: dict[str, Any] = {
        "way": "event",
        "id": "m-1",
        "name": "order.placed",
        "receiver": "handle",
        "transport": "memory",
        "delivery": Delivery(body, {}, Receipt(queue, "1", 2)),
        "attempt": 1,
        "created_at": CREATED,
    }
    return Received(**fields | more)


def attempt(message: Received | None = None, **more: Any) -> Attempt:
    """A success, a quarter of a second after the message was created."""
    fields: dict[str, Any] = {
        "message": message or received(),
        "outcome": "success",
        "started_at": CREATED + 0.25,
        "duration": 0.002,
    }
    return Attempt(**fields | more)


def job(**more: Any) -> dict[str, Any]:
    """The fields of a job that was sent or received."""
    return {"way": "job", "name": "welcome", "receiver": "emails", "queue": "bull:emails"} | more


def sending(**more: Any) -> Sending:
    """The send of an event."""
    fields: dict[str, Any] = {
        "way": "event",
        "operation": "send",
        "names": ("order.placed",),
        "receiver": "",
        "count": 1,
        "transport": "memory",
        "metadata": {},
    }
    return Sending(**fields | more)
