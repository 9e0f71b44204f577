"""What the compliance suite does not see of the in-process transport."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.taking import take_stored

from matador.errors import (
    ConfigurationError,
    LeaseLostError,
    QueueNotFoundError,
    UnstorableError,
)
from matador.model.message import Complete, DeadLetter, Delivery, Message, Release, Retry
from matador.model.topology import Binding, DeadLetterQueue, DeadLetters, Topology, WorkQueue
from matador.testing import ManualClock, make_message, make_receipt, wait_for
from matador.transports.memory import MemoryTransport

QUEUE = "shop.events"


async def opened(
    transport: MemoryTransport,
    queue: WorkQueue | None = None,
    dead_letters: DeadLetters | None = None,
) -> MemoryTransport:
    await transport.connect()
    topology = Topology("shop", queues=[queue or "events"], dead_letters=dead_letters)
    assert list(await transport.apply_topology(topology)) == []
    return transport


async def send(transport: MemoryTransport, *bodies: str, delay: float = 0.0) -> None:
    messages = [make_message(body.encode(), queue=QUEUE, delay=delay) for body in bodies]
    assert list(await transport.send(messages)) == [None] * len(bodies)


async def receive(transport: MemoryTransport, limit: int = 10) -> Sequence[Delivery]:
    subscription = await transport.subscribe(QUEUE, prefetch=limit)
    async with asyncio.timeout(60):
        deliveries = await subscription.receive(limit)
    await subscription.close()
    return deliveries


# -- time: the clock that is given decides -----------------------------------------------------


async def test_a_delay_ends_when_the_clock_says_so(manual_clock: ManualClock) -> None:
    transport = await opened(MemoryTransport(clock=manual_clock))
    await send(transport, "later", delay=3600)
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    waiting = asyncio.create_task(subscription.receive(1))
    manual_clock.advance(3599)
    await asyncio.sleep(0)
    assert not waiting.done()
    manual_clock.advance(1)
    assert [delivery.body for delivery in await waiting] == [b"later"]


async def test_setting_the_time_of_day_changes_no_delay(manual_clock: ManualClock) -> None:
    transport = await opened(MemoryTransport(clock=manual_clock))
    await send(transport, "later", delay=60)
    manual_clock.set_back(3600)
    manual_clock.advance(60)
    assert [delivery.body for delivery in await receive(transport)] == [b"later"]


async def test_no_alarm_outlives_the_connection(manual_clock: ManualClock) -> None:
    transport = await opened(MemoryTransport(clock=manual_clock))
    await send(transport, "a", delay=10)
    await send(transport, "b", delay=5)
    assert manual_clock.alarms == 1, "one alarm for all"
    await transport.disconnect()
    assert manual_clock.alarms == 0
    manual_clock.advance(20)
    await transport.connect()
    assert [delivery.body for delivery in await receive(transport)] == [b"a", b"b"]


async def test_a_stored_message_knows_its_times(manual_clock: ManualClock) -> None:
    transport = await opened(MemoryTransport(clock=manual_clock))
    sent_at = manual_clock.now()
    await send(transport, "later", delay=60)
    manual_clock.advance(30)
    (stored,) = transport.messages(QUEUE)
    assert stored.stored_at == sent_at
    assert stored.due_at is not None
    assert (stored.due_at - sent_at).total_seconds() == 60
    assert stored.state == "delayed"


async def test_a_lease_ends_and_a_renewal_puts_it_off(manual_clock: ManualClock) -> None:
    transport = await opened(MemoryTransport(clock=manual_clock, lease=30))
    await send(transport, "a")
    (first,) = await receive(transport)
    manual_clock.advance(20)
    assert await transport.renew([first.receipt]) == [True]
    manual_clock.advance(20)
    assert [stored.state for stored in transport.messages(QUEUE)] == ["in-flight"]
    manual_clock.advance(10)
    assert [stored.state for stored in transport.messages(QUEUE)] == ["ready"]
    (outcome,) = await transport.settle([Complete(first.receipt)])
    assert isinstance(outcome, LeaseLostError)
    (second,) = await receive(transport)
    assert (second.receipt.delivery_count, second.receipt.redelivered) == (2, True)


async def test_dead_letters_expire_when_the_clock_says_so(manual_clock: ManualClock) -> None:
    letters = DeadLetters(undeliverable=DeadLetterQueue(ttl=60))
    transport = await opened(MemoryTransport(clock=manual_clock), dead_letters=letters)
    for body in ("a", "b"):
        await send(transport, body)
        (delivery,) = await receive(transport)
        await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "r")])
        manual_clock.advance(40)
    assert [letter.body for letter in transport.dead_letters(QUEUE)] == [b"b"]
    manual_clock.advance(20)
    assert transport.dead_letters(QUEUE) == []


async def test_retention_is_counted_from_the_end(manual_clock: ManualClock) -> None:
    transport = await opened(MemoryTransport(clock=manual_clock), WorkQueue("events", retention=60))
    await send(transport, "a", "b")
    first, second = await receive(transport)
    manual_clock.advance(100)
    await transport.settle([Complete(second.receipt)])
    manual_clock.advance(30)
    await transport.settle([Complete(first.receipt)])
    assert [stored.body for stored in await transport.read(QUEUE)] == [b"a", b"b"]
    manual_clock.advance(30)
    assert [stored.body for stored in await transport.read(QUEUE)] == [b"a"]


# -- receipts ----------------------------------------------------------------------------------


async def test_a_receipt_from_before_a_disconnect_is_refused() -> None:
    transport = await opened(MemoryTransport())
    await send(transport, "a")
    (stale,) = await receive(transport)
    await transport.disconnect()
    await transport.connect()
    (fresh,) = await receive(transport)
    for settlement in (
        Complete(stale.receipt),
        Release(stale.receipt),
        Retry(stale.receipt, make_message(queue=QUEUE)),
        DeadLetter(stale.receipt, "undeliverable", "r"),
    ):
        (outcome,) = await transport.settle([settlement])
        assert isinstance(outcome, LeaseLostError)
    assert await transport.settle([Complete(fresh.receipt)]) == [None]
    assert transport.messages(QUEUE) == []


async def test_a_receipt_of_another_transport_is_refused() -> None:
    transport = await opened(MemoryTransport())
    outcomes = await transport.settle(
        [Complete(make_receipt(queue=QUEUE)), Complete(make_receipt(queue="nobody.knows"))]
    )
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError, LeaseLostError]


async def test_a_keyed_retry_starts_counting_anew() -> None:
    transport = await opened(MemoryTransport())
    keyed = make_message(b"a", queue=QUEUE, ordering_key="k")
    await transport.send([keyed])
    await receive(transport)
    await transport.disconnect()
    await transport.connect()
    (second,) = await receive(transport)
    assert second.receipt.delivery_count == 2
    await transport.settle([Retry(second.receipt, keyed)])
    (retried,) = await receive(transport)
    assert (retried.receipt.delivery_count, retried.receipt.redelivered) == (1, False)


# -- receivers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_who_is_woken_and_leaves_passes_the_message_on(leave: str) -> None:
    transport = await opened(MemoryTransport())
    first = await transport.subscribe(QUEUE, prefetch=1)
    second = await transport.subscribe(QUEUE, prefetch=1)
    leaving = asyncio.create_task(first.receive(1))
    await asyncio.sleep(0)
    staying = asyncio.create_task(second.receive(1))
    for _ in range(3):
        await asyncio.sleep(0)
    await send(transport, "a")  # wakes the first, which does not run before it leaves
    if leave == "cancel":
        leaving.cancel()
    else:
        await first.close()
    async with asyncio.timeout(60):
        assert [delivery.body for delivery in await staying] == [b"a"]
    (left,) = await asyncio.gather(leaving, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError) or left == ()


async def test_waiting_in_vain_leaves_nothing_behind() -> None:
    transport = await opened(MemoryTransport())
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    for _ in range(5):
        waiting = asyncio.create_task(subscription.receive(1))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert not transport._store.queue(QUEUE).waiters


async def test_a_busy_receiver_lets_others_run() -> None:
    transport = await opened(MemoryTransport())
    await send(transport, *[str(number) for number in range(100)])
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    for _ in range(100):
        await subscription.receive(1)
    running.cancel()
    assert turns >= 99


async def test_a_limit_below_one_is_refused() -> None:
    transport = await opened(MemoryTransport())
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    with pytest.raises(ConfigurationError, match="limit"):
        await subscription.receive(0)


# -- inspection --------------------------------------------------------------------------------


async def test_it_can_be_inspected_connected_or_not() -> None:
    transport = await opened(MemoryTransport())
    await send(transport, "done", "dead", "held", "waiting")
    done, dead, _ = await receive(transport, 3)
    await transport.settle(
        [Complete(done.receipt), DeadLetter(dead.receipt, "unhandled", "nobody knows it")]
    )
    assert transport.completed(QUEUE) == 1
    assert [(stored.body, stored.state) for stored in transport.messages(QUEUE)] == [
        (b"held", "in-flight"),
        (b"waiting", "ready"),
    ]
    (letter,) = transport.dead_letters(QUEUE, "unhandled")
    assert letter.reason == "nobody knows it"
    await transport.disconnect()
    assert [stored.state for stored in transport.messages(QUEUE)] == ["ready", "ready"]
    for look in (transport.messages, transport.dead_letters, transport.completed):
        with pytest.raises(QueueNotFoundError):
            look("shop.unknown")


async def test_clear_forgets_all_but_the_queues() -> None:
    transport = await opened(MemoryTransport())
    await send(transport, "held", "waiting")
    await send(transport, "delayed", delay=0.01)
    (held, _) = await receive(transport)
    transport.clear()
    assert transport.messages(QUEUE) == []
    (outcome,) = await transport.settle([Complete(held.receipt)])
    assert isinstance(outcome, LeaseLostError)
    assert (await transport.depth(QUEUE)).total == 0
    await send(transport, "new")
    assert [delivery.body for delivery in await receive(transport)] == [b"new"]
    assert transport.completed(QUEUE) == 0


async def test_browsing_goes_on_while_messages_come_and_go() -> None:
    transport = await opened(MemoryTransport())
    await send(transport, *[str(number) for number in range(1200)])
    seen: list[bytes] = []
    async for stored in transport.browse(QUEUE):
        if len(seen) == 10:
            await transport.purge(QUEUE)
            await send(transport, "new")
        seen.append(stored.body)
    assert len(seen) == len(set(seen))
    assert seen[-1] == b"new"


async def test_a_position_that_is_none_is_refused() -> None:
    transport = await opened(MemoryTransport())
    with pytest.raises(ConfigurationError, match="position"):
        await transport.read(QUEUE, after="yesterday")


def test_an_unknown_ability_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'delays'"):
        MemoryTransport(without=["delay"])  # pyright: ignore[reportArgumentType] - the error tested


async def test_a_held_dead_letter_is_not_dropped_for_a_new_one() -> None:
    letters = DeadLetters(undeliverable=DeadLetterQueue(max_length=1))
    transport = await opened(MemoryTransport(), dead_letters=letters)
    await send(transport, "a", "b")
    first, second = await receive(transport)
    await transport.settle([DeadLetter(first.receipt, "undeliverable", "r")])
    (seen,) = transport.dead_letters(QUEUE)
    (held,) = await take_stored(transport, f"{QUEUE}.undeliverable", [seen.position])
    await transport.settle([DeadLetter(second.receipt, "undeliverable", "r")])
    assert await transport.settle([Complete(held.receipt)]) == [None]


async def test_it_can_move_to_another_loop() -> None:
    transport = MemoryTransport()

    async def use() -> Sequence[Delivery]:
        await opened(transport)
        await send(transport, "a", delay=0.01)
        deliveries = await receive(transport)
        await transport.settle([Complete(delivery.receipt) for delivery in deliveries])
        await transport.disconnect()
        return deliveries

    for _ in range(2):
        assert len(await asyncio.to_thread(asyncio.run, use())) == 1
    await wait_for(lambda: transport.completed(QUEUE) == 2)


ODD: list[dict[str, Any]] = [
    {"body": None},
    {"body": "text"},
    {"headers": None},
    {"headers": [1]},
    {"delay": None},
    {"delay": "soon"},
    {"delay": float("nan")},
    {"priority": "high"},
    {"priority": 0.5},
    {"ordering_key": b"bytes"},
    {"ordering_key": []},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
async def test_parts_of_a_wrong_type_are_refused_and_break_nothing(odd: dict[str, Any]) -> None:
    transport = await opened(MemoryTransport(), WorkQueue("events", priorities=True))
    good = make_message(b"good", queue=QUEUE, ordering_key="k", priority=1)
    given: dict[str, Any] = {"id": "m", "queue": QUEUE, "body": b"", **odd}
    message = Message(**given)
    first, refused, last = await transport.send([good, message, good])
    assert (first, last) == (None, None)
    assert isinstance(refused, UnstorableError)
    (delivery,) = await receive(transport)
    for settlement in (
        Retry(delivery.receipt, message),
        DeadLetter(delivery.receipt, "undeliverable", "r", message),
    ):
        (outcome,) = await transport.settle([settlement])
        assert isinstance(outcome, UnstorableError)
    bare = DeadLetter(delivery.receipt, "undeliverable", "r", bare=True)
    assert await transport.settle([bare]) == [None]
    assert len(transport.dead_letters(QUEUE)) == 1
    assert len(await receive(transport)) == 1
    assert (await transport.depth(QUEUE)).total == 1


async def test_a_purge_leaves_what_is_finished() -> None:
    transport = await opened(MemoryTransport(), WorkQueue("events", retention=60))
    await send(transport, "done", "ready")
    (delivery,) = await receive(transport, 1)
    await transport.settle([Complete(delivery.receipt)])
    assert await transport.purge(QUEUE) == 1
    assert [one.body for one in await transport.read(QUEUE)] == [b"done"]


# -- temporary queues ---------------------------------------------------------------------------


async def test_a_temporary_queue_lives_as_long_as_the_clock_says(
    manual_clock: ManualClock,
) -> None:
    transport = MemoryTransport(clock=manual_clock)
    await transport.connect()
    topology = Topology(
        "t",
        queues=[WorkQueue("mine", expires=60)],
        exchanges=["e"],
        bindings=[Binding("e", "mine")],
    )
    await transport.apply_topology(topology)
    manual_clock.advance(59)
    assert list(await transport.publish("e", [make_message()])) == [1]
    subscription = await transport.subscribe("t.mine", prefetch=1)
    manual_clock.advance(3600)
    assert list(await transport.publish("e", [make_message()])) == [1]
    await subscription.close()
    manual_clock.advance(59)
    await transport.apply_topology(topology)  # that is a use, too
    manual_clock.advance(59)
    assert list(await transport.publish("e", [make_message()])) == [1]
    manual_clock.advance(1)
    assert list(await transport.publish("e", [make_message()])) == [0]
    with pytest.raises(QueueNotFoundError):
        transport.messages("t.mine")


async def test_whoever_waits_at_a_deleted_queue_is_told() -> None:
    transport = MemoryTransport()
    await transport.connect()
    await transport.apply_topology(Topology("t", queues=["q"]))
    subscription = await transport.subscribe("t.q", prefetch=1)
    receiving = asyncio.create_task(subscription.receive(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await transport.delete_queue("t.q")
    with pytest.raises(QueueNotFoundError):
        await receiving
    await transport.open_jobs("jobs")
    with pytest.raises(ConfigurationError, match="jobs"):
        await transport.delete_queue("jobs")
