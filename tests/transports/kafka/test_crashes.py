"""What is left of a worker that was killed: counts, progress, and nothing twice."""

from __future__ import annotations

import asyncio
import sys

import pytest
from tests.transports.kafka.conftest import Open

from matador.errors import LeaseLostError
from matador.model.message import Complete, Message, Retry
from matador.model.topology import Topology
from matador.testing import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]

_KILLED = """
import asyncio, os, sys
from matador.transports.kafka import KafkaTransport
from matador.model.message import Complete

async def main(url, queue):
    transport = KafkaTransport(url, session=6)
    await transport.connect()
    subscription = await transport.subscribe(queue, prefetch=10)
    taken = []
    while len(taken) < 4:
        taken += await subscription.receive(4 - len(taken))
    done = [Complete(one.receipt) for one in taken if one.body != b"1"]
    await transport.settle(done)  # all but one, which kills the worker
    os.kill(os.getpid(), 9)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_killed_worker_repeats_only_what_was_in_its_hands(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    assert await transport.send([Message(str(n), queue, b"%d" % n) for n in range(4)]) == [None] * 4
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, url, queue)
    assert await worker.wait() == -9
    depth = await transport.depth(queue)
    assert (depth.ready, depth.in_flight) == (0, 1)
    subscription = await transport.subscribe(queue, prefetch=10)
    async with asyncio.timeout(40):
        (delivery,) = await subscription.receive(10)
    assert delivery.body == b"1"
    assert delivery.receipt.delivery_count == 2
    assert delivery.receipt.redelivered
    assert await transport.settle([Complete(delivery.receipt)]) == [None]
    assert (await transport.depth(queue)).total == 0


async def test_deliveries_are_counted_across_workers(
    open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    await (await open_transport()).send([Message("1", queue, b"poison")])
    for count in range(1, 5):
        worker = await open_transport()
        subscription = await worker.subscribe(queue, prefetch=1)
        (delivery,) = await subscription.receive(1)
        assert delivery.receipt.delivery_count == count
        await worker.disconnect()  # without a word about it
        with pytest.raises(Exception, match="not connected"):
            await worker.settle([Complete(delivery.receipt)])


_KILLED_AT_ONCE = """
import asyncio, os, sys
from matador.transports.kafka import KafkaTransport
from matador.model.message import Complete, Message

async def main(url, queue, life):
    transport = KafkaTransport(url, session=6)
    await transport.connect()
    subscription = await transport.subscribe(queue, prefetch=10)
    if life == "0":
        await transport.send([Message("0", queue, b"harmless")])
        (first,) = await subscription.receive(1)
        await transport.settle([Complete(first.receipt)])
        await transport.send([Message("1", queue, b"poison")])
    subscription.read_ahead(0)  # as for handlers that may run again
    (poison,) = await subscription.receive(1)
    os.write(1, b"%d" % poison.receipt.delivery_count)
    os.kill(os.getpid(), 9)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_count_of_a_message_that_kills_at_once_lags_by_one_at_most(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    counts: list[int] = []
    for life in range(3):
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _KILLED_AT_ONCE, url, queue, str(life)),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await worker.communicate()
        assert worker.returncode == -9
        counts.append(int(said))
    subscription = await transport.subscribe(queue, prefetch=1)
    async with asyncio.timeout(40):
        (delivery,) = await subscription.receive(1)
    counts.append(delivery.receipt.delivery_count)
    assert counts[0] == 1
    assert counts[1] in (1, 2)  # the first count may be lost with its worker
    assert counts[2:] == [counts[1] + 1, counts[1] + 2]
    assert delivery.receipt.redelivered


