"""A broker that is restarted in the middle of calls: a server of the tests' own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from chaos.servers import Server
from tests.support.brokers import broker_url

from matador.rpc import ConnectionLostError, RpcClient, RpcServer
from matador.testing import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.xdist_group("rpc-own")]


@pytest.fixture
def broker() -> Iterator[Server]:
    broker_url("rabbitmq")  # skips where there is none
    server = Server("rabbitmq")
    server.start()
    yield server
    server.discard()


@pytest.mark.parametrize("kill", [False, True])
async def test_pending_calls_fail_by_name_and_later_ones_work(broker: Server, kill: bool) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}/"
    server = RpcServer(url, queue="restarted")
    began: list[int] = []

    @server.handler("hang")
    async def hang(data: int) -> None:
        began.append(data)
        await asyncio.Event().wait()

    @server.handler("ping")
    async def ping() -> str:
        return "pong"

    await server.start()
    async with RpcClient(url, queue="restarted", timeout=120) as client:
        pending = [asyncio.create_task(client.call("hang", n)) for n in range(10)]
        await wait_for(lambda: len(began) == 10, timeout=30)
        await asyncio.to_thread(broker.stop, kill=kill)
        for call in pending:
            with pytest.raises(ConnectionLostError):
                await call
        later = asyncio.create_task(client.call("ping"))  # waits in the buffer
        await wait_for(lambda: client.health().buffered == 1)
        await asyncio.to_thread(broker.start)
        back = time.monotonic()
        assert await client.call("ping") == "pong"
        assert await later == "pong"
        assert time.monotonic() - back < 5
        assert client.health().status == server.health().status == "healthy"
    await server.stop(force=True)
