"""Several processes on one file, some of them killed: real processes, real signals."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier

import pytest
import pytest_asyncio
from tests.transports.sqlite.conftest import Make, Open

from matador.errors import LeaseLostError
from matador.model.message import Complete
from matador.testing import wait_for
from matador.transports.sqlite.database import open_for_writing

PRELUDE = """
import asyncio, json, sys
from matador.model.message import Complete, Message
from matador.transports.sqlite import SqliteTransport

def say(*values):
    print(json.dumps(values), flush=True)

async def main(transport):
{body}

async def run():
    transport = SqliteTransport(sys.argv[1], lease=float(sys.argv[2]))
    await transport.connect()
    say("ready")
    await main(transport)
    await transport.disconnect()

asyncio.run(run())
"""
CONSUME = """
    subscription = await transport.subscribe("t.q", prefetch=16)
    while deliveries := await subscription.receive(16):
        say(*[int(delivery.body) for delivery in deliveries])
        await transport.settle([Complete(delivery.receipt) for delivery in deliveries])
"""
HOLD = """
    subscription = await transport.subscribe("t.q", prefetch=1)
    (delivery,) = await subscription.receive(1)
    say("holding", delivery.receipt.delivery_count)
    await asyncio.Event().wait()
"""
FREEZE = """
    subscription = await transport.subscribe("t.q", prefetch=1)
    (delivery,) = await subscription.receive(1)
    say("holding")
    await asyncio.to_thread(sys.stdin.readline)
    (outcome,) = await transport.settle([Complete(delivery.receipt)])
    say(type(outcome).__name__)
"""
SEND = """
    async def send(start):
        for number in range(start, 10**9, 8):
            (outcome,) = await transport.send([Message(str(number), "t.q", b"x" * 2000)])
            assert outcome is None
            say(number)
    await asyncio.gather(*[send(start) for start in range(8)])
"""

Start = Callable[..., Awaitable[Process]]


async def hear(process: Process) -> list[object]:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return json.loads(await process.stdout.readline())


@pytest_asyncio.fixture
async def start(file: Path) -> AsyncIterator[Start]:
    """Starts a process with a transport on the test's file; it is killed after the test."""
    started: list[Process] = []

    async def start(body: str, lease: float = 30) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PRELUDE.format(body=body),
            str(file),
            str(lease),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        started.append(process)
        assert await hear(process) == ["ready"]
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_no_message_goes_to_two_processes(connect: Open, make: Make, start: Start) -> None:
    transport = await connect()
    consumers = [await start(CONSUME) for _ in range(3)]
    received: list[object] = []

    async def listen(process: Process) -> None:
        while True:
            received.extend(await hear(process))

    listening = [asyncio.ensure_future(listen(process)) for process in consumers]
    messages = [make() for _ in range(3000)]
    for first in range(0, 3000, 50):
        await transport.send(messages[first : first + 50])
    await wait_for(lambda: len(received) >= 3000, timeout=30)
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    assert sorted(map(str, received), key=int) == [message.id for message in messages]


async def test_what_a_killed_process_held_is_delivered_again(
    connect: Open, make: Make, start: Start
) -> None:
    transport = await connect(lease=1)
    await transport.send([make()])
    holder = await start(HOLD, lease=1)
    assert await hear(holder) == ["holding", 1]
    holder.kill()
    subscription = await transport.subscribe("t.q", prefetch=1)
    async with asyncio.timeout(10):
        (delivery,) = await subscription.receive(1)
    assert delivery.receipt.redelivered
    assert delivery.receipt.delivery_count == 2
    assert await transport.settle([Complete(delivery.receipt)]) == [None]


async def test_a_frozen_process_is_fenced_off(connect: Open, make: Make, start: Start) -> None:
    transport = await connect(lease=1)
    await transport.send([make()])
    frozen = await start(FREEZE, lease=1)
    assert await hear(frozen) == ["holding"]
    frozen.send_signal(signal.SIGSTOP)
    subscription = await transport.subscribe("t.q", prefetch=1)
    async with asyncio.timeout(10):
        (delivery,) = await subscription.receive(1)
    frozen.send_signal(signal.SIGCONT)
    assert frozen.stdin is not None
    frozen.stdin.write(b"go\n")
    assert await hear(frozen) == [LeaseLostError.__name__]
    assert await transport.settle([Complete(delivery.receipt)]) == [None]


@pytest.mark.parametrize("seed", range(3))
async def test_what_a_killed_sender_reported_is_there(
    connect: Open, start: Start, seed: int
) -> None:
    transport = await connect()
    sender = await start(SEND)
    reported: list[str] = []

    async def listen() -> None:
        assert sender.stdout is not None
        async for line in sender.stdout:
            if line.endswith(b"]\n"):
                reported.extend(map(str, json.loads(line)))

    listening = asyncio.ensure_future(listen())
    enough = Random(seed).randrange(50, 1500)
    await wait_for(lambda: len(reported) >= enough)
    sender.kill()
    await listening
    stored = [message.id async for message in transport.browse("t.q")]
    assert set(reported) <= set(stored)
    assert len(stored) == len(set(stored))


async def test_another_process_is_heard_within_moments(
    connect: Open, make: Make, start: Start
) -> None:
    transport = await connect()
    consumer = await start(CONSUME)
    times: list[float] = []
    for _ in range(30):
        message = make()
        sent = time.monotonic()
        await transport.send([message])
        assert await hear(consumer) == [int(message.id)]
        times.append(time.monotonic() - sent)
    assert sorted(times)[len(times) // 4] < 0.05  # most are late on a busy machine


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    opened: list[int] = []

    def open_all(barrier: Barrier) -> None:
        for number in range(20):
            barrier.wait(30)
            connection = open_for_writing(
                tmp_path / f"{number}.db", synchronous="NORMAL", busy_timeout=30
            )
            connection.close()
            opened.append(number)

    together = Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(open_all, together) for _ in range(6)]:
            done.result()
    assert len(opened) == 120