async def test_a_handler_longer_than_the_poll_interval_keeps_its_partition(
    open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    worker = await open_transport(config={"max.poll.interval.ms": 6000})
    await worker.send([Message("1", queue, b"slow")])
    subscription = await worker.subscribe(queue, prefetch=1)
    (delivery,) = await subscription.receive(1)
    waiting = asyncio.create_task(subscription.receive(1))
    again, _ = await asyncio.wait([waiting], timeout=9)
    assert not again
    assert await worker.settle([Complete(delivery.receipt)]) == [None]
    await subscription.close()
    assert await waiting == ()


async def test_what_a_lost_partition_held_is_fenced(
    open_transport: Open, topology: Topology
) -> None:
    """The other worker joins while a handler runs for longer than a revocation waits."""
    queue = topology.full_name("events")
    first = await open_transport(partitions=1, revoke_wait=0.2)
    await first.send([Message("1", queue, b"held")])
    subscription = await first.subscribe(queue, prefetch=1)
    (held,) = await subscription.receive(1)
    second = await open_transport(partitions=1)
    receiver = await second.subscribe(queue, prefetch=1)
    closing = asyncio.create_task(first.disconnect())
    (again,) = await receiver.receive(1)
    await closing
    assert again.receipt.delivery_count == 2
    await first.connect()
    late = Retry(held.receipt, Message("1", queue, b"late"))
    outcomes = await first.settle([late, Complete(held.receipt)])
    assert [type(one) for one in outcomes] == [LeaseLostError] * 2
    assert await second.settle([Complete(again.receipt)]) == [None]

    async def is_empty() -> bool:
        return (await second.depth(queue)).total == 0

    await wait_for(is_empty)


_ONE_AT_A_TIME = """
import asyncio, os, sys
from dataclasses import dataclass
from matador import Envelope, Matador, Schema, StandardRetryPolicy, Topology, WorkQueue, event
from matador import subscriber
from matador.runtime import consumer

consumer._AHEAD_SECONDS = 1.0  # a slow machine counts ahead, too

@event("noted", description="Something to note.")
@dataclass(frozen=True)
class Noted:
    number: int

@subscriber(description="Note it.", idempotent="yes")
async def note(envelope: Envelope[Noted]) -> None:
    if envelope.data.number == 200:
        os.kill(os.getpid(), 9)
    print(envelope.data.number, flush=True)

async def main(url, namespace, most):
    app = Matador(
        url,
        schema=Schema({Noted: [note]}),
        topology=Topology(namespace, queues=[WorkQueue("events", concurrency=1)]),
        consume_from=["events"] if most else [],
        retry=StandardRetryPolicy(max_deliveries=int(most or 5)),
    )
    async with app:
        if most:
            await asyncio.Event().wait()
        await app.send_many(map(Noted, range(400)))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("most", [2, 3])
async def test_neighbors_of_a_poisoned_message_that_were_counted_ahead_are_handled(
    url: str, open_transport: Open, topology: Topology, most: int
) -> None:
    """With a concurrency of 1, a worker that is killed has run one message, and counted others."""
    transport = await open_transport(partitions=1)
    letters = topology.full_name("events") + ".undeliverable"

    async def run(most: str) -> asyncio.subprocess.Process:
        program = (_ONE_AT_A_TIME, f"{url}/?session=6", topology.namespace, most)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", *program, stdout=asyncio.subprocess.PIPE
        )

    assert await (await run("")).wait() == 0
    handled: set[int] = set()
    crashes, neighbors = 0, set(range(400)) - {200}
    while crashes < most:
        worker = await run(str(most))
        assert worker.stdout is not None
        async with asyncio.timeout(120):
            while handled != neighbors:
                line = await worker.stdout.readline()
                if not line:
                    break
                handled.add(int(line))
            else:
                worker.kill()
        await worker.wait()
        if handled == neighbors:
            break
        crashes += 1
    assert crashes == most - 1
    assert handled == neighbors
    assert (await transport.depth(letters)).ready == 1


_NOT_IDEMPOTENT = """
import asyncio, os, sys
from dataclasses import dataclass
from matador import Envelope, Matador, Schema, Topology, WorkQueue, event, subscriber

@event("charged", description="Something to charge.")
@dataclass(frozen=True)
class Charged:
    number: int

warm = asyncio.Event()

@subscriber(description="Charge it.", idempotent="no")
async def charge(envelope: Envelope[Charged]) -> None:
    os.write(1, b"%d" % envelope.data.number)
    if envelope.data.number == 1:
        os.kill(os.getpid(), 9)
    warm.set()

async def main(url, namespace, first):
    app = Matador(
        url,
        schema=Schema({Charged: [charge]}),
        topology=Topology(namespace, queues=["events"]),
        consume_from=["events"],
    )
    async with app:
        if first:
            await app.send(Charged(0))
            await warm.wait()
            await app.send(Charged(1))
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_handler_that_is_not_idempotent_never_runs_twice_however_soon_it_kills(
    url: str, open_transport: Open, topology: Topology
) -> None:
    """Its delivery is counted before it starts, also if the message was sent a moment ago."""
    transport = await open_transport(partitions=1)
    letters = topology.full_name("events") + ".undeliverable"

    async def run(first: str) -> asyncio.subprocess.Process:
        program = (_NOT_IDEMPOTENT, f"{url}/?session=6", topology.namespace, first)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", *program, stdout=asyncio.subprocess.PIPE
        )

    said, _ = await (await run("first")).communicate()
    assert said == b"01"
    second = await run("")

    async def is_dead_letter() -> bool:
        return (await transport.depth(letters)).ready == 1

    try:
        await wait_for(is_dead_letter, timeout=60)
    finally:
        second.kill()
    assert await second.communicate() == (b"", None)
