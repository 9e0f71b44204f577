"""Delays: the arithmetic of the levels, and messages that pass through several of them."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rabbitmq import Raw

from matador.errors import DelaysNotSupportedError
from matador.model.message import Message, Retry
from matador.model.topology import Topology
from matador.transports.rabbitmq import RabbitMQTransport, delays
from matador.transports.rabbitmq.plan import Exchange, Queue

MONTH = 30 * 86400.0


@given(st.floats(0.0005, delays.MAX_DELAY - 1))
def test_a_path_is_never_shorter_than_the_delay_and_little_longer(delay: float) -> None:
    total = sum(level.ttl for level in delays.path(delay)) / 1000
    assert delay <= total + 1e-6
    assert total - delay <= max(0.004, min(0.256, delay / 16)) + 0.001


@given(st.floats(0.0005, delays.MAX_DELAY - 1))
def test_a_path_leads_down_and_through_no_level_twice(delay: float) -> None:
    # Else RabbitMQ would take it for a cycle, and drop the message.
    path = delays.path(delay)
    places = [delays.LEVELS.index(level) for level in path]
    assert all(first < second for first, second in pairwise(places))


@pytest.mark.parametrize(("delay", "steps"), [(1, 1), (2, 1), (4, 1), (8, 1), (0.004, 1)])
def test_common_delays_take_one_step(delay: float, steps: int) -> None:
    assert len(delays.path(delay)) == steps


def test_minutes_to_months() -> None:
    assert delays.MAX_DELAY > 4 * MONTH
    assert all(0 < level.ttl < 1 << 32 for level in delays.LEVELS)
    assert len({level.name for level in delays.LEVELS}) == len(delays.LEVELS)


def test_every_object_comes_after_what_it_refers_to() -> None:
    known: set[str] = set()
    for thing in delays.objects("p"):
        if isinstance(thing, Exchange | Queue):
            refers = [
                thing.arguments[name]
                for name in ("alternate-exchange", "x-dead-letter-exchange")
                if name in thing.arguments
            ]
            assert set(refers) <= known
            known.add(thing.name)
    assert delays.exchange_of("p", delays.LEVELS[0]) in known


# -- on the server ---------------------------------------------------------------------------------


@pytest.fixture
async def queue(transport: RabbitMQTransport, namespace: str) -> str:
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    return f"{namespace}.events"


@pytest.mark.broker
@pytest.mark.xdist_group("rabbitmq")
class TestOnTheServer:
    async def test_several_levels_and_the_order_of_their_times(
        self, transport: RabbitMQTransport, queue: str
    ) -> None:
        waits = [0.7, 0.02, 0.31, 0.11, 0.15, 0.5]
        assert min(len(delays.path(wait)) for wait in (0.7, 0.31)) > 1
        messages = [Message(f"{wait}", queue, f"{wait}".encode(), delay=wait) for wait in waits]
        started = time.monotonic()
        assert await transport.send(messages) == [None] * len(waits)
        subscription = await transport.subscribe(queue, prefetch=10)
        arrived: list[tuple[float, float]] = []
        while len(arrived) < len(waits):
            got = await subscription.receive(10)
            arrived += [(float(one.body), time.monotonic() - started) for one in got]
        assert [wait for wait, _ in arrived] == sorted(waits)
        assert all(took >= wait for wait, took in arrived)
        assert all(took < wait + 2 for wait, took in arrived), "and not much later"

    async def test_what_was_delayed_looks_as_if_it_had_not_been(
        self, transport: RabbitMQTransport, queue: str, raw: Raw, namespace: str
    ) -> None:
        message = Message("m", queue, b"x", {"mine": "kept"}, delay=0.3)
        assert await transport.send([message]) == [None]
        method, properties, _ = raw.get(queue)
        assert method.routing_key == queue
        assert properties.message_id == "m"
        assert properties.headers["mine"] == "kept"

    async def test_a_retry_may_go_the_same_way_again_and_again(
        self, transport: RabbitMQTransport, queue: str
    ) -> None:
        # RabbitMQ drops a message that it dead-letters into one queue twice.
        await transport.send([Message("m", queue, b"0", {"mine": "kept"}, delay=0.05)])
        subscription = await transport.subscribe(queue, prefetch=1)
        for number in range(1, 6):
            (delivery,) = await subscription.receive(1)
            assert dict(delivery.headers) == {"mine": "kept"}, "no marks and no deaths are left"
            assert delivery.receipt.delivery_count == 1
            again = Message("m", queue, b"%d" % number, delivery.headers, delay=0.05)
            assert await transport.settle([Retry(delivery.receipt, again)]) == [None]
        (delivery,) = await subscription.receive(1)
        assert delivery.body == b"5"

    async def test_what_comes_too_late_for_its_queue_is_kept(
        self, transport: RabbitMQTransport, queue: str, raw: Raw
    ) -> None:
        lost = "matador.delay.lost"
        assert await transport.send([Message(queue, queue, b"x", delay=0.2)]) == [None]
        raw.channel.queue_delete(queue)
        while raw.get(lost)[1].message_id != queue:
            pass  # what other tests left behind

    async def test_a_delay_that_is_too_long_is_refused(
        self, transport: RabbitMQTransport, queue: str
    ) -> None:
        (outcome,) = await transport.send([Message("m", queue, b"x", delay=MONTH * 24)])
        assert isinstance(outcome, DelaysNotSupportedError)
