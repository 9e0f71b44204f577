"""A broker that is there and does not answer, as after SIGSTOP, or behind a dead network."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.servers import Server
from tests.channels.test_service import Log, Order
from tests.support.brokers import broker_url
from tests.support.left_alone import nothing_left_alone
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
        for name in ("created", "never-used"):  # one whose queue is there, and one to be made
            with pytest.raises(QueueError, match=f"send to 'frozen.{name}' failed"):
                await asyncio.wait_for(service.send("frozen", name, Order("lost")), 60)
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


@pytest.fixture
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    broker_url("rabbitmq")  # skips where there is none
    made = Server("rabbitmq")
    made.start()
    yield made
    made.discard()


@pytest.mark.xdist_group("rabbitmq-own")
async def test_a_shutdown_does_not_wait_for_it(
    rabbit: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be many channels, and each has something to delete on the broker."""
    monkeypatch.setattr("matador.channels.service.GRACE", 0.2)
    logs = [Log(f"frozen-{number}") for number in range(4)]
    url = f"amqp://guest:guest@127.0.0.1:{rabbit.port}/?heartbeat=0"
    service = QueueService(
        Settings(QueueSettings(type="rabbitmq", url=url)), channels=[log.channel for log in logs]
    )
    await service.start()
    await service.send("frozen-0", "created", Order("1"))
    await wait_for(lambda: logs[0].seen)
    process = int((rabbit.folder / "pid").read_text("ascii"))
    os.kill(process, signal.SIGSTOP)
    try:
        await asyncio.wait_for(service.shutdown(timeout=0.1), 60)
        assert service.health_check().connection_state == "disconnected"
    finally:
        os.kill(process, signal.SIGCONT)
    await nothing_left_alone()
