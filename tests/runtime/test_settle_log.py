"""Settlements that wait for a broker: logged together, not one by one."""

from __future__ import annotations

import asyncio
from typing import Any

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


async def test_pauses_grow_and_begin_anew_once_something_was_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, pauses = FaultyTransport(), list[float]()
    await transport.connect()
    await transport.apply_topology(Topology("shop", queues=["events"]))
    await transport.send([Message(str(number), QUEUE, b"{}") for number in range(2)])
    subscription = await transport.subscribe(QUEUE, prefetch=2)
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def noted(delay: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        pauses.append(delay)
        return later(0, *arguments, **options)

    monkeypatch.setattr(loop, "call_later", noted)
    settler = Settler(transport, Activity())
    for delivery in await subscription.receive(2):
        transport.settle_errors.extend(NotConnectedError("away") for _ in range(4))
        settler.submit(Outcome(delivery.receipt, Complete(delivery.receipt)))
        await settler.drain()
    monkeypatch.undo()
    assert pauses == [0.05, 0.1, 0.2, 0.4] * 2
    assert len(transport.settled) == 2
    await subscription.close()
    await transport.disconnect()


async def test_what_is_abandoned_during_a_pause_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, timers, paused = FaultyTransport(), list[asyncio.TimerHandle](), asyncio.Event()
    await transport.connect()
    await transport.apply_topology(Topology("shop", queues=["events"]))
    await transport.send([Message("1", QUEUE, b"{}")])
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    (delivery,) = await subscription.receive(1)
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def noted(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(later(*arguments, **options))
        paused.set()
        return timers[-1]

    transport.settle_errors.append(NotConnectedError("away"))
    activity = Activity()
    activity.processing = 1
    settler = Settler(transport, activity)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_later", noted)
        settler.submit(Outcome(delivery.receipt, Complete(delivery.receipt)))
        await paused.wait()
    draining = asyncio.create_task(settler.drain())
    await asyncio.sleep(0)
    assert (settler.backlog, settler.abandon(), settler.backlog) == (1, 1, 0)
    await draining
    assert timers[0].cancelled()
    assert activity.idle
    settler.submit(Outcome(delivery.receipt, Complete(delivery.receipt)))
    assert (settler.backlog, settler.abandon(), transport.settled) == (0, 0, [])
    await subscription.close()
    await transport.disconnect()
