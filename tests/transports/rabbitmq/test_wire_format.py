"""Services in other languages: what they write is handled, what we write is what they expect.

Everything that is not ours here is written and read with raw pika, and spelled out.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.support.rabbitmq import Raw, eventually

from matador import (
    Context,
    Envelope,
    Matador,
    RetryQueues,
    Schema,
    StandardRetryPolicy,
    Topology,
    event,
    subscriber,
)
from matador.model.message import Message
from matador.testing import wait_for
from matador.transports.rabbitmq import RabbitMQTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]

ID = "50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e"
BODY = (
    f'{{"id":"{ID}","data":{{"userId":"u1","n":1.5,"u":"é漢😀","nul":null}},'
    '"metadata":{"tenant":"acme"}}'
).encode()
HEADERS: dict[str, Any] = {
    "x-matador-attempts": 1,
    "x-matador-correlation-id": "corr-123",
    "x-matador-created-at": "2026-11-15T19:02:37.435Z",
    "x-matador-event-key": "user.created",
    "x-matador-importance": "must-investigate",
    "x-matador-subscriber": "send-email",
}
OLDER = {
    "key": "user.created",
    "targetSubscriber": "send-email",
    "data": {"userId": "u2", "n": 2, "u": "x", "nul": None},
    "metadata": {"tenant": "acme"},
    "universal": {"event_id": "event-2", "user_id": 7, "correlation_id": "c-2"},
}


@event("user.created", description="Somebody signed up.")
class UserCreated(msgspec.Struct, rename="camel"):
    user_id: str
    n: float
    u: str
    nul: None


Handler = Callable[[Envelope[UserCreated], Context], Awaitable[None]]


@asynccontextmanager
async def running(
    transport: RabbitMQTransport, namespace: str, handler: Handler, *, consume: bool = True
) -> AsyncGenerator[Matador]:
    declare = subscriber(
        description="Sends an email.",
        name="send-email",
        idempotent="yes",
        importance="must-investigate",
    )
    app = Matador(
        transport,
        schema=Schema({UserCreated: [declare(handler)]}),
        topology=Topology(namespace, queues=["events"], retry=RetryQueues(default_delay=0.02)),
        consume_from=["events"] if consume else [],
        retry=StandardRetryPolicy(max_attempts=2, base_delay=0.02),
    )
    async with app:
        yield app


async def ignore(_: Envelope[UserCreated], __: Context) -> None:
    """Does nothing."""


def publish(raw: Raw, namespace: str, body: bytes, headers: dict[str, Any], **more: Any) -> None:
    raw.publish(
        f"{namespace}.exchange",
        f"{namespace}.events",
        body,
        headers,
        content_type="application/json",
        delivery_mode=2,
        timestamp=1794769357436,
        **more,
    )


async def test_both_bodies_of_others_are_handled(
    make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
) -> None:
    seen: list[Envelope[UserCreated]] = []

    async def handler(envelope: Envelope[UserCreated], _: Context) -> None:
        seen.append(envelope)

    async with running(make(), namespace, handler):
        publish(raw, namespace, BODY, HEADERS, message_id=ID)
        publish(raw, namespace, json.dumps(OLDER).encode(), {"x-event-id": "event-9"})
        await wait_for(lambda: len(seen) == 2, message="both")
    newer, older = sorted(seen, key=lambda envelope: envelope.data.user_id)
    assert newer.id == ID
    assert newer.data == UserCreated("u1", 1.5, "é漢😀", None)
    docket = newer.docket
    assert (docket.attempts, docket.correlation_id) == (1, "corr-123")
    assert dict(docket.metadata or {}) == {"tenant": "acme"}
    assert older.id == "event-9"
    assert dict(older.docket.metadata or {}) == {"tenant": "acme", "user_id": 7}
    assert older.docket.correlation_id == "c-2"


async def test_attempts_of_senders_that_do_not_count_are_the_rounds_the_broker_counted(
    make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
) -> None:
    seen: list[int] = []

    async def handler(envelope: Envelope[UserCreated], _: Context) -> None:
        seen.append(envelope.docket.attempts)

    async with running(make(), namespace, handler):
        raw.publish(
            f"{namespace}.exchange", f"{namespace}.events.retry", json.dumps(OLDER).encode(), {}
        )
        await wait_for(lambda: len(seen) == 1, message="one that came back from the retry queue")
    assert seen == [2]


async def test_what_we_publish_is_what_others_expect(
    make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
) -> None:
    before = time.time() * 1000
    async with running(make(), namespace, ignore, consume=False) as app:
        result = await app.send(
            UserCreated("u1", 1.5, "é漢😀", None),
            metadata={"tenant": "acme"},
            correlation_id="corr-123",
        )
        assert result.errors == ()
        method, properties, body = raw.get(f"{namespace}.events")
    assert (method.exchange, method.routing_key) == (f"{namespace}.exchange", f"{namespace}.events")
    message_id = properties.message_id
    assert body == BODY.replace(ID.encode(), message_id.encode()), "byte for byte"
    assert re.fullmatch(r"[0-9a-f-]{36}", message_id)
    assert before - 1 <= properties.timestamp <= time.time() * 1000 + 1, "in milliseconds"
    assert (properties.content_type, properties.delivery_mode) == ("application/json", 2)
    unset = ("priority", "expiration", "correlation_id", "reply_to", "type", "content_encoding")
    assert [name for name in unset if getattr(properties, name) is not None] == []
    created = properties.headers.pop("x-matador-created-at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", created)
    properties.headers.pop("x-delivery-count", None)  # the broker's, for whoever asks
    expected = {k: v for k, v in HEADERS.items() if k != "x-matador-created-at"}
    assert properties.headers == expected


async def test_a_dead_letter_is_what_others_expect(
    make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
) -> None:
    calls: list[int] = []

    async def handler(envelope: Envelope[UserCreated], _: Context) -> None:
        calls.append(envelope.docket.attempts)
        raise ValueError("first" if len(calls) == 1 else "last")

    letters = f"{namespace}.events.undeliverable"
    async with running(make(), namespace, handler):
        publish(raw, namespace, BODY, HEADERS, message_id=ID)
        await wait_for(lambda: len(calls) == 2, message="both attempts")
        method, properties, body = await asyncio.to_thread(raw.get, letters)
    assert calls == [1, 2]
    assert (method.exchange, method.routing_key) == (f"{namespace}.dlx", letters)
    assert properties.message_id == ID
    assert json.loads(body)["id"] == ID
    headers = properties.headers
    assert headers["x-matador-dead-letter-reason"] == "max attempts exceeded (2)"
    assert (headers["x-matador-first-error"], headers["x-matador-last-error"]) == ("first", "last")
    assert headers["x-matador-attempts"] == 2
    assert headers["x-matador-original-queue"] == f"{namespace}.events"
    assert not [name for name in headers if name.startswith(("matador-delay", "x-death"))]


async def test_what_nobody_can_read_is_kept_as_it_came(
    make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
) -> None:
    odd = b"\x00\xff not { an envelope"
    async with running(make(), namespace, ignore):
        headers = {"nested": {"list": [1, "two"]}, "text": "ü"}
        publish(raw, namespace, odd, headers, message_id="odd", type="T", correlation_id="c")
        letters = f"{namespace}.events.undeliverable"
        _, properties, body = await asyncio.to_thread(raw.get, letters)
    assert body == odd
    assert properties.headers["nested"] == {"list": [1, "two"]}
    assert (properties.message_id, properties.type, properties.correlation_id) == ("odd", "T", "c")
    assert "x-matador-dead-letter-reason" in properties.headers


async def test_a_priority_is_set_where_the_queue_has_them(
    transport: RabbitMQTransport, namespace: str, raw: Raw
) -> None:
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    queue = f"{namespace}.events"
    await transport.send([Message("m", queue, b"x", priority=7)])
    eventually(lambda: raw.count(queue) == 1, "the message")
    assert raw.get(queue)[1].priority == 7
