"""A broker that is restarted in the middle of calls: a server of the tests' own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.servers import Server
from tests.rpc.conftest import Place
from tests.support.brokers import broker_url
from tests.support.own_time import OwnTime
from tests.support.redis import OwnServer

from matador.errors import QueueNotFoundError
from matador.rpc import ConnectionLostError, RpcClient, RpcServer
from matador.testing import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.xdist_group("rpc-own")]

DYING = """
import asyncio, os, signal, sys
from matador.rpc import RpcServer
server = RpcServer(sys.argv[1], queue=sys.argv[2])
@server.handler("work")
async def work() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
server.run()
"""


@pytest.fixture
def broker() -> Iterator[Server]:
    broker_url("rabbitmq")  # skips where there is none
    server = Server("rabbitmq")
    server.start()
    yield server
    server.discard()


async def test_redis_comes_back(tmp_path: Path) -> None:
    broker = OwnServer(tmp_path)
    broker.start()
    server = RpcServer(broker.url, queue="restarted")
    began: list[int] = []

    @server.handler("hang")
    async def hang(data: int) -> None:
        began.append(data)
        await asyncio.Event().wait()

    @server.handler("ping")
    async def ping() -> str:
        return "pong"

    try:
        await server.start()
        async with RpcClient(broker.url, queue="restarted", timeout=120) as client:
            pending = [asyncio.create_task(client.call("hang", n)) for n in range(10)]
            await wait_for(lambda: len(began) == 10, timeout=30)
            await asyncio.to_thread(broker.stop)
            for call in pending:
                with pytest.raises(ConnectionLostError):
                    await call
            await asyncio.to_thread(broker.start)
            async with OwnTime() as own:
                assert await client.call("ping") == "pong"
            assert own.seconds < 5
        await server.stop(force=True)
    finally:
        broker.stop()


@pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)
async def test_another_server_answers_for_one_that_was_killed(place: Place, tmp_path: Path) -> None:
    program = tmp_path / "dying.py"
    program.write_text(DYING)
    dying = await asyncio.create_subprocess_exec(sys.executable, program, place.url, place.queue)
    try:
        async with place.client() as client:

            async def called() -> asyncio.Task[str] | None:
                call = asyncio.create_task(client.call("work", timeout=120, result_type=str))
                done, _ = await asyncio.wait([call], timeout=0.2)
                if done and isinstance(call.exception(), QueueNotFoundError):
                    return None
                return call

            call = None
            ended = asyncio.create_task(dying.wait())
            async with asyncio.timeout(100):
                while call is None:
                    call = await called()
                    if call is not None:
                        await asyncio.wait([ended, call], return_when=asyncio.FIRST_COMPLETED)
                    if call is not None and call.done() and not ended.done():
                        assert isinstance(call.exception(), QueueNotFoundError)
                        call = None  # its queue was not there yet, and the answer came late
            assert await ended == -signal.SIGKILL
            other = place.server()

            @other.handler("work")
            async def work() -> str:
                return "done by another"

            async with other:
                assert await call == "done by another"
    finally:
        if dying.returncode is None:
            dying.kill()
            await dying.wait()


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
        async with OwnTime() as own:
            assert await client.call("ping") == "pong"
            assert await later == "pong"
        assert own.seconds < 5
        assert client.health().status == server.health().status == "healthy"
    await server.stop(force=True)
