"""The broker is killed with messages in flight: nothing is lost, and nobody is wedged."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.support.kafka import OwnKafka

from matador.errors import LeaseLostError, MatadorError, NotConnectedError
from matador.model.message import Complete, Delivery, Message, Retry, Settlement
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]

_COUNT = 300


async def test_a_broker_that_dies_with_messages_in_flight(tmp_path: Path) -> None:
    server = OwnKafka(tmp_path)
    server.start()
    transport = KafkaTransport(server.url, session=6, timeout=5)
    topology = Topology("restart", queues=["events"])
    queue = topology.full_name("events")
    handled: Counter[bytes] = Counter()
    working: list[asyncio.Task[None]] = []
    try:
        await transport.connect()
        await transport.apply_topology(topology)
        sent = [Message(str(n), queue, b"%d" % n, {"attempt": 1}) for n in range(_COUNT)]
        assert set(await transport.send(sent)) == {None}
        for _ in range(4):
            subscription = await transport.subscribe(queue, prefetch=4)
            work = _work(transport, subscription, queue, handled)
            working.append(asyncio.create_task(work))
        await wait_for(lambda: len(handled) > _COUNT // 10, timeout=60)
        await asyncio.to_thread(server.restart)
        await wait_for(lambda: len(handled) == _COUNT, timeout=90)

        async def is_empty() -> bool:
            try:
                return (await transport.depth(queue)).total == 0
            except MatadorError:
                return False

        await wait_for(is_empty, timeout=60)
    finally:
        await transport.disconnect()
        await asyncio.gather(*working)
        server.kill()


async def _work(
    transport: KafkaTransport, subscription: Subscription, queue: str, handled: Counter[bytes]
) -> None:
    """Like a worker: every tenth message is retried, and settlements are tried again."""
    while subscription.active:
        try:
            deliveries = await subscription.receive(2)
        except MatadorError:
            continue
        for delivery in deliveries:
            await _settle(transport, _decide(delivery, queue))
            if delivery.headers["attempt"] == 2 or int(delivery.body) % 10:
                handled[delivery.body] += 1


def _decide(delivery: Delivery, queue: str) -> Settlement:
    if delivery.headers["attempt"] == 1 and int(delivery.body) % 10 == 0:
        again = Message("again", queue, delivery.body, {"attempt": 2}, delay=0.2)
        return Retry(delivery.receipt, again)
    return Complete(delivery.receipt)


async def _settle(transport: KafkaTransport, settlement: Settlement) -> None:
    while transport.state.status != "disconnected":
        try:
            (outcome,) = await transport.settle([settlement])
        except NotConnectedError:
            continue
        if outcome is None or isinstance(outcome, LeaseLostError):
            return
