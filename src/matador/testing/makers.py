"""Creates the arguments of handlers and transports for tests: every parameter has a default.

The contexts are for handlers that are called directly: steps just run, and nothing is acknowledged.
To see retries, steps and acknowledgements, use ``running``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from matador.jobs import ActiveJob
from matador.model.envelope import Docket, Envelope, Importance
from matador.model.message import Delivery, Headers, Message, Properties, Receipt
from matador.rpc import RpcContext
from matador.runtime.context import Context
from matador.runtime.messages import RETRY_COUNT, MessageContext, MessageWork
from matador.runtime.way import Route

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

    ``docket`` replaces the arguments that describe one.

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


def make_context(envelope: Envelope[Any] | None = None, *, queue: str = _QUEUE) -> Context:
    """The context of a subscriber of events, for ``subscriber(envelope, make_context(envelope))``.

    Its id, attempt, metadata and correlation id are those of the envelope.

    Example:
        >>> make_context(make_envelope({"order_id": "o-1"}, correlation_id="c-1")).correlation_id
        'c-1'
    """
    found = make_envelope(None) if envelope is None else envelope
    return Context(
        None,
        make_delivery(receipt=make_receipt(queue=queue)),
        id=found.id,
        attempt=found.docket.attempts,
        metadata=found.docket.metadata,
        correlation_id=found.docket.correlation_id,
    )


def make_job(
    data: T,
    *,
    name: str = "test-job",
    queue: str = "test",
    id: str | None = None,
    attempt: int = 1,
    max_attempts: int = 3,
    created_at: datetime | None = None,
    error: str | None = None,
    priority: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ActiveJob[T]:
    """A running job, for a function of the job. Declared jobs take their arguments.

    Example:
        >>> await handle(make_job({"to": "ada@example.com"}, attempt=2))
        'sent'
    """
    return ActiveJob(
        id=str(uuid4()) if id is None else id,
        name=name,
        queue=queue,
        data=data,
        status="active",
        attempts=attempt - 1,
        max_attempts=max_attempts,
        created_at=datetime.now(UTC) if created_at is None else created_at,
        processed_at=datetime.now(UTC),
        error=error,
        priority=priority,
        metadata=dict(metadata or {}),
    )


def make_rpc_context(
    command: str = "TEST",
    *,
    id: str | None = None,
    attempt: int = 1,
    queue: str = "test",
    correlation_id: str | None = None,
    metadata: Headers | None = None,
    deadline: datetime | None = None,
    wants_reply: bool = True,
) -> RpcContext:
    """The context of a call, for ``add(Add(1, 2), make_rpc_context("ADD"))``.

    Example:
        >>> make_rpc_context("ADD", attempt=2).attempts
        2
    """
    properties = Properties(
        type=command,
        correlation_id=correlation_id,
        reply_to="test.replies" if wants_reply else None,
    )
    return RpcContext(_work(queue, id, attempt, metadata, properties, deadline), None)


def make_message_context(
    routing_key: str = "test.message",
    *,
    exchange: str = "test",
    id: str | None = None,
    attempt: int = 1,
    queue: str = "test",
    correlation_id: str | None = None,
    metadata: Headers | None = None,
) -> MessageContext:
    """The context of a message of pub/sub or of a channel.

    Example:
        >>> make_message_context("orders.created", metadata={"tenant": "7"}).metadata["tenant"]
        '7'
    """
    properties = Properties(routing_key=routing_key, correlation_id=correlation_id)
    return MessageContext(_work(queue, id, attempt, metadata, properties), None, exchange)


def _work(
    queue: str,
    id: str | None,
    attempt: int,
    metadata: Headers | None,
    properties: Properties,
    deadline: datetime | None = None,
) -> MessageWork:
    headers = {**(metadata or {}), RETRY_COUNT: attempt - 1}
    delivery = Delivery(b"", headers, make_receipt(queue=queue), properties=properties)
    return MessageWork(
        delivery,
        Route(handler=""),
        str(uuid4()) if id is None else id,
        attempt,
        None if deadline is None else deadline.timestamp(),
        body=b"",
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
