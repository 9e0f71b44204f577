"""Messages and envelopes for tests: give what matters; everything else has a default."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from matador.model.envelope import Docket, Envelope, Importance
from matador.model.message import Delivery, Headers, Message, Receipt

T = TypeVar("T")

_QUEUE = "test.events"


def make_docket(
    *,
    event_key: str = "test.event",
    subscriber: str = "test-subscriber",
    attempts: int = 1,
    created_at: datetime | None = None,
    importance: Importance = "should-investigate",
    original_queue: str | None = None,
    scheduled_for: datetime | None = None,
    first_error: str | None = None,
    last_error: str | None = None,
    correlation_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Docket:
    """A docket, created now unless ``created_at`` is given.

    Example:
        >>> make_docket(attempts=3).attempts
        3
    """
    return Docket(
        event_key=event_key,
        target_subscriber=subscriber,
        attempts=attempts,
        created_at=datetime.now(UTC) if created_at is None else created_at,
        importance=importance,
        original_queue=original_queue,
        scheduled_for=scheduled_for,
        first_error=first_error,
        last_error=last_error,
        correlation_id=correlation_id,
        metadata=dict(metadata or {}),
    )


def make_envelope(
    data: T,
    *,
    id: str | None = None,
    before: T | None = None,
    event_key: str = "test.event",
    subscriber: str = "test-subscriber",
    attempts: int = 1,
    created_at: datetime | None = None,
    importance: Importance = "should-investigate",
    correlation_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    docket: Docket | None = None,
) -> Envelope[T]:
    """An envelope around ``data``, with a new id unless one is given.

    ``docket`` takes the place of the arguments that describe one.

    Example:
        >>> make_envelope({"order_id": "o-1"}, attempts=2).docket.attempts
        2
    """
    return Envelope(
        id=str(uuid4()) if id is None else id,
        data=data,
        before=before,
        docket=docket
        or make_docket(
            event_key=event_key,
            subscriber=subscriber,
            attempts=attempts,
            created_at=created_at,
            importance=importance,
            correlation_id=correlation_id,
            metadata=metadata,
        ),
    )


def make_message(
    body: bytes = b"{}",
    *,
    id: str | None = None,
    queue: str = _QUEUE,
    headers: Headers | None = None,
    delay: float = 0.0,
    priority: int | None = None,
    ordering_key: str | None = None,
) -> Message:
    """A message to send, with a new id unless one is given.

    Example:
        >>> make_message(b"[]", queue="shop.events").queue
        'shop.events'
    """
    return Message(
        id=str(uuid4()) if id is None else id,
        queue=queue,
        body=body,
        headers=headers or {},
        delay=delay,
        priority=priority,
        ordering_key=ordering_key,
    )


def make_receipt(
    *,
    queue: str = _QUEUE,
    handle: object = None,
    delivery_count: int = 1,
    redelivered: bool | None = None,
    priority: int | None = None,
    ordering_key: str | None = None,
) -> Receipt:
    """A receipt; ``redelivered`` follows from the count unless it is given.

    Example:
        >>> make_receipt(delivery_count=2).redelivered
        True
    """
    return Receipt(
        queue=queue,
        handle=handle,
        delivery_count=delivery_count,
        redelivered=delivery_count > 1 if redelivered is None else redelivered,
        priority=priority,
        ordering_key=ordering_key,
    )


def make_delivery(
    body: bytes = b"{}", *, headers: Headers | None = None, receipt: Receipt | None = None
) -> Delivery:
    """A delivery, as a transport returns it.

    Example:
        >>> make_delivery(b"not json").receipt.delivery_count
        1
    """
    return Delivery(body=body, headers=headers or {}, receipt=receipt or make_receipt())
