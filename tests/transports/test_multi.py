"""A group of transports: who sends, who takes over, and who is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    QUEUE,
    TOPOLOGY,
    Handler,
    Heard,
    OrderPlaced,
    failing,
    make_app,
    subscribed,
)
from tests.ways.ways import Facts

from matador import Envelope, Matador, SendOptions, Shutdown, StandardRetryPolicy
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.errors import (
    AllTransportsFailedError,
    ConfigurationError,
    ConnectionFailedError,
    JobProviderError,
    JobsNotAddedError,
    NotConnectedError,
    NotConsumedHereError,
    QueueError,
    QueueNotFoundError,
    SendFailedError,
    StorageFullError,
    UnsupportedError,
)
from matador.events.context import EventContext
from matador.jobs import ActiveJob, Queue, Worker
from matador.model.message import Complete, Delivery, Release, StoredMessage, TopologyNote
from matador.model.subscriber import SubscriberStub
from matador.model.topology import Topology, WorkQueue
from matador.observe.oldest import oldest_due, tells_age
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.runtime.dead_letters import Selection
from matador.runtime.service import Service
from matador.testing import ManualClock, make_message, make_receipt, wait_for
from matador.transports.base import Pausing
from matador.transports.memory import MemoryTransport
from matador.transports.multi import Choose, MultiTransport
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.sqlite import SqliteTransport


class Group:
    """Two transports that can be made to fail, as one."""

    def __init__(self, **options: Any) -> None:
        self.first = FaultyTransport(name="first")
        self.second = FaultyTransport(name="second")
        self.multi = MultiTransport([self.first, self.second], **options)

    async def open(self) -> MultiTransport:
        await self.multi.connect()
        await self.multi.apply_topology(TOPOLOGY)
        return self.multi

    def counts(self) -> tuple[int, int]:
        return len(self.first.messages(QUEUE)), len(self.second.messages(QUEUE))


def message(body: str = "{}") -> Any:
    return make_message(body.encode(), queue=QUEUE)


async def receive(transport: MultiTransport, count: int = 1) -> list[Delivery]:
    subscription = await transport.subscribe(QUEUE, prefetch=count)
    deliveries: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(deliveries) < count:
            deliveries += await subscription.receive(count - len(deliveries))
    await subscription.close()
    return deliveries


# -- what it is --------------------------------------------------------------------------------


def test_it_needs_transports_with_names_of_their_own() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        MultiTransport([])
    with pytest.raises(ConfigurationError, match="needs a unique name"):
        MultiTransport([MemoryTransport(), MemoryTransport()])


def test_it_is_named_after_its_transports_and_can_what_the_first_can() -> None:
    group = MultiTransport(
        [
            MemoryTransport(name="a", without=["delays"], lease=9),
            MemoryTransport(name="b", lease=3),
        ]
    )
    assert group.name == "multi(a,b)"
    can = group.capabilities
    assert (can.delays, can.priorities, can.lease) == (False, True, 3)
    assert [can.browse, can.purge, can.depth, can.pause] == [True] * 4
    assert [can.replay, can.routing, can.once, can.jobs] == [False] * 4
    assert [one.name for one in group.transports] == ["a", "b"]


def test_it_says_where_its_transports_are(tmp_path: Path) -> None:
    one, other = SqliteTransport(tmp_path / "shop.db"), RabbitMQTransport("amqp://me:pw@host")
    assert repr(MultiTransport([one, other])) == f"MultiTransport([{one!r}, {other!r}])"
    assert "pw" not in repr(MultiTransport([one, other]))


async def test_connect_topology_and_disconnect_reach_all() -> None:
    group = Group()
    assert group.multi.state.status == "disconnected"
    await group.open()
    await group.multi.connect()
    assert group.counts() == (0, 0)
    assert (group.first.state.status, group.second.state.status) == ("connected", "connected")
    await group.multi.disconnect()
    await group.multi.disconnect()
    assert (group.first.state.status, group.second.state.status) == (
        "disconnected",
        "disconnected",
    )


async def test_notes_say_which_transport_they_are_of() -> None:
    multi = MultiTransport(
        [MemoryTransport(name="a"), MemoryTransport(name="b", without=["priorities"])]
    )
    await multi.connect()
    topology = Topology("shop", queues=[WorkQueue("events", priorities=True, retention=60)])
    notes = await multi.apply_topology(topology)
    assert TopologyNote(QUEUE, "b: priorities are ignored") in notes
    assert any("cannot read finished" in note.text for note in notes)
    await multi.disconnect()


# -- sending -----------------------------------------------------------------------------------


async def test_the_first_sends_while_it_can() -> None:
    group = Group()
    multi = await group.open()
    assert list(await multi.send([message(), message()])) == [None, None]
    assert group.counts() == (2, 0)


def raising() -> str:
    raise RuntimeError("cannot decide")


async def later() -> str | None:
    return "second"


@pytest.mark.parametrize(
    ("choose", "counts"),
    [
        (None, (1, 0)),
        (lambda: "second", (0, 1)),
        (lambda: "first", (1, 0)),
        (later, (0, 1)),
        (lambda: None, (1, 0)),
        (lambda: "third", (1, 0)),
        (raising, (1, 0)),
    ],
    ids=["nobody", "second", "first", "async", "none", "unknown", "raises"],
)
async def test_it_can_be_chosen_who_sends(choose: Choose | None, counts: tuple[int, int]) -> None:
    group = Group(choose=choose)
    multi = await group.open()
    assert list(await multi.send([message()])) == [None]
    assert group.counts() == counts


async def test_the_choice_is_made_anew_for_every_send() -> None:
    names = iter(["first", "second", "second"])
    group = Group(choose=lambda: next(names))
    multi = await group.open()
    for _ in range(3):
        await multi.send([message()])
    assert group.counts() == (1, 2)


async def test_the_next_takes_what_one_cannot_and_the_hooks_are_told() -> None:
    group, heard = Group(), Heard()
    group.first.refuse_queues = {QUEUE}
    async with make_app(group.multi, Handler(), hooks=heard, consume_from=()) as app:
        result = await app.send(OrderPlaced("o-1"))
        assert result.ok
        assert group.counts() == (0, 1)
        await wait_for(lambda: heard.of("fallback"))
    (event,) = heard.of("fallback")
    assert (event.failed, event.next, event.queue) == ("first", "second", QUEUE)
    assert event.message_id == result.messages[0].id
    assert "is full" in str(event.error)


async def test_after_a_chosen_one_the_others_follow_in_their_order() -> None:
    group, heard = Group(choose=lambda: "second"), Heard()
    group.second.refuse_queues = {QUEUE}
    async with make_app(group.multi, Handler(), hooks=heard, consume_from=()) as app:
        assert (await app.send(OrderPlaced("o-1"))).ok
        assert group.counts() == (1, 0)
        await wait_for(lambda: heard.of("fallback"))
    assert (heard.of("fallback")[0].failed, heard.of("fallback")[0].next) == ("second", "first")


async def test_only_what_failed_is_sent_again() -> None:
    group = Group()
    topology = Topology("shop", queues=["events", "billing"])
    await group.multi.connect()
    await group.multi.apply_topology(topology)
    group.first.refuse_queues = {"shop.billing"}
    billing = make_message(queue="shop.billing")
    assert list(await group.multi.send([message(), billing, message()])) == [None] * 3
    assert group.counts() == (2, 0)
    assert len(group.second.messages("shop.billing")) == 1
    assert group.first.messages("shop.billing") == []


async def test_when_all_fail_every_reason_is_given() -> None:
    group, heard = Group(), Heard()
    async with make_app(group.multi, Handler(), hooks=heard, consume_from=()) as app:
        group.first.send_errors.append(StorageFullError("no room"))
        group.second.refuse_queues = {QUEUE}
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
    cause = caught.value.__cause__
    assert isinstance(cause, AllTransportsFailedError)
    assert [name for name, _ in cause.errors] == ["first", "second"]
    assert "first: no room" in str(cause)
    assert "second: shop.events is full" in str(cause)
    assert len(heard.of("enqueue_error")) == 1


async def test_without_fall_back_the_first_error_is_final() -> None:
    group, heard = Group(fallback=False), Heard()
    group.first.refuse_queues = {QUEUE}
    async with make_app(group.multi, Handler(), hooks=heard, consume_from=()) as app:
        with pytest.raises(SendFailedError, match="is full"):
            await app.send(OrderPlaced("o-1"))
    assert group.counts() == (0, 0)
    assert heard.of("fallback") == []


# -- one of them is down -----------------------------------------------------------------------


class NeverThere(FaultyTransport):
    """Cannot be connected, and would wait for ever if it were asked to send."""

    async def send(self, messages: Sequence[Any]) -> Sequence[Any]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_one_that_is_down_is_passed_over_at_once() -> None:
    down, up = NeverThere(name="down"), MemoryTransport(name="up")
    down.connect_errors.extend([ConnectionFailedError("nobody there")] * 1_000_000)
    multi = MultiTransport([down, up], reconnect_every=0.001)
    await multi.connect()
    assert multi.state.status == "connected"
    await multi.apply_topology(TOPOLOGY)
    async with asyncio.timeout(60):
        assert list(await multi.send([message()])) == [None]
    assert len(up.messages(QUEUE)) == 1
    await multi.disconnect()


async def test_it_is_connected_in_the_background_with_topology_and_consumers() -> None:
    handler, heard = Handler(), Heard()
    group = Group(reconnect_every=0.001)
    group.first.connect_errors.extend(ConnectionFailedError("not yet") for _ in range(5))
    async with make_app(group.multi, handler, hooks=heard) as app:
        assert (await app.send(OrderPlaced("by the second"))).ok
        await wait_for(lambda: group.first.state.status == "connected")

        async def sent_by_the_first() -> bool:
            try:
                return list(await group.first.send([])) == [] and group.counts() == (0, 0)
            except NotConnectedError:
                return False

        await wait_for(sent_by_the_first)
        assert (await app.send(OrderPlaced("by the first"))).ok
        await wait_for(lambda: handler.runs == 2)
        await app.wait_idle(5)
        assert group.first.completed(QUEUE) == 1
    assert {one.order_id for one in handler.data} == {"by the first", "by the second"}


async def test_if_none_can_be_connected_the_start_fails_with_every_reason() -> None:
    group = Group()
    group.first.connect_errors.append(ConnectionFailedError("no route"))
    group.second.connect_errors.append(ConnectionFailedError("no password"))
    app = make_app(group.multi, Handler())
    with pytest.raises(ConnectionFailedError, match="first: no route; second: no password"):
        await app.start()
    assert group.multi.state.status == "disconnected"
    async with app:
        assert (await app.send(OrderPlaced("o-1"))).ok


async def test_a_foreign_error_at_connect_leaves_nothing_connected() -> None:
    group = Group()
    group.first.connect_errors.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        await group.multi.connect()
    assert group.second.state.status == "disconnected"


# -- a member that delivers only within this process -------------------------------------------

BOTH = Topology("shop", queues=["events", "warehouse"])
UNREACHABLE = "amqp://127.0.0.1:1"


def beside_memory(**options: Any) -> tuple[MultiTransport, MemoryTransport]:
    """A broker that cannot be reached, and a memory that takes over."""
    memory = MemoryTransport()
    return MultiTransport([RabbitMQTransport(UNREACHABLE), memory], **options), memory


async def test_an_application_that_only_sends_does_not_fall_back_into_its_memory() -> None:
    (multi, memory), heard = beside_memory(), Heard()
    async with make_app(multi, Handler(), hooks=heard, consume_from=()) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
        with pytest.raises(SendFailedError):
            await app.send_many([OrderPlaced("o-2"), OrderPlaced("o-3")])
    assert memory.messages(QUEUE) == []
    cause = caught.value.__cause__
    assert isinstance(cause, AllTransportsFailedError)
    (first, down), (second, refused) = cause.errors
    assert (first, second) == ("rabbitmq", "memory")
    assert isinstance(down, NotConnectedError)
    assert isinstance(refused, NotConsumedHereError)
    assert "nothing in this process consumes shop.events" in str(caught.value)
    assert heard.of("fallback") == []


async def test_a_queue_that_this_process_consumes_falls_back_into_its_memory() -> None:
    (multi, _), handler, heard = beside_memory(), Handler(), Heard()
    async with make_app(multi, handler, hooks=heard) as app:
        result = await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: handler.runs == 1)
        assert [one.transport for one in result.messages] == ["memory"]
    assert [one.next for one in heard.of("fallback")] == ["memory"]


async def test_only_what_is_handled_here_falls_back_into_the_memory() -> None:
    multi, memory = beside_memory()
    handler, other = Handler(), subscribed(Handler(), "pack", queue="warehouse")
    stub = SubscriberStub("ship", description="Ship it.", queue="warehouse")
    app = make_app(multi, subscribed(handler), other, stub, topology=BOTH, send_errors="report")
    async with app:
        result = await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: handler.runs == 1)
        into_ours = SendOptions(subscribers=("ship",), queue="events")
        (stubborn,) = await app.send_many([(OrderPlaced("o-2"), into_ours)])
    assert [one.subscriber for one in result.messages] == ["handle"]
    assert [error.subscriber for error in result.errors] == ["pack", "ship"]
    assert "is for a stub" in str(stubborn.errors[0])
    assert memory.messages("shop.warehouse") == memory.messages(QUEUE) == []


@pytest.mark.parametrize("fallback", [True, False])
async def test_a_memory_is_not_chosen_for_what_nobody_here_consumes(
    tmp_path: Path, fallback: bool
) -> None:
    file, memory = SqliteTransport(tmp_path / "shop.db"), MemoryTransport()
    multi = MultiTransport([file, memory], choose=lambda: "memory", fallback=fallback)
    async with make_app(multi, Handler(), consume_from=(), send_errors="report") as app:
        result = await app.send(OrderPlaced("o-1"))
    assert memory.messages(QUEUE) == []
    assert [one.transport for one in result.messages] == (["sqlite"] if fallback else [])
    assert [type(error.__cause__) for error in result.errors] == (
        [] if fallback else [NotConsumedHereError]
    )


async def test_the_cause_says_why_one_is_down() -> None:
    multi, _ = beside_memory()
    async with make_app(multi, Handler(), consume_from=()) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
    assert isinstance(caught.value.__cause__, AllTransportsFailedError)
    (_, down), _ = caught.value.__cause__.errors
    assert str(down).startswith("rabbitmq is ")
    assert isinstance(down.__cause__, ConnectionFailedError)
    assert str(down.__cause__) in str(down)


async def test_results_and_hooks_say_which_transport_stored_a_message() -> None:
    group, heard = Group(), Heard()
    async with make_app(group.multi, Handler(), hooks=heard, consume_from=()) as app:
        first = await app.send(OrderPlaced("o-1"))
        group.first.refuse_queues = {QUEUE}
        (second,) = await app.send_many([OrderPlaced("o-2")])
    stored = [one.transport for result in (first, second) for one in result.messages]
    assert stored == ["first", "second"]
    assert [one.transport for one in heard.of("enqueue_success")] == ["first", "second"]


# -- receiving ---------------------------------------------------------------------------------


async def test_messages_of_all_are_consumed_and_settled_where_they_came_from() -> None:
    group, handler = Group(), failing()
    async with make_app(group.multi, handler) as app:
        await group.first.send([message(body("a")), message(body("b"))])
        await group.second.send([message(body("c"))])
        await wait_for(lambda: handler.runs == 3)
        await app.wait_idle(5)
        assert (group.first.completed(QUEUE), group.second.completed(QUEUE)) == (2, 1)
        assert group.counts() == (0, 0)


async def test_retries_and_dead_letters_stay_where_they_came_from() -> None:
    group = Group()
    async with make_app(group.multi, failing(ValueError("once"))) as app:
        await group.second.send([message(body("a")), message("not an envelope")])
        await wait_for(lambda: group.second.dead_letters(QUEUE))
        await wait_for(lambda: [one.state for one in group.second.messages(QUEUE)] == ["delayed"])
        await app.wait_idle(5)
    assert group.counts() == (0, 1)
    assert group.first.dead_letters(QUEUE) == []


async def test_what_fell_back_is_handled_like_the_rest() -> None:
    group, handler = Group(), Handler()
    async with make_app(group.multi, handler) as app:
        for number in range(20):
            group.first.refuse_queues = {QUEUE} if number % 2 else set()
            assert (await app.send(OrderPlaced(f"o-{number}"))).ok
        await wait_for(lambda: handler.runs == 20)
        await app.wait_idle(5)
        assert (group.first.completed(QUEUE), group.second.completed(QUEUE)) == (10, 10)
    assert {one.order_id for one in handler.data} == {f"o-{number}" for number in range(20)}


async def test_one_that_cannot_receive_does_not_keep_the_others_from_it() -> None:
    group, handler = Group(), Handler()
    group.first.receive_errors.extend(OSError("lost") for _ in range(1_000_000))
    async with make_app(group.multi, handler) as app:
        await wait_for(lambda: len(group.first.limits) > 1)
        await group.second.send([message(body(f"o-{number}")) for number in range(50)])
        await wait_for(lambda: handler.runs == 50)
        await app.wait_idle(5)
    assert len(group.first.limits) < 60, "tried again with pauses, not in a circle"


async def test_what_was_taken_but_not_returned_goes_back_uncounted() -> None:
    group = Group()
    multi = await group.open()
    await group.first.send([message("a")])
    await group.second.send([message("b")])
    subscription = await multi.subscribe(QUEUE, prefetch=1)
    (delivery,) = await subscription.receive(1)
    await subscription.close()
    states = [
        (one.state, one.delivery_count)
        for transport in (group.first, group.second)
        for one in transport.messages(QUEUE)
    ]
    assert sorted(states) == [("in-flight", 1), ("ready", 0)]
    assert list(await multi.settle([Complete(delivery.receipt)])) == [None]


async def test_a_pause_leaves_nothing_in_hand_that_was_not_returned() -> None:
    group = Group()
    multi = await group.open()
    await group.first.send([message("a")])
    await group.second.send([message("b")])
    subscription = await multi.subscribe(QUEUE, prefetch=1)
    (delivery,) = await subscription.receive(1)
    assert isinstance(subscription, Pausing)
    await subscription.pause()
    states = [
        (one.state, one.delivery_count)
        for transport in (group.first, group.second)
        for one in transport.messages(QUEUE)
    ]
    assert sorted(states) == [("in-flight", 1), ("ready", 0)]
    assert list(await multi.settle([Complete(delivery.receipt)])) == [None]
    assert len(await subscription.receive(1)) == 1, "it goes on with the next receive"


async def test_a_receipt_of_somebody_else_is_refused() -> None:
    multi = await Group().open()
    (outcome,) = await multi.settle([Release(make_receipt(queue=QUEUE))])
    assert outcome is not None


async def test_what_cannot_be_settled_at_one_is_settled_at_the_other() -> None:
    group = Group()
    multi = await group.open()
    await group.first.send([message("a")])
    await group.second.send([message("b")])
    deliveries = await receive(multi, 2)
    await group.first.disconnect()
    outcomes = await multi.settle([Complete(one.receipt) for one in deliveries])
    by_body = dict(zip([one.body for one in deliveries], outcomes, strict=True))
    assert isinstance(by_body[b"a"], NotConnectedError)
    assert by_body[b"b"] is None


# -- leases ------------------------------------------------------------------------------------


def leased(clock: ManualClock) -> tuple[MemoryTransport, MemoryTransport, MultiTransport]:
    first = MemoryTransport(name="first", lease=9, clock=clock)
    second = MemoryTransport(name="second", lease=9, clock=clock)
    return first, second, MultiTransport([first, second, MemoryTransport(name="third")])


async def test_leases_are_renewed_where_they_came_from(manual_clock: ManualClock) -> None:
    first, second, multi = leased(manual_clock)
    await multi.connect()
    await multi.apply_topology(TOPOLOGY)
    for transport in multi.transports:
        await transport.send([message(transport.name)])
    deliveries = await receive(multi, 3)
    receipts = [one.receipt for one in deliveries]
    manual_clock.advance(8)
    assert list(await multi.renew(receipts)) == [True, True, True]
    manual_clock.advance(8)
    assert [one.state for one in first.messages(QUEUE) + second.messages(QUEUE)] == [
        "in-flight",
        "in-flight",
    ]
    manual_clock.advance(2)
    kept = {
        one.body: still for one, still in zip(deliveries, await multi.renew(receipts), strict=True)
    }
    assert kept == {b"first": False, b"second": False, b"third": True}


async def test_one_that_cannot_renew_does_not_cost_the_others_their_leases(
    manual_clock: ManualClock,
) -> None:
    first, second, multi = leased(manual_clock)
    await multi.connect()
    await multi.apply_topology(TOPOLOGY)
    await first.send([message("a")])
    await second.send([message("b")])
    receipts = [one.receipt for one in await receive(multi, 2)]
    await first.disconnect()
    manual_clock.advance(8)
    assert list(await multi.renew(receipts)) == [True, True]
    manual_clock.advance(8)
    assert [one.state for one in second.messages(QUEUE)] == ["in-flight"]


async def test_a_group_without_leases_says_so() -> None:
    multi = await Group().open()
    with pytest.raises(UnsupportedError):
        await multi.renew([])


# -- what tools do -----------------------------------------------------------------------------


async def filled(group: Group) -> MultiTransport:
    """A group with two messages in the first, and one in the second."""
    multi = await group.open()
    await group.first.send([message("a"), message("b")])
    await group.second.send([message("c")])
    return multi


async def seen(multi: MultiTransport, **options: Any) -> list[StoredMessage]:
    return [one async for one in multi.browse(QUEUE, **options)]


async def test_the_messages_of_all_are_shown_and_can_be_taken() -> None:
    group = Group()
    multi = await filled(group)
    found = await seen(multi)
    assert [one.body for one in found] == [b"a", b"b", b"c"]
    assert [one.body for one in await seen(multi, limit=2)] == [b"a", b"b"]
    for place in range(3):
        after = await seen(multi, after=found[place].position)
        assert [one.body for one in after] == [one.body for one in found[place + 1 :]]
    taken = await multi.take(QUEUE, [found[2].position, found[0].position])
    assert [one and one.body for one in taken] == [b"c", b"a"]
    assert await multi.take(QUEUE, [found[0].position]) == [None], "somebody has it"
    settled = await multi.settle([Complete(one.receipt) for one in taken if one is not None])
    assert list(settled) == [None, None]
    assert group.counts() == (1, 0)


@pytest.mark.parametrize("position", ["", "x", "2:0", ":1", "-1:0"])
async def test_a_position_of_somebody_else_is_refused(position: str) -> None:
    multi = await filled(Group())
    with pytest.raises(ConfigurationError, match="is not a position"):
        await multi.take(QUEUE, [position])


async def test_what_was_taken_goes_back_if_another_one_cannot_be_asked() -> None:
    group = Group()
    multi = await filled(group)
    positions = [one.position for one in await seen(multi)]
    await group.second.disconnect()
    with pytest.raises(NotConnectedError):
        await multi.take(QUEUE, positions)
    states = [(one.state, one.delivery_count) for one in group.first.messages(QUEUE)]
    assert states == [("ready", 0), ("ready", 0)]


async def test_what_is_down_is_neither_counted_nor_shown_and_nothing_is_purged_or_paused() -> None:
    group = Group()
    multi = await filled(group)
    assert (await multi.depth(QUEUE)).ready == 3
    await group.second.disconnect()
    assert (await multi.depth(QUEUE)).ready == 2
    assert [one.body for one in await seen(multi)] == [b"a", b"b"]
    for change in (multi.purge, multi.pause_queue, multi.resume_queue, multi.is_paused):
        with pytest.raises(NotConnectedError, match="second is disconnected"):
            await change(QUEUE)
    assert group.counts() == (2, 1)
    assert not await group.first.is_paused(QUEUE)
    assert ("connection", True) in [(one.subject, one.serious) for one in await multi.examine()]


async def test_a_purge_and_a_pause_are_for_all() -> None:
    group = Group()
    multi = await filled(group)
    await multi.pause_queue(QUEUE)
    assert await group.first.is_paused(QUEUE)
    assert await group.second.is_paused(QUEUE)
    await group.first.resume_queue(QUEUE)
    assert await multi.is_paused(QUEUE)
    await multi.resume_queue(QUEUE)
    assert not await multi.is_paused(QUEUE)
    assert await multi.purge(QUEUE) == 3
    assert group.counts() == (0, 0)


async def test_a_queue_that_one_of_them_has_is_there() -> None:
    group = Group()
    multi = await group.open()
    await group.second.apply_topology(Topology("shop", queues=["billing"]))
    await group.second.send([make_message(b"x", queue="shop.billing")])
    assert (await multi.depth("shop.billing")).ready == 1
    assert len([one async for one in multi.browse("shop.billing")]) == 1
    assert await multi.purge("shop.billing") == 1
    for ask in (multi.depth, multi.purge, multi.pause_queue):
        with pytest.raises(QueueNotFoundError):
            await ask("shop.unknown")
    with pytest.raises(QueueNotFoundError):
        await anext(multi.browse("shop.unknown"))


async def test_the_oldest_message_of_all_is_the_oldest() -> None:
    group = Group()
    multi = await group.open()
    assert tells_age(multi)
    assert await oldest_due(multi, QUEUE) is None
    await group.second.send([message("first")])
    stored = (await seen(multi))[0].stored_at
    assert stored is not None
    between = timedelta(seconds=0.1)
    await wait_for(lambda: datetime.now(UTC) - stored > between)
    await group.first.send([message("later")])
    oldest = await oldest_due(multi, QUEUE)
    assert oldest is not None
    assert abs(oldest - stored) < between, "and not that of the first transport"
    with pytest.raises(QueueNotFoundError):
        await oldest_due(multi, "shop.unknown")


async def test_dead_letters_of_all_are_redriven_where_they_are() -> None:
    group, handler = Group(), failing(*[ValueError("no")] * 2)
    async with make_app(group.multi, handler, retry=StandardRetryPolicy(max_attempts=1)) as app:
        await group.first.send([message(body("a"))])
        await group.second.send([message(body("b"))])
        await wait_for(lambda: handler.runs == 2)
        await app.wait_idle(5)
        assert await app.dead_letters.count() == 2
        assert (await app.dead_letters.redrive(Selection())).done == 2
        await wait_for(lambda: handler.runs == 4)
        await app.wait_idle(5)
        assert await app.dead_letters.count() == 0
        assert (group.first.completed(QUEUE), group.second.completed(QUEUE)) == (1, 1)


async def test_what_one_of_them_cannot_do_the_group_cannot() -> None:
    file, rabbit = MemoryTransport(name="file"), RabbitMQTransport(UNREACHABLE)
    group = MultiTransport([file, rabbit])
    assert not group.capabilities.pause
    assert group.browses_by_taking
    assert not tells_age(group)
    await group.connect()
    with pytest.raises(UnsupportedError, match="does not support pausing"):
        await group.pause_queue(QUEUE)
    await group.disconnect()


async def test_each_thing_is_logged_once_whoever_shares_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    multi, _ = beside_memory(reconnect_every=0.001)
    attempts = Heard()

    async def handle(job: ActiveJob[Any]) -> None: ...

    async with Queue("emails", provider=multi, hooks=attempts) as queue, Worker(queue, handle):
        await queue.add("send", 1)
        await wait_for(lambda: len(attempts.of("connection")) > 20)
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(said) == 2, said
    assert said[0].startswith("rabbitmq is failed: could not connect")
    assert said[1].startswith("rabbitmq failed, memory takes ")


# -- the other ways in -------------------------------------------------------------------------


async def test_every_way_in_that_sends_says_what_stored_a_message_and_what_fell_back() -> None:
    (multi, _), facts, heard = beside_memory(), Facts(), Heard()
    ran: list[object] = []

    async def handle(job: ActiveJob[Any]) -> None:
        ran.append(job.data)

    @channel("orders")
    class Orders:
        @consume("created")
        async def created(self, number: int) -> None:
            ran.append(number)

    queue = Queue("emails", provider=multi, hooks=[facts, heard])
    service = QueueService(
        Settings(QueueSettings(type="memory", url="memory://")),
        channels=[Orders],
        transport=multi,
        hooks=[facts, heard],
    )
    async with queue, service, Worker(queue, handle):
        await queue.add("send", 1)
        await service.send("orders", "created", 2)
        await wait_for(lambda: len(ran) == 2)
        with pytest.raises(QueueError, match="delivers each message to one"):
            await service.publish("orders", "created", 3)
    assert sorted(map(str, ran)) == ["1", "2"]
    assert [one.transport for one in facts.sent] == ["memory", "memory"]
    assert {(one.failed, one.next) for one in heard.of("fallback")} == {("rabbitmq", "memory")}


async def test_no_way_in_falls_back_into_a_memory_that_it_does_not_consume() -> None:
    multi, memory = beside_memory()
    service = QueueService(Settings(QueueSettings(type="memory", url="memory://")), transport=multi)
    async with Queue("emails", provider=multi) as queue, service:
        with pytest.raises(
            JobProviderError, match=r"nothing in this process consumes jobs\.emails"
        ):
            await queue.add("send", 1)
        with pytest.raises(JobsNotAddedError):
            await queue.add_many([("send", 1), ("send", 2)])
        with pytest.raises(QueueError, match=r"nothing in this process consumes orders\.created"):
            await service.send("orders", "created", 2)
        assert memory.messages("jobs.emails") == []
        with pytest.raises(QueueNotFoundError):
            memory.messages("orders.created")


async def test_a_job_in_a_group_has_no_options_of_one_broker() -> None:
    group = MultiTransport([MemoryTransport(name="a"), MemoryTransport(name="b")])
    ignored: list[str] = []
    queue = Queue("emails", provider=group, on_unsupported=lambda it: ignored.append(it.option))
    async with queue:
        await queue.add("send", 1, provider_options={"headers": {"tenant": "a"}})
    assert ignored == ["provider_options"]


async def double(number: int) -> int:
    return 2 * number


def serving(group: MultiTransport) -> Service:
    server = RpcServer(group, queue="maths")
    server.handler("double")(double)
    return server


def calling(group: MultiTransport) -> Service:
    return RpcClient(group, queue="maths")


def publishing(group: MultiTransport) -> Service:
    return Publisher(group, exchange="shop")


def listening(group: MultiTransport) -> Service:
    subscriber = Subscriber(group, exchange="shop", queue="mails")
    subscriber.on("orders.*")(double)
    return subscriber


@pytest.mark.parametrize("service", [serving, calling, publishing, listening])
async def test_what_a_group_cannot_carry_is_refused_at_the_start(
    service: Callable[[MultiTransport], Service],
) -> None:
    group = MultiTransport([MemoryTransport(name="a"), MemoryTransport(name="b")])
    made = service(group)
    with pytest.raises(UnsupportedError, match="multi"):
        await made.start()
    await group.disconnect()


async def test_a_shutdown_handles_what_waits_in_the_memory_of_a_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (multi, _), gate, handler = beside_memory(), asyncio.Event(), Handler()

    async def waits(envelope: Envelope[OrderPlaced], ctx: EventContext) -> None:
        await gate.wait()
        await handler(envelope, ctx)

    topology = Topology("shop", queues=[WorkQueue("events", concurrency=1)])
    async with make_app(multi, subscribed(waits), topology=topology) as app:
        await app.send_many([OrderPlaced(f"o-{number}") for number in range(4)])
        await app.send(OrderPlaced("tomorrow"), delay=86_400)
        assert not app.is_idle
        assert not await app.wait_idle(0)
        ending = asyncio.create_task(app.shutdown())
        await wait_for(lambda: app.state.status == "waiting-handlers")
        gate.set()
        await ending
    assert handler.runs == 4
    assert "1 messages still wait in shop.events, in memory" in caplog.text


# -- shutting down -----------------------------------------------------------------------------


async def test_a_group_shuts_down_although_one_never_came_up() -> None:
    down = FaultyTransport(name="down")
    down.connect_errors.extend(ConnectionFailedError("nobody there") for _ in range(1000))
    multi = MultiTransport([MemoryTransport(name="up"), down], reconnect_every=0.001)
    app: Matador = make_app(multi, Handler(), shutdown=Shutdown(5))
    async with asyncio.timeout(60):
        async with app:
            await wait_for(lambda: len(down.connect_errors) < 990)
    left = len(down.connect_errors)
    await asyncio.sleep(0.01)
    assert len(down.connect_errors) == left, "nobody tries on"


def body(order_id: str, subscriber: str = "handle") -> str:
    return (
        f'{{"id":"{order_id}","data":{{"order_id":"{order_id}","amount":1}},"docket":{{'
        f'"eventKey":"order.placed","targetSubscriber":"{subscriber}","attempts":1,'
        '"createdAt":"2026-11-15T19:02:37.435Z","importance":"should-investigate"}}'
    )
