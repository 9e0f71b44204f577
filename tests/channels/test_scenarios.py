"""Scenarios of the specification that concern one broker, types, or documentation.

Each scenario has a test that names it: ``test_every_scenario_has_a_test`` has the list.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.channels.conftest import Bench
from tests.channels.test_service import Log, Order
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw

import matador.channels
from matador.channels import MessageContext, QueueService, RetrySettings
from matador.errors import InvalidMessageError
from matador.testing import wait_for

SCENARIOS = """
Type-safe queue metadata storage
Type-safe consume handler registration
Generic message type support
Message processing fails with retry enabled
Message exceeds max retry attempts
Configurable retry strategy
RabbitMQ dead letter queue setup
Kafka dead letter topic
Failed message routing to DLQ
Shutdown with pending messages
RabbitMQ graceful shutdown
Kafka graceful shutdown
Redis graceful shutdown
Health check for active connection
Health check for disconnected state
Connection state tracking
Metrics collection
Invalid queue type
Invalid RabbitMQ URL format
Invalid Kafka broker list
Missing required configuration
Redis list mode for point-to-point
Redis pub/sub mode for broadcast
Redis connection recovery
RabbitMQ prefetch configuration
Kafka batch processing
Message compression
Custom QueueError class
Structured error logging
Circuit breaker for connection failures
JSDoc for public methods
Type definitions export
Default configuration behavior
Redis migration path
API compatibility
"""


def test_every_scenario_has_a_test() -> None:
    named = ""
    here = Path(__file__).parent
    for file in (*here.glob("test_*.py"), *(here.parent / "ways").glob("test_*.py")):
        text = " ".join(file.read_text().split()).lower()
        named += " ".join(part[:300] for part in text.split('"""scenario')[1:])
    missing = [one for one in SCENARIOS.strip().splitlines() if one.lower() not in named]
    assert missing == []


def fail(order: Order, ctx: MessageContext) -> None:
    if order.id == "bad":
        raise ValueError("never")


@pytest.mark.broker
async def test_dead_letters_of_rabbitmq(on: Callable[[str], Bench]) -> None:
    """Scenario: RabbitMQ dead letter queue setup. What another consumer rejects lands there."""
    bench = on("rabbitmq")
    queue = f"{bench.name()}.created"
    async with bench.service() as service:
        await service.send(bench.name(), "created", Order("1"))
        with Raw(broker_url("rabbitmq")) as raw:
            method, _, _ = raw.channel.basic_get(queue)
            raw.channel.basic_nack(method.delivery_tag, requeue=False)
            _, properties, body = raw.get(f"{queue}.dlq")
            raw.channel.queue_delete(queue)
            raw.channel.queue_delete(f"{queue}.dlq")
    assert body == b'{"id":"1","amount":0}'
    assert properties.headers["x-death"][0]["queue"] == queue


@pytest.mark.broker
async def test_batches_of_kafka(on: Callable[[str], Bench]) -> None:
    """Scenario: Kafka batch processing. Progress is committed: nothing runs again."""
    bench = on("kafka")
    log = Log(bench.name())
    async with bench.service(log.channel, batch_size=7) as service:
        assert "batch_size=7" in bench.queue(batch_size=7).address
        for number in range(30):
            await service.send(bench.name(), "created", Order(str(number)))
        await wait_for(lambda: len(log.seen) == 30, timeout=60)
    again = Log(bench.name())
    async with bench.service(again.channel, batch_size=7) as service:
        await service.send(bench.name(), "created", Order("last"))
        await wait_for(lambda: again.seen, timeout=60)
    assert again.ids == ["last"]
    assert len(log.seen) == 30


async def test_errors_are_logged_with_their_context(
    on: Callable[[str], Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: structured error logging, with the error and its traceback."""
    bench = on("memory")
    log = Log(bench.name(), fail)
    async with bench.service(log.channel, retry=RetrySettings(enabled=False)) as service:
        sent = await service.send(bench.name(), "created", Order("bad"))
        await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.__dict__["matador_queue"] == f"{bench.name()}.created"
    assert record.__dict__["matador_message_id"] == sent
    assert record.created > 0
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_types_are_kept(on: Callable[[str], Bench]) -> None:
    """Scenario: generic message type support. Data arrives in the type that is asked for."""
    bench = on("memory")
    log = Log(bench.name())
    async with bench.service(log.channel) as service:
        await service.send(bench.name(), "created", Order("1", 5))
        await wait_for(lambda: log.seen)
        # Data of another type is refused by a sender that knows the consumer, or before it runs.
        with pytest.raises(InvalidMessageError, match="id"):
            await service.send(bench.name(), "created", {"id": 1})
        async with bench.service() as other:
            await other.send(bench.name(), "created", {"id": 1})
        await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
    assert log.seen == [("1", 1)]


def _methods(kind: type[Any]) -> list[Any]:
    return [
        member
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and (inspect.isfunction(member) or inspect.ismethod(member))
    ]


def test_public_methods_are_documented() -> None:
    """Scenario: JSDoc for public methods: in Python, docstrings, with types and examples."""
    for name in matador.channels.__all__:
        public = getattr(matador.channels, name)
        assert inspect.getdoc(public), name
    for method in _methods(QueueService):
        assert inspect.getdoc(method), method.__qualname__
        hints = get_type_hints(method)
        assert "return" in hints, method.__qualname__
    for public in (QueueService, matador.channels.channel, matador.channels.consume):
        assert "Example:" in (inspect.getdoc(public) or ""), public.__name__


def test_types_are_exported() -> None:
    """Scenario: type definitions export: the package is marked as typed, with all its options."""
    folder = Path(matador.channels.__file__).parents[1]
    assert (folder / "py.typed").is_file()
    for name in ("Settings", "QueueSettings", "RetrySettings", "Consumer"):
        assert name in matador.channels.__all__
