"""With ``transactional``, a successor and the commit of its original are there, or neither is."""

from __future__ import annotations

import pytest
from tests.transports.kafka.conftest import Open

from matador.errors import MessageTooLargeError
from matador.model.message import Complete, DeadLetter, Message, Receipt, Retry
from matador.model.topology import Topology
from matador.testing import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]


async def test_retries_and_dead_letters_are_stored_with_the_commit(
    open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(transactional=True, partitions=1)
    sent = [Message(str(number), queue, b"%d" % number, ordering_key="k") for number in range(2)]
    sent += [Message("2", queue, b"2"), Message("3", queue, b"3")]
    assert await transport.send(sent) == [None] * 4
    subscription = await transport.subscribe(queue, prefetch=4)
    taken: dict[bytes, Receipt] = {}
    while len(taken) < 3:
        taken |= {one.body: one.receipt for one in await subscription.receive(3)}
    again = Message("0", queue, b"0 again", ordering_key="k")
    large = Message("3", queue, b"x" * 1_100_000)
    outcomes = await transport.settle(
        [
            Retry(taken[b"0"], again),
            DeadLetter(taken[b"2"], "undeliverable", "why"),
            Retry(taken[b"3"], large),
        ]
    )
    assert [type(one) for one in outcomes] == [type(None), type(None), MessageTooLargeError]
    assert await transport.settle([Complete(taken[b"3"])]) == [None]
    bodies: list[bytes] = []
    while len(bodies) < 2:
        for one in await subscription.receive(2):
            bodies.append(one.body)
            assert await transport.settle([Complete(one.receipt)]) == [None]
    assert bodies == [b"0 again", b"1"]

    async def dead() -> list[tuple[bytes, str | None]]:
        letters = transport.browse(f"{queue}.undeliverable")
        return [(one.body, one.reason) async for one in letters]

    # Readers see what a transaction has stored a little after it was committed.
    await wait_for(dead)
    assert await dead() == [(b"2", "why")]
