"""Servers that are killed in the middle of a call."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from tests.rpc.conftest import Place

from matador.errors import QueueNotFoundError

pytestmark = [pytest.mark.broker, pytest.mark.chaos]

DYING = """
import asyncio, os, signal, sys
from matador.rpc import RpcServer
server = RpcServer(sys.argv[1], queue=sys.argv[2])
@server.handler("work")
async def work() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
server.run()
"""


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
