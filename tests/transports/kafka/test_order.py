"""Messages with one key are handled in order: with many handlers, retries, and rebalances."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random

import pytest
from tests.transports.kafka.conftest import Open

from matador.errors import LeaseLostError
from matador.model.message import Complete, Delivery, Message, Retry, Settlement
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]

_KEYS = 40
_PER_KEY = 50
_WORKERS = 8


class _Run:
    """Eight handlers a transport; a twentieth of the messages fails the first time."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.random = Random(7)
        self.finished: defaultdict[str, list[int]] = defaultdict(list)
        self.running: set[str] = set()
        self.overlaps: list[str] = []
        self.lost = 0

    @property
    def count(self) -> int:
        return sum(len(set(numbers)) for numbers in self.finished.values())

    async def work(self, transport: KafkaTransport, subscription: Subscription) -> None:
        while deliveries := await subscription.receive(1):
            for delivery in deliveries:
                await self._handle(transport, delivery)

    async def _handle(self, transport: KafkaTransport, delivery: Delivery) -> None:
        key, _, number = delivery.body.decode().partition(":")
        if key in self.running:
            self.overlaps.append(f"{key}:{number}")
        self.running.add(key)
        await asyncio.sleep(0)
        fails = delivery.headers.get("attempt") == 1 and self.random.random() < 0.05
        self.running.discard(key)
        settlement: Settlement = Complete(delivery.receipt)
        if fails:
            delay = self.random.choice([0.0, 0.05])
            body, headers = delivery.body, {"attempt": 2}
            again = Message("m", self.queue, body, headers, delay, ordering_key=key)
            settlement = Retry(delivery.receipt, again)
        (outcome,) = await transport.settle([settlement])
        if isinstance(outcome, LeaseLostError):
            self.lost += 1
        else:
            assert outcome is None
            if not fails:
                self.finished[key].append(int(number))


async def test_order_holds_with_retries_and_rebalances(
    open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    run = _Run(queue)
    first = await open_transport()
    workers: list[asyncio.Task[None]] = []

    async def start(transport: KafkaTransport) -> None:
        for _ in range(_WORKERS):
            subscription = await transport.subscribe(queue, prefetch=4)
            workers.append(asyncio.create_task(run.work(transport, subscription)))

    messages = [
        Message("m", queue, f"{key}:{number}".encode(), {"attempt": 1}, ordering_key=str(key))
        for number in range(_PER_KEY)
        for key in range(_KEYS)
    ]
    assert set(await first.send(messages)) == {None}
    await start(first)
    await wait_for(lambda: run.count > _KEYS * _PER_KEY // 10, timeout=60)
    second = await open_transport()
    await start(second)  # a rebalance in the middle
    await wait_for(lambda: run.count > _KEYS * _PER_KEY // 2, timeout=60)
    await first.disconnect()  # and another, by force: what it holds is handled again
    await wait_for(lambda: run.count == _KEYS * _PER_KEY, timeout=60)
    await second.disconnect()
    await asyncio.gather(*workers, return_exceptions=True)
    assert run.overlaps == []
    for numbers in run.finished.values():
        # Whoever was cut off may have done what is done again, but nobody overtakes.
        assert list(dict.fromkeys(numbers)) == list(range(_PER_KEY))


async def test_a_retry_keeps_its_place_when_its_worker_is_gone(
    open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    first = await open_transport()
    sent = [Message(str(number), queue, b"%d" % number, ordering_key="k") for number in range(3)]
    assert await first.send(sent) == [None] * 3
    subscription = await first.subscribe(queue, prefetch=3)
    (delivery,) = await subscription.receive(3)
    retry = Message("0", queue, b"0 again", delay=0.3, ordering_key="k")
    assert await first.settle([Retry(delivery.receipt, retry)]) == [None]
    await first.disconnect()
    second = await open_transport()
    receiver = await second.subscribe(queue, prefetch=3)
    bodies: list[bytes] = []
    while len(bodies) < 3:
        for one in await receiver.receive(3):
            bodies.append(one.body)
            assert one.receipt.delivery_count == 1
            assert await second.settle([Complete(one.receipt)]) == [None]
    assert bodies == [b"0 again", b"1", b"2"]
    assert (await second.depth(queue)).total == 0
