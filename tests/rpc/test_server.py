"""A server by itself: its commands, its arguments, what is poisoned."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rpc.conftest import Place

from matador import WorkQueue
from matador.errors import (
    ConfigurationError,
    LifecycleError,
    QueueNotFoundError,
    RpcTimeoutError,
)
from matador.rpc import RemoteError, RpcClient, RpcContext, RpcServer
from matador.testing import wait_for


async def ping() -> str:
    return "pong"


def test_commands_are_registered_overwritten_and_unregistered() -> None:
    server = RpcServer("memory://", queue="q")
    server.register("ping", ping)
    server.handler("other")(ping)
    assert server.commands == ("OTHER", "PING")
    server.register("PING", lambda: "again")
    assert server.commands == ("OTHER", "PING")
    assert server.unregister("other")
    assert not server.unregister("other")
    assert repr(server) == "RpcServer('q', PING)"


@pytest.mark.parametrize("command", ["", " ", None, 7])
def test_a_command_must_be_a_text(command: Any) -> None:
    with pytest.raises(ConfigurationError, match="command"):
        RpcServer("memory://", queue="q").register(command, ping)


def test_a_handler_must_be_a_function_that_can_be_called() -> None:
    server = RpcServer("memory://", queue="q")
    wrong: Any = "not a function"
    with pytest.raises(ConfigurationError, match="must be a function"):
        server.register("x", wrong)

    async def three(a: int, b: int, c: int) -> None: ...

    with pytest.raises(ConfigurationError, match="nothing fills the parameter 'b'"):
        server.register("x", three)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": ""},
        {"queue": "q", "concurrency": 0},
        {"queue": "q", "timeout": 0},
        {"queue": "q", "slow_call": -1},
        {"queue": WorkQueue("q", concurrency=3), "concurrency": 4},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RpcServer("memory://", **wrong)


@pytest.mark.parametrize(
    ("queue", "given", "concurrency"),
    [
        ("q", None, 100),
        ("q", 7, 7),
        (WorkQueue("q"), 7, 7),
        (WorkQueue("q", concurrency=3), None, 3),
        (WorkQueue("q", concurrency=3), 3, 3),
    ],
)
def test_how_many_calls_are_handled_at_once(
    queue: str | WorkQueue, given: int | None, concurrency: int
) -> None:
    server = RpcServer("memory://", queue=queue, concurrency=given)
    (work,) = server.topology.queues
    assert (work.name, work.concurrency, server._concurrency) == ("q", concurrency, concurrency)


async def test_a_server_without_handlers_does_not_start() -> None:
    with pytest.raises(LifecycleError, match="no handlers"):
        await RpcServer("memory://", queue="q").start()


@pytest.mark.broker
@pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)
async def test_a_queue_that_is_not_created(place: Place) -> None:
    server = place.server(create=False)
    server.register("ping", ping)
    with pytest.raises(QueueNotFoundError, match=place.queue):
        await server.start()
    assert not server.is_running


@pytest.mark.broker
@pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)
async def test_servers_that_handle_one_call_at_a_time_share_the_calls(place: Place) -> None:
    handled = [0, 0]
    servers = [place.server(concurrency=1) for _ in handled]

    async def work(number: int) -> None:
        handled[number] += 1
        await asyncio.sleep(0.03)  # a slow callback

    for number, server in enumerate(servers):
        server.register("work", partial(work, number))
    async with servers[0], servers[1], place.client() as client:
        await asyncio.gather(*(client.call("work", timeout=30) for _ in range(40)))
    assert sum(handled) == 40
    assert min(handled) >= 12


async def test_commands_change_while_it_runs() -> None:
    server = RpcServer("memory://", queue="changing")
    server.register("ping", ping)
    async with server, RpcClient("memory://", queue="changing") as client:
        server.register("more", lambda: "more")
        assert await client.call("more") == "more"
        server.unregister("more")
        with pytest.raises(RemoteError, match="No handler"):
            await client.call("more")


PROGRAM = """
import sys
from matador.rpc import RpcServer
server = RpcServer(sys.argv[1], queue=sys.argv[2])
@server.handler("ping")
async def ping() -> str:
    return "pong"
server.run()
"""


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_run_ends_with_a_signal(place: Place, tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(PROGRAM)
    process = await asyncio.create_subprocess_exec(sys.executable, program, place.url, place.queue)
    try:
        async with place.client() as client:

            async def answers() -> bool:
                try:
                    return await client.call("ping", timeout=5) == "pong"
                except (QueueNotFoundError, RpcTimeoutError):
                    return False

            await wait_for(answers, timeout=60)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_second_process_takes_over(place: Place) -> None:
    """Several servers share a queue, and each request runs once."""
    ran: list[int] = []
    servers = [place.server(concurrency=5) for _ in range(3)]
    for server in servers:

        @server.handler("work")
        async def work(data: int, ctx: RpcContext) -> int:
            ran.append(data)
            return data

        await server.start()
    async with place.client() as client:
        results = await asyncio.gather(*(client.call("work", n, timeout=60) for n in range(200)))
    assert results == list(range(200))
    assert sorted(ran) == results
    for server in servers:
        await server.shutdown()
