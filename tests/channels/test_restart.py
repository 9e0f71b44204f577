"""The broker goes away in the middle and comes back: channels go on where they were."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.channels.test_service import Log, Order
from tests.pubsub.test_recovery import RabbitMQ, Redis

from matador.channels import CircuitBreaker, QueueError, QueueService, QueueSettings, Recovery
from matador.channels.settings import Settings
from matador.errors import BufferExpiredError, CircuitOpenError
from matador.testing import wait_for


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Redis, marks=pytest.mark.broker),
        pytest.param(RabbitMQ, marks=[pytest.mark.broker, pytest.mark.xdist_group("rabbitmq-own")]),
    ],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Redis | RabbitMQ]:
    found = request.param(tmp_path_factory)
    yield found
    found.discard()


def service_on(server: Redis | RabbitMQ, *channels: object, **options: Any) -> QueueService:
    if isinstance(server, Redis):
        queue = QueueSettings(type="redis", url=server.url, mode="stream")
    else:
        queue = QueueSettings(type="rabbitmq", url=server.url)
    return QueueService(Settings(queue), channels=channels, **options)


async def test_a_restart_in_the_middle(
    server: Redis | RabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenarios: Redis connection recovery; connection state tracking.

    Subscriptions are restored, also those for what is published. A first message to a queue that
    does not exist yet waits like all others.
    """
    caplog.set_level(logging.INFO, "matador.channels")
    log = Log("restart")
    states: list[str] = []
    patient = Recovery(ttl=120)
    async with service_on(server, log.channel, recovery=patient) as service:
        service.on("state", lambda state: states.append(state.status))  # type: ignore[attr-defined] - a ConnectionState
        await service.send("restart", "created", Order("before"))
        await wait_for(lambda: log.ids == ["before"])
        await asyncio.to_thread(server.stop)
        await wait_for(lambda: service.health_check().status == "unhealthy", timeout=30)
        away = service.health_check()
        assert away.connection_state == "reconnecting"
        assert away.disconnected_since is not None
        assert away.last_error
        waiting = [
            asyncio.create_task(service.send("restart", "created", Order("known"))),
            asyncio.create_task(service.send("restart", "later", Order("new queue"))),
            asyncio.create_task(service.publish("restart", "created", Order("published"))),
        ]
        assert service._outbox is not None
        outbox = service._outbox
        await wait_for(lambda: outbox.buffered == 3)
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(asyncio.gather(*waiting), 120)
        await wait_for(lambda: {"known", "published"} <= {*log.ids}, timeout=60)
        assert service.health_check().status == "healthy"
        assert service.health_check().disconnected_since is None
        await wait_for(lambda: states[-1] == "connected")
        assert states[0] == "reconnecting"
        assert "the connection is reconnecting" in caplog.text
        assert caplog.text.rstrip().count("the connection is connected") >= 1


async def test_while_the_broker_stays_away(server: Redis | RabbitMQ) -> None:
    """Scenario: circuit breaker for connection failures."""
    breaker = CircuitBreaker(threshold=2, recovery_time=600, successes=1)
    hasty = Recovery(ttl=0.2, reconnect="immediate")
    async with service_on(server, recovery=hasty, circuit_breaker=breaker) as service:
        await asyncio.to_thread(server.stop)
        try:
            await wait_for(lambda: service.health_check().status == "unhealthy", timeout=30)
            for _ in range(2):
                with pytest.raises(QueueError, match=r"send to 'away\.made' failed") as caught:
                    await service.send("away", "made", {})
                assert isinstance(caught.value.__cause__, BufferExpiredError)
            with pytest.raises(QueueError) as caught:
                await service.send("away", "made", {})
            assert isinstance(caught.value.__cause__, CircuitOpenError)
            assert service.health_check().circuit == "open"
        finally:
            await asyncio.to_thread(server.start)
        await wait_for(lambda: service.health_check().circuit == "half-open", timeout=60)
        await service.send("away", "made", {})
        assert service.health_check().circuit == "closed"
