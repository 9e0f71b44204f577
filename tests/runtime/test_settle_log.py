"""Settlements that wait for a broker: logged together, not one by one."""

from __future__ import annotations

import pytest
from tests.support.faulty import FaultyTransport

from matador.errors import NotConnectedError
from matador.model.message import Complete, Message
from matador.model.topology import Topology
from matador.runtime.activity import Activity
from matador.runtime.settle import Outcome, Settler

QUEUE = "shop.events"


async def test_many_that_cannot_be_settled_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    transport = FaultyTransport()
    await transport.connect()
    await transport.apply_topology(Topology("shop", queues=["events"]))
    await transport.send([Message(str(number), QUEUE, b"{}") for number in range(100)])
    subscription = await transport.subscribe(QUEUE, prefetch=100)
    deliveries = await subscription.receive(100)
    transport.settle_errors.extend([NotConnectedError("frozen"), NotConnectedError("frozen")])
    settler = Settler(transport, Activity())
    for delivery in deliveries:
        settler.submit(Outcome(delivery.receipt, Complete(delivery.receipt)))
    await settler.drain()
    assert len(transport.settled) == 100
    line = f"could not settle 100 messages of {QUEUE}, trying again: frozen"
    assert caplog.messages == [line, line]
    await subscription.close()
    await transport.disconnect()
