"""Delays: the arithmetic of the hops, and messages that make several of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import exceptions
from tests.support.rabbitmq import Raw, cut_and_reconnect

from matador.errors import DelaysNotSupportedError
from matador.model.message import Complete, Message, Retry
from matador.model.topology import Topology, WorkQueue
from matador.transports.base import Subscription
from matador.transports.rabbitmq import RabbitMQTransport, delays
from matador.transports.rabbitmq.topology import AmqpExchange, AmqpQueue

MONTH = 30 * 86400.0


DAY = 86400.0


def total(delay: float) -> float:
    return sum(hop.ttl for hop in delays.path(delay)) / 1000


@given(st.floats(0.0005, 2 * DAY) | st.floats(0.0005, delays.MAX_DELAY))
def test_a_delay_is_three_hops_at_most_and_never_short(delay: float) -> None:
    hops = delays.path(delay)
    assert 1 <= len(hops) <= 3, "services in other languages count each as a delivery"
    assert [hop.left for hop in hops] == list(range(len(hops), 0, -1))
    assert all(0 < hop.ttl < 1 << 32 for hop in hops), "RabbitMQ counts in 32 bits"
    assert delay <= total(delay) + 1e-6


@given(st.floats(0.0005, 2 * DAY) | st.floats(0.0005, delays.MAX_DELAY), st.booleans())
def test_every_hop_can_be_looked_through(delay: float, own: bool) -> None:
    hops = delays.path(delay)
    if own:
        hops = delays.with_own_end("p", hops, "shop.events")
    known = {left: set(names) for left, names in delays.every_hop("p", "shop.events")}
    assert list(known) == [3, 2, 1], "in the order in which a message passes them"
    assert all(hop.name in known[hop.left] for hop in hops)


@pytest.mark.parametrize(
    ("below", "late"),
    [
        (0.2, 0.01),
        (4, 0.05),
        (16, 0.25),
        (DAY, 1),
        (49 * DAY, 60),
        (98 * DAY, 3600),
        (147 * DAY, DAY),
    ],
)
def test_how_much_later_it_may_be(below: float, late: float) -> None:
    random = Random(7)
    for _ in range(2_000):
        delay = random.uniform(0.0005, below)
        assert total(delay) - delay < late + 1e-3


@pytest.mark.parametrize(
    ("delay", "names"),
    [
        (0.001, ["10ms"]),
        (1, ["1s"]),
        (5, ["5s"]),
        (90, ["1m", "30s"]),
        (3600, ["1h"]),
        (90_061.5, ["1d", "1h", "2m"]),
        (147 * DAY, ["49d", "49d", "49d"]),
    ],
)
def test_delays_people_think_of_are_exact_and_take_one_or_two_hops(
    delay: float, names: list[str]
) -> None:
    assert [hop.name for hop in delays.path(delay)] == names


def test_a_path_leads_through_no_queue_twice() -> None:
    # Else RabbitMQ would take it for a cycle, and drop the message.
    names = [
        thing.name
        for thing in delays.hop_objects("p", delays.path(147 * DAY))
        if isinstance(thing, AmqpQueue)
    ]
    assert len(set(names)) == 3


def test_delays_drawn_by_lot_need_a_bounded_number_of_queues() -> None:
    random = Random(7)
    hops = {hop for _ in range(20_000) for hop in delays.path(random.uniform(1, 300))}
    assert len(hops) <= 110


def test_every_object_comes_after_what_it_refers_to() -> None:
    known: set[str] = set()
    for thing in [*delays.objects("p"), *delays.hop_objects("p", delays.path(90_061.5))]:
        if isinstance(thing, AmqpExchange | AmqpQueue):
            refers = [
                thing.arguments[name]
                for name in ("alternate-exchange", "x-dead-letter-exchange")
                if name in thing.arguments
            ]
            assert set(refers) <= known
            known.add(thing.name)
        else:
            assert {thing.queue, thing.exchange} <= known


def test_a_hop_is_left_only_when_the_next_queue_has_the_message() -> None:
    for thing in delays.hop_objects("p", delays.path(90_061.5)):
        if isinstance(thing, AmqpQueue):
            assert thing.arguments["x-queue-type"] == "quorum"
            assert thing.arguments["x-dead-letter-strategy"] == "at-least-once"
            assert thing.arguments["x-overflow"] == "reject-publish", "or the strategy is ignored"


# -- on the server ---------------------------------------------------------------------------------


@pytest.fixture
async def queue(transport: RabbitMQTransport, namespace: str) -> str:
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    return f"{namespace}.events"


@pytest.mark.broker
@pytest.mark.xdist_group("rabbitmq")
class TestOnTheServer:
    async def test_several_hops_and_the_order_of_their_times(
        self, transport: RabbitMQTransport, queue: str
    ) -> None:
        waits = [1.3, 0.02, 0.31, 0.11, 1.15, 0.5]
        assert [len(delays.path(wait)) for wait in waits] == [2, 1, 1, 1, 2, 1]
        subscription = await transport.subscribe(queue, prefetch=10)
        for slower in (1, 6):  # on a busy machine, the first may become due together
            expected = sorted(wait * slower for wait in waits)
            arrived = await self._arrivals(transport, subscription, [w * slower for w in waits])
            assert all(took >= wait for wait, took in arrived)
            late = [wait for wait, took in arrived if took > wait + 2 * slower]
            if [wait for wait, _ in arrived] == expected and not late:
                return
        assert [wait for wait, _ in arrived] == expected
        assert not late, "not much later"

    async def _arrivals(
        self, transport: RabbitMQTransport, subscription: Subscription, waits: list[float]
    ) -> list[tuple[float, float]]:
        """Each delay, and how long it took, in the order of arrival."""
        queue = subscription.queue
        messages = [Message(f"{wait}", queue, f"{wait}".encode(), delay=wait) for wait in waits]
        started = time.monotonic()
        assert await transport.send(messages) == [None] * len(waits)
        arrived: list[tuple[float, float]] = []
        while len(arrived) < len(waits):
            got = await subscription.receive(10)
            arrived += [(float(one.body), time.monotonic() - started) for one in got]
            await transport.settle([Complete(one.receipt) for one in got])
        return arrived

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

    async def test_what_the_broker_noted_of_a_delay_is_at_most_three_deaths(
        self, transport: RabbitMQTransport, queue: str, raw: Raw
    ) -> None:
        # The other side sums them up: with four its first failure would be called poison.
        assert await transport.send([Message("m", queue, b"x", delay=1.05)]) == [None]
        _, properties, _ = raw.get(queue)
        assert sum(death["count"] for death in properties.headers["x-death"]) == 2

    @pytest.mark.parametrize("limits", [{}, {"x-max-length": 9, "x-overflow": "reject-publish"}])
    async def test_a_purge_finds_what_is_delayed_at_every_hop(
        self, transport: RabbitMQTransport, namespace: str, limits: dict[str, Any]
    ) -> None:
        queues = [WorkQueue("events", arguments=limits), WorkQueue("other")]
        await transport.apply_topology(Topology(namespace, queues=queues))
        waits = [0.3, 70, 90_061, 60 * DAY]
        assert {len(delays.path(wait)) for wait in waits} == {1, 2, 3}
        messages = [
            Message(f"{queue}-{wait}", f"{namespace}.{queue}", b"x", delay=wait)
            for queue in ("events", "other")
            for wait in waits
        ]
        assert await transport.send(messages) == [None] * 8
        assert await transport.purge(f"{namespace}.events") == 4
        subscription = await transport.subscribe(f"{namespace}.other", prefetch=1)
        (delivery,) = await subscription.receive(1)
        assert (delivery.id, delivery.receipt.delivery_count) == ("other-0.3", 1)
        await transport.settle([Complete(delivery.receipt)])
        assert await transport.purge(f"{namespace}.other") == 3

    async def test_queues_are_made_when_they_are_used(
        self, make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
    ) -> None:
        transport = make(f"delay_prefix={namespace}.delay&delays=levels")
        await transport.connect()
        topology = Topology(namespace, queues=["events"])
        await transport.apply_topology(topology)
        hop = f"{namespace}.delay.hops.1.30ms"
        with pytest.raises(exceptions.ChannelClosedByBroker):
            raw.count(hop)
        delayed = Message("m", f"{namespace}.events", b"x", delay=0.03)
        assert await transport.send([delayed]) == [None]
        assert raw.get(f"{namespace}.events")[2] == b"x"
        # Somebody deletes them while the connection is down: they are made again.
        raw.channel.queue_delete(hop)
        raw.channel.exchange_delete(f"{namespace}.delay.hops.1")
        await cut_and_reconnect(transport, 0, 1)
        assert await transport.send([delayed]) == [None]
        assert raw.get(f"{namespace}.events")[2] == b"x"
        for name in ("lost", "due", "hops.1"):
            raw.channel.exchange_delete(f"{namespace}.delay.{name}")
        raw.delete([], [f"{namespace}.delay.lost", hop])

    async def test_a_queue_that_does_not_know_its_time_yet_keeps_nothing_for_ever(
        self, make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
    ) -> None:
        """As one is that another process is creating at this moment."""
        transport = make(f"delay_prefix={namespace}.delay&delays=levels")
        await transport.connect()
        await transport.apply_topology(Topology(namespace, queues=["events"]))
        hop, delayed = (
            f"{namespace}.delay.hops.1.30ms",
            Message("m", f"{namespace}.events", b"x", delay=0.03),
        )
        assert await transport.send([delayed]) == [None]
        raw.get(f"{namespace}.events")
        raw.channel.queue_delete(hop)
        arguments = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": f"{namespace}.delay.due",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        raw.channel.queue_declare(hop, durable=True, arguments=arguments)
        mark = {"x-match": "all", "matador-delay-1": "30ms"}
        raw.channel.queue_bind(hop, f"{namespace}.delay.hops.1", "", mark)
        assert await transport.send([delayed]) == [None]
        assert raw.get(f"{namespace}.events")[2] == b"x"
        for name in ("lost", "due", "hops.1"):
            raw.channel.exchange_delete(f"{namespace}.delay.{name}")
        raw.delete([], [f"{namespace}.delay.lost", hop])

    async def test_queues_that_cannot_be_made_are_named_and_others_get_through(
        self, make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
    ) -> None:
        prefix = f"{namespace}.delay"
        transport = make(f"delay_prefix={prefix}&delays=levels")
        await transport.connect()
        await transport.apply_topology(Topology(namespace, queues=["events"]))
        raw.declare_queue(f"{prefix}.hops.1.40ms")  # in another shape
        queue = f"{namespace}.events"
        delayed = Message("m", queue, b"x", delay=0.04)
        first, second = await transport.send([delayed, Message("m", queue, b"y")])
        assert isinstance(first, DelaysNotSupportedError)
        assert "40ms" in str(first)
        assert second is None
        for name in ("lost", "due", "hops.1"):
            raw.channel.exchange_delete(f"{prefix}.{name}")
        raw.delete([], [f"{prefix}.lost", f"{prefix}.hops.1.40ms"])

    async def test_what_waits_in_the_queues_of_an_earlier_version_arrives(
        self, transport: RabbitMQTransport, queue: str, raw: Raw
    ) -> None:
        old, due = f"{queue}.old.64", "matador.delay.due"
        raw.channel.exchange_declare(old, "headers", durable=True)
        raw.declare_queue(
            old,
            x_queue_type="quorum",
            x_message_ttl=64,
            x_dead_letter_exchange=due,
            x_dead_letter_strategy="at-least-once",
            x_overflow="reject-publish",
        )
        raw.channel.queue_bind(old, old, "", arguments={"x-match": "all", "matador-delay-64": 1})
        raw.publish(old, queue, b"old", {"matador-delay-64": 1, "mine": "kept"})
        subscription = await transport.subscribe(queue, prefetch=1)
        (delivery,) = await subscription.receive(1)
        assert (delivery.body, dict(delivery.headers)) == (b"old", {"mine": "kept"})
        raw.channel.exchange_delete(old)
        raw.delete([], [old])

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
