"""Subscribers that are killed in the middle of a message."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process

import pytest
from tests.support.pubsub import Place

from matador.model.message import REASON_HEADER

PROGRAM = """
import asyncio, os, signal, sys
from matador.pubsub import Subscriber
url, exchange, queue = sys.argv[1:]
sub = Subscriber(url, exchange=exchange, queue=queue, concurrency=4)

@sub.on("#")
async def handle(message: str):
    if message == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    print(message, flush=True)

sub.run()
"""


async def start(place: Place) -> Process:
    url = place.url + ("?lease=1" if place.broker == "sqlite" else "")
    url += "&lease=1" if place.broker == "redis" else ""
    arguments = (url, place.exchange, place.queue("orders"))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, stdout=PIPE
    )


async def test_a_message_that_kills_its_process(place: Place) -> None:
    """It becomes a dead letter, and takes no other message along."""
    if place.broker == "memory":
        pytest.skip("its queues die with the process")
    sub = place.subscriber("orders")

    @sub.on("#")
    async def handle(message: str) -> None: ...

    async with sub:
        pass
    good = [f"good-{n}" for n in range(20)]
    async with place.publisher() as publisher:
        await publisher.publish_many([("a", one) for one in (*good[:2], "poison", *good[2:])])
    handled: set[str] = set()
    for _ in range(12):
        process = await start(place)
        if await handles(process, handled, {*good}):
            await end(process)
            break
        await process.wait()  # it was killed
    assert handled == {*good}
    letters = asyncio.create_task(place.letters("orders"))
    for _ in range(12):  # until it has killed enough processes, if it has not yet
        process = await start(place)
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({letters, ended}, return_when=asyncio.FIRST_COMPLETED)
        await end(process)
        await ended
        if letters.done():
            break
    (letter,) = await letters
    assert letter.body == b'"poison"'
    assert "possibly poisoned" in str(letter.headers[REASON_HEADER])


async def handles(process: Process, handled: set[str], all_: set[str]) -> bool:
    """Does the process live until everything is handled?"""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while handled != all_:
            line = await process.stdout.readline()
            if not line:
                return False
            handled.add(line.decode().strip())
    return True


async def end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
