"""Counting many queues takes one look at the table of queues, and one query."""

from __future__ import annotations

import pytest
from tests.transports.sqlite.conftest import Make, Open

from matador import Matador, Schema
from matador.events.queue_counts import count
from matador.model.message import DeadLetter, Retry
from matador.model.topology import DeadLetterQueue, DeadLetters, Topology
from matador.runtime.few_at_once import depths_of
from matador.testing import ManualClock
from matador.transports.memory import MemoryTransport
from matador.transports.sqlite import SqliteTransport


async def statements(transport: SqliteTransport, queues: int) -> list[str]:
    """What SQLite is asked to count so many queues."""
    asked: list[str] = []
    reading = transport._connected._reading
    reading.set_trace_callback(asked.append)
    try:
        depths = await depths_of(transport, [f"t.q{n}" for n in range(queues)])
    finally:
        reading.set_trace_callback(None)
    assert len(depths) == queues
    assert None not in depths
    return asked


async def test_many_queues_are_counted_with_the_statements_of_one(connect: Open) -> None:
    transport = await connect(Topology("t", queues=[f"q{n}" for n in range(200)]))
    assert len(await statements(transport, 200)) == len(await statements(transport, 1)) <= 3


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
async def test_an_application_is_counted_with_the_same_statements_whatever_its_queues(
    connect: Open, make: Make, filled: bool
) -> None:
    letters = DeadLetters(undeliverable=DeadLetterQueue(ttl=60))
    asked: list[int] = []
    for queues in (1, 60):
        names = [f"n{queues}q{number}" for number in range(queues)]
        topology = Topology("t", queues=names, dead_letters=letters)
        transport = await connect(topology)
        for name in names if filled else ():
            await transport.send([make(queue=f"t.{name}"), make(queue=f"t.{name}")])
            subscription = await transport.subscribe(f"t.{name}", prefetch=1)
            (delivery,) = await subscription.receive(1)
            await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "no")])
            await subscription.close()
        await transport.pause_queue(f"t.{names[0]}")
        rows: list[str] = []
        transport._connected._reading.set_trace_callback(rows.append)
        counts = await count(transport, topology)
        asked.append(len(rows))
        assert [one.paused for one in counts] == [True] + [False] * (queues - 1)
        assert [one.dead_letters["undeliverable"] for one in counts] == [int(filled)] * queues
        assert [one.depth and one.depth.total for one in counts] == [int(filled)] * queues
    assert asked[0] == asked[1] <= 6


async def test_what_is_asked_of_one_queue_does_not_depend_on_the_others(connect: Open) -> None:
    transport = await connect(Topology("t", queues=[f"q{n}" for n in range(200)]))
    rows: list[str] = []
    transport._connected._reading.set_trace_callback(rows.append)
    await transport.depth("t.q7")
    assert all("name = 't.q7'" in one for one in rows if "FROM queues" in one)


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_each_queue_has_its_own_numbers(kind: str, connect: Open, make: Make) -> None:
    clock = ManualClock()
    topology = Topology(
        "t",
        queues=["a", "b", "c"],
        dead_letters=DeadLetters(undeliverable=DeadLetterQueue(ttl=60)),
    )
    if kind == "sqlite":
        transport: SqliteTransport | MemoryTransport = await connect(topology, clock=clock)
    else:
        transport = MemoryTransport(clock=clock)
        await transport.connect()
        await transport.apply_topology(topology)
    await transport.send([make(queue="t.a") for _ in range(5)])
    await transport.send([make(queue="t.b"), make(queue="t.b", delay=60)])
    subscription = await transport.subscribe("t.a", prefetch=4)
    first, second, third, _ = await subscription.receive(4)
    old = DeadLetter(first.receipt, "undeliverable", "old")
    await transport.settle([old, Retry(second.receipt, make(queue="t.a", delay=9))])
    clock.advance(61)
    await transport.settle([DeadLetter(third.receipt, "undeliverable", "young")])
    app = Matador(transport, schema=Schema({}), topology=topology)
    counts = {one.queue: one for one in await count(app.transport, app.topology)}
    depths = [counts[name].depth for name in ("t.a", "t.b", "t.c")]
    assert [(d.ready, d.delayed, d.in_flight) for d in depths if d is not None] in (
        [(2, 0, 1), (2, 0, 0), (0, 0, 0)],
        [(3, 0, 0), (2, 0, 0), (0, 0, 0)],  # SQLite: its lease has passed
    )
    assert counts["t.a"].dead_letters == {"unhandled": 0, "undeliverable": 1}
    assert await depths_of(transport, ["t.nobody", "t.c"]) == [None, counts["t.c"].depth]
