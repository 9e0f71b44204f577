"""A broker that is there and does not answer, as after SIGSTOP, or behind a dead network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.channels.test_service import Log, Order
from tests.support.redis import OwnServer

from matador.channels import QueueError, QueueService, QueueSettings, Recovery, Settings
from matador.channels.settings import RedisMode
from matador.testing import wait_for

pytestmark = pytest.mark.broker


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnServer]:
    made = OwnServer(tmp_path)
    made.start()
    yield made
    made.thaw()
    made.stop()


def settings(server: OwnServer, mode: RedisMode, timeout: float) -> Settings:
    options = f"timeout={timeout:g}&heartbeat={timeout:g}"
    return Settings(QueueSettings(type="redis", url=f"{server.url}?{options}", mode=mode))


@pytest.mark.parametrize("mode", ["stream", "list", "pubsub"])
async def test_sends_end_in_time_and_consuming_goes_on(server: OwnServer, mode: RedisMode) -> None:
    log = Log("frozen")
    service = QueueService(
        settings(server, mode, timeout=1),
        channels=[log.channel],
        recovery=Recovery(ttl=0.5, reconnect="immediate"),
    )
    async with service:
        await service.send("frozen", "created", Order("before"))
        await wait_for(lambda: "before" in log.ids)
        server.freeze()
        for channel in ("frozen", "never-used"):  # one whose queue is there, and one to be made
            with pytest.raises(QueueError, match=f"send to '{channel}.created' failed"):
                await asyncio.wait_for(service.send(channel, "created", Order("lost")), 60)
        await wait_for(lambda: service.health_check().status == "unhealthy", timeout=60)
        sent = service.metrics().messages_sent
        server.thaw()
        await wait_for(lambda: service.health_check().status == "healthy", timeout=60)
        await service.send("frozen", "created", Order("after"))
        await wait_for(lambda: "after" in log.ids, timeout=60)
        if mode != "list":
            await service.publish("frozen", "created", Order("to all"))
            await wait_for(lambda: "to all" in log.ids, timeout=60)
        assert sent == 1, "what was not confirmed does not count as sent"
