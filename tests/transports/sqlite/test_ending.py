"""A program that ends without a shutdown ends: no thread of the file keeps it, nothing is lost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.transports.sqlite.conftest import Open

PRELUDE = """
import asyncio, sys, threading
from dataclasses import dataclass
from matador import Matador, Schema, SqliteCheckpointStore, Topology, event
from matador.model.message import Message
from matador.model.subscriber import Subscriber
from matador.transports.sqlite import SqliteTransport

FILE = sys.argv[1]
TOPOLOGY = Topology("t", queues=["q"])

async def connect():
    transport = SqliteTransport(FILE)
    await transport.connect()
    await transport.apply_topology(TOPOLOGY)
    (outcome,) = await transport.send([Message("1", "t.q", b"confirmed")])
    assert outcome is None
    return transport
"""
RAISES = """
async def main():
    transport = await connect()
    subscription = await transport.subscribe("t.q", prefetch=1)
    await transport.depth("t.q")
    raise RuntimeError("the end")

asyncio.run(main())
"""
WHILE_RECEIVING = """
async def main():
    transport = await connect()
    subscription = await transport.subscribe("t.q", prefetch=1)
    await subscription.receive(1)
    receiving = asyncio.create_task(subscription.receive(1))
    sending = [asyncio.create_task(transport.send([Message("2", "t.q", b"")])) for _ in range(99)]
    await asyncio.sleep(0)
    raise RuntimeError("the end")

asyncio.run(main())
"""
LOOP_LEFT_OPEN = """
loop = asyncio.new_event_loop()
transport = loop.run_until_complete(connect())
raise RuntimeError("the end")
"""
EXITS = """
async def main():
    transport = await connect()
    sys.exit("the end")

asyncio.run(main())
"""
APPLICATION = """
@event("order.placed", description="An order.")
@dataclass
class Placed:
    id: str

async def handle(envelope):
    await asyncio.sleep(0)

subscriber = Subscriber(name="handle", description="Handle it.", callback=handle, idempotent="yes")

async def main():
    await (await connect()).disconnect()
    app = Matador(
        SqliteTransport(FILE), schema=Schema({Placed: [subscriber]}), topology=TOPOLOGY,
        consume_from=["q"], checkpoints=SqliteCheckpointStore(FILE + ".steps"),
    )
    await app.start()
    raise RuntimeError("the end")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "program",
    [RAISES, WHILE_RECEIVING, LOOP_LEFT_OPEN, EXITS, APPLICATION],
    ids=["raises", "while receiving", "loop left open", "exits", "application"],
)
async def test_the_process_ends_and_what_was_confirmed_is_there(
    file: Path, connect: Open, program: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PRELUDE + program,
        str(file),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(30):
            _, said = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        pytest.fail("the process did not end")
    assert process.returncode == 1, said
    assert b"the end" in said
    transport = await connect()
    found = [one.body async for one in transport.browse("t.q")]
    if program is APPLICATION:  # whoever is not there to be asked: it was handled, or is left
        found += [one.body async for one in transport.browse("t.q.undeliverable")]
    assert found[0] == b"confirmed"
