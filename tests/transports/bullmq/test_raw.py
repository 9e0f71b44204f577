"""Jobs that are odd in every part, written past the transport: each can be failed, and purged.

What a whole application makes of them is in the compliance suite, and in ``script/fuzz``.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.support.raw_bullmq import RawBullMQ
from tests.support.redis import OwnServer

from matador.model.message import DeadLetter
from matador.testing.compliance.bench import collect
from matador.transports.bullmq import BullMQTransport

if TYPE_CHECKING:
    from tests.transports.bullmq.conftest import Open

pytestmark = pytest.mark.broker

QUEUE = "shop.events"
COUNT = 300


async def test_every_odd_job_can_be_failed_and_purged(
    open_bench: Open, server: OwnServer, prefix: str
) -> None:
    bench = await open_bench(lease=30)
    raw = RawBullMQ(server.url, prefix)
    for number in range(COUNT):
        await raw.write(QUEUE, Random(f"2/{number}"))
    await raw.close()
    subscription = await bench.subscribe()
    done = 0
    reason = "no\udcff\ud800 good" + "!" * 20_000
    while done < COUNT:
        found = await subscription.receive(100)
        letters = [
            DeadLetter(one.receipt, "undeliverable", reason, bare=number % 2 == 0)
            for number, one in enumerate(found)
        ]
        await bench.settle(*letters)
        done += len(found)
    transport = bench.transport
    assert isinstance(transport, BullMQTransport)
    assert len(await collect(transport.browse(bench.dead_letters()))) == COUNT
    assert await transport.purge(bench.dead_letters()) == COUNT
    assert await bench.count(bench.dead_letters()) == 0
    assert (await transport.depth(QUEUE)).total == 0
