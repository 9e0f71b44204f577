"""A fleet on Node pauses, resumes, schedules, retries on our queues: neither breaks the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.node import BULLMQ_5, Node
from tests.support.redis import OwnServer
from tests.support.shop import Handler, OrderPlaced, failing, make_app
from tests.support.taking import take_stored

from matador.model.message import Complete, DeadLetter, Delivery, Release, Retry
from matador.model.topology import WorkQueue
from matador.testing.compliance.bench import Bench, bodies, collect
from matador.testing.wait import wait_for
from matador.transports.base import Browsing, Measuring
from matador.transports.bullmq import BullMQTransport
from matador.transports.bullmq.jobs import BullJob

if TYPE_CHECKING:
    from tests.transports.bullmq.conftest import Open

pytestmark = pytest.mark.broker

QUEUE = "shop.events"


async def received(bench: Bench, count: int) -> list[Delivery]:
    """So many deliveries, completed."""
    subscription = await bench.subscribe()
    found: list[Delivery] = []
    for _ in range(count):
        found.append(await bench.receive_one(subscription))
        await bench.settle(Complete(found[-1].receipt))
    await subscription.close()
    return found


# -- pausing ---------------------------------------------------------------------------------------


async def test_what_is_sent_while_a_queue_is_paused_is_there_when_it_resumes(
    open_bench: Open, fleet: Node
) -> None:
    bench = await open_bench()
    await fleet.ask("add", QUEUE, name="n", data="before")
    await bench.send(bench.message("ours before"))
    await fleet.ask("pause", QUEUE)
    await bench.send(bench.message("ours"))
    await fleet.ask("add", QUEUE, name="n", data="theirs")
    await bench.send(bench.message("ours again"))
    assert isinstance(bench.transport, Measuring)
    assert (await bench.transport.depth(QUEUE)).ready == 5
    assert len(await fleet.ask("waiting", QUEUE)) == 5
    await fleet.ask("resume", QUEUE)
    found = bodies(await received(bench, 5))
    assert found == ['"before"', "ours before", "ours", '"theirs"', "ours again"]


async def test_nothing_is_taken_while_a_queue_is_paused(open_bench: Open, fleet: Node) -> None:
    bench = await open_bench()
    subscription = await bench.subscribe()
    await fleet.ask("pause", QUEUE)
    await bench.send("a", bench.message("b", priority=3), bench.message("c", delay=0.01))
    await bench.nothing_comes(subscription)
    await fleet.ask("resume", QUEUE)
    found = [await bench.receive_one(subscription) for _ in range(3)]
    assert sorted(bodies(found)) == ["a", "b", "c"]


async def test_a_pause_of_either_side_is_seen_and_ended_by_the_other(
    open_bench: Open, fleet: Node
) -> None:
    bench = await open_bench()
    transport: Any = bench.transport
    subscription = await bench.subscribe()
    await fleet.ask("pause", QUEUE)
    assert await transport.is_paused(QUEUE)
    await bench.send("a")
    await bench.nothing_comes(subscription)
    await transport.resume_queue(QUEUE)
    assert bodies([await bench.receive_one(subscription)]) == ["a"]
    await transport.pause_queue(QUEUE)
    await fleet.ask("add", QUEUE, name="n", data="theirs")
    await bench.send("b")
    await bench.nothing_comes(subscription)
    assert (await fleet.ask("isPaused", QUEUE)) is True
    await fleet.ask("resume", QUEUE)
    assert not await transport.is_paused(QUEUE)
    found = [await bench.receive_one(subscription) for _ in range(2)]
    assert bodies(found) == ['"theirs"', "b"]


async def test_what_comes_back_to_a_paused_queue_is_there_when_it_resumes(
    open_bench: Open, fleet: Node, client: Any, prefix: str
) -> None:
    bench, hasty = await open_bench(), await open_bench(lease=2)
    subscription, checking = await bench.subscribe(), await hasty.subscribe()
    await fleet.ask("counts", QUEUE)  # it is up
    await bench.send("released", "retried", "retried later")
    held = [await bench.receive_one(subscription) for _ in range(3)]
    released, retried, later = [delivery.receipt for delivery in held]
    await bench.send("held by one who vanishes")
    held.append(await hasty.receive_one(checking))
    await bench.send(bench.message("delayed", delay=0.05))
    await fleet.ask("pause", QUEUE)
    await bench.settle(
        Release(released),
        Retry(retried, bench.message("retried")),
        Retry(later, bench.message("retried later", delay=0.05)),
    )
    # Nobody renews the last one: our own check gives it back while the queue is paused.
    key = f"{prefix}:{QUEUE}"

    async def all_back() -> bool:
        return await client.llen(f"{key}:paused") == 5 and not await client.exists(f"{key}:wait")

    asking = asyncio.create_task(checking.receive(1))  # and gets nothing
    await wait_for(all_back, message="all five to wait for the queue to resume")
    await checking.close()
    assert not await asking
    await fleet.ask("resume", QUEUE)
    found = [await bench.receive_one(subscription) for _ in range(5)]
    assert sorted(bodies(found)) == sorted([*bodies(held), "delayed"])


async def test_a_paused_queue_can_be_looked_at_and_emptied(open_bench: Open, fleet: Node) -> None:
    bench = await open_bench()
    transport = bench.transport
    assert isinstance(transport, Browsing)
    await fleet.ask("pause", QUEUE)
    await bench.send("a", "b")
    first, second = await collect(transport.browse(QUEUE))
    (taken,) = await take_stored(transport, QUEUE, [first.position])
    assert bodies([taken]) == ["a"]
    await bench.settle(Release(taken.receipt))
    assert [seen.body for seen in await collect(transport.browse(QUEUE))] == [b"a", b"b"]
    (gone,) = await take_stored(transport, QUEUE, [second.position])
    await bench.settle(Complete(gone.receipt))
    await fleet.ask("resume", QUEUE)
    assert bodies(await received(bench, 1)) == ["a"]


# -- schedulers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [{"every": 100}, {"pattern": "* * * * * *"}], ids=str)
async def test_a_scheduler_goes_on_when_we_take_its_jobs(
    open_bench: Open, fleet: Node, repeat: dict[str, Any]
) -> None:
    bench = await open_bench()
    template = {"name": "tick", "data": {"of": "theirs"}}
    await fleet.ask("schedule", QUEUE, id="clock", repeat=repeat, template=template)
    for delivery in await received(bench, 3):
        assert delivery.body == b'{"of":"theirs"}'
        assert delivery.headers["x-bullmq-name"] == "tick"
        assert delivery.problem is None
    (waiting,) = await fleet.ask("waiting", QUEUE)
    assert (waiting["name"], waiting["data"]) == ("tick", {"of": "theirs"})
    await fleet.ask("work", QUEUE)
    assert (await fleet.next("job"))["data"] == {"of": "theirs"}


async def test_a_scheduler_ends_at_its_limit_and_when_it_is_removed(
    open_bench: Open, fleet: Node
) -> None:
    bench = await open_bench()
    template = {"name": "tick", "data": 1}
    limited: dict[str, Any] = {"every": 50, "limit": 2}
    await fleet.ask("schedule", QUEUE, id="twice", repeat=limited, template=template)
    await received(bench, 2)
    assert await fleet.ask("waiting", QUEUE) == []
    await fleet.ask("schedule", QUEUE, id="clock", repeat={"every": 50}, template=template)
    await received(bench, 1)
    await fleet.ask("unschedule", QUEUE, id="clock")
    subscription = await bench.subscribe()
    await bench.nothing_comes(subscription)
    assert await fleet.ask("waiting", QUEUE) == []


@pytest.mark.parametrize("how", ["redrive", "purge"])
async def test_the_last_job_of_a_scheduler_can_be_a_dead_letter_like_any_other(
    open_bench: Open, node: Node, how: str
) -> None:
    bench = await open_bench()
    transport = bench.transport
    assert isinstance(transport, BullMQTransport)
    last: dict[str, Any] = {"every": 60_000, "limit": 1}
    template = {"name": "tick", "data": 1}
    await node.ask("schedule", QUEUE, id="once", repeat=last, template=template)
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
    if how == "purge":
        assert await transport.purge(bench.dead_letters()) == 1
    else:
        (seen,) = await collect(transport.browse(bench.dead_letters()))
        (taken,) = await take_stored(transport, bench.dead_letters(), [seen.position])
        await bench.settle(Retry(taken.receipt, bench.message("again", id=seen.id)))
        assert bodies([await bench.receive_one(subscription)]) == ["again"]
    assert await bench.count(bench.dead_letters()) == 0


async def test_a_job_that_is_delivered_again_adds_no_second_iteration(
    open_bench: Open, fleet: Node
) -> None:
    bench = await open_bench(lease=0.3)
    template = {"name": "tick", "data": 1}
    await fleet.ask("schedule", QUEUE, id="clock", repeat={"every": 3_600_000}, template=template)
    subscription = await bench.subscribe()
    first = await bench.receive_one(subscription)
    again = await bench.receive_one(subscription)
    assert again.receipt.delivery_count == first.receipt.delivery_count + 1
    assert len(await fleet.ask("waiting", QUEUE)) == 1


async def test_a_repeated_job_of_bullmq_5_goes_on_with_its_data(
    open_bench: Open, server: OwnServer, prefix: str
) -> None:
    bench = await open_bench()
    async with Node(server.port, prefix, BULLMQ_5) as node:
        options = {"repeat": {"every": 100}}
        await node.ask("add", QUEUE, name="tick", data={"of": "theirs"}, options=options)
        assert set(bodies(await received(bench, 3))) == {'{"of":"theirs"}'}
        await node.ask("work", QUEUE)
        assert (await node.next("job"))["data"] == {"of": "theirs"}


async def test_a_scheduler_that_makes_no_sense_stops_nobody(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    key = f"{prefix}:{QUEUE}"
    for number, repeat in enumerate(['"x"', '{"pattern":"never"}', '{"every":"a","tz":7}', "{}"]):
        job = {"name": "n", "data": "1", "opts": f'{{"repeat":{repeat}}}', "rjk": "clock"}
        await client.hset(f"{key}:repeat:clock:{number}", mapping=job)
        await client.lpush(f"{key}:wait", f"repeat:clock:{number}")
    await client.zadd(f"{key}:repeat", {"clock": 3})
    await bench.send("neighbour")
    assert bodies(await received(bench, 5)) == ["1", "1", "1", "1", "neighbour"]


# -- attempts and what becomes of finished jobs ----------------------------------------------------


async def test_attempts_count_whoever_made_them(
    open_bench: Open, fleet: Node, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    transport = bench.transport
    assert isinstance(transport, Browsing)
    key = f"{prefix}:{QUEUE}:n-1"

    async def elsewhere() -> int:
        return BullJob("n-1", await client.hgetall(key)).attempts_elsewhere

    options = {"jobId": "n-1", "attempts": 9, "backoff": {"type": "fixed", "delay": 60_000}}
    await fleet.ask("add", QUEUE, name="n", data=1, options=options)
    await fleet.ask("work", QUEUE, failures=1)
    await fleet.next("job")
    await fleet.ask("stop", QUEUE)
    assert await elsewhere() == 1
    for made in (2, 3):
        (seen,) = await collect(transport.browse(QUEUE))
        (taken,) = await take_stored(transport, QUEUE, [seen.position])
        await bench.settle(Retry(taken.receipt, bench.message("{}", id="n-1", delay=60)))
        assert (await fleet.ask("job", QUEUE, id="n-1"))["attemptsMade"] == made
        assert await elsewhere() == 0, "the message counts what was made until then"
    (seen,) = await collect(transport.browse(QUEUE))
    (taken,) = await take_stored(transport, QUEUE, [seen.position])
    await bench.settle(DeadLetter(taken.receipt, "undeliverable", "r"))
    assert (await fleet.ask("job", QUEUE, id="n-1"))["attemptsMade"] == 4
    assert await elsewhere() == 0


async def test_a_job_that_node_tried_is_not_tried_more_often_in_all(
    bullmq_url: str, fleet: Node
) -> None:
    async with make_app(bullmq_url, Handler(), consume_from=[]) as sender:
        await sender.send(OrderPlaced("1"))
    assert (await fleet.ask("counts", QUEUE))["waiting"] == 1
    await fleet.ask("work", QUEUE, failures=9)
    for _ in range(2):  # the second a second later, as our jobs ask for
        await fleet.next("job")
    await fleet.ask("stop", QUEUE)
    handler = failing(*[ValueError("not here either")] * 9)
    async with make_app(bullmq_url, handler):

        async def failed() -> bool:
            return (await fleet.ask("counts", QUEUE))["failed"] == 1

        await wait_for(failed, timeout=15, message="the dead letter")
    assert [context.attempt for context in handler.contexts] == [3]


KEPT: list[tuple[dict[str, Any], int]] = [
    ({}, 0),
    ({"removeOnComplete": True}, 0),
    ({"removeOnComplete": False}, 3),
    ({"removeOnComplete": 2}, 2),
    ({"removeOnComplete": {"count": 1}}, 1),
    ({"removeOnComplete": {"age": 3600}}, 3),
    ({"removeOnComplete": "nonsense"}, 3),
]


@pytest.mark.parametrize(("options", "kept"), KEPT, ids=str)
async def test_a_finished_job_is_kept_as_whoever_added_it_wants(
    open_bench: Open, node: Node, options: dict[str, Any], kept: int
) -> None:
    bench = await open_bench()
    for number in range(3):
        await node.ask("add", QUEUE, name="n", data=number, options=options)
    await received(bench, 3)
    counts = await node.ask("counts", QUEUE)
    assert (counts["completed"], counts["active"]) == (kept, 0)


@pytest.mark.parametrize("asked", [True, 0, 1, {"age": 0}], ids=str)
async def test_a_dead_letter_is_never_deleted(open_bench: Open, node: Node, asked: object) -> None:
    bench = await open_bench()
    for number in range(2):
        options = {"removeOnFail": asked}
        await node.ask("add", QUEUE, name="n", data=number, options=options)
    subscription = await bench.subscribe()
    for _ in range(2):
        delivery = await bench.receive_one(subscription)
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
    assert await bench.count(bench.dead_letters()) == 2


# -- flows -----------------------------------------------------------------------------------------


async def test_a_parent_follows_when_we_finish_its_children(open_bench: Open, fleet: Node) -> None:
    bench = await open_bench()
    children = [{"name": "child", "data": number} for number in range(2)]
    parent = {"name": "parent", "data": "p"}
    id_ = await fleet.ask("flow", QUEUE, parent=parent, children=children)
    assert sorted(bodies(await received(bench, 2))) == ["0", "1"]
    assert list((await fleet.ask("children", QUEUE, id=id_)).values()) == [None, None]
    assert bodies(await received(bench, 1)) == ['"p"']


async def test_a_parent_fails_with_its_child(open_bench: Open, fleet: Node) -> None:
    bench = await open_bench()
    child = {"name": "child", "data": 1, "opts": {"failParentOnFailure": True}}
    parent = {"name": "parent", "data": "p"}
    id_ = await fleet.ask("flow", QUEUE, parent=parent, children=[child])
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "child says no"))
    failed = await bench.receive_one(subscription)
    assert failed.problem is not None
    assert "failed by BullMQ before it ran: child" in failed.problem
    await bench.settle(DeadLetter(failed.receipt, "undeliverable", failed.problem))
    assert (await fleet.ask("job", QUEUE, id=id_))["state"] == "failed"
    assert await bench.count(bench.dead_letters()) == 2


async def test_a_parent_that_is_completed_too_early_is_a_dead_letter(
    open_bench: Open, fleet: Node, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    await fleet.ask("add", QUEUE, name="parent", data=1, options={"jobId": "p-1"})
    await client.sadd(f"{prefix}:{QUEUE}:p-1:dependencies", f"{prefix}:{QUEUE}:c-1")
    (delivery,) = [await bench.receive_one(await bench.subscribe())]
    await bench.settle(Complete(delivery.receipt))
    (letter,) = await bench.drain(bench.dead_letters(), 1)
    assert letter.headers["x-matador-dead-letter-reason"] == "it has children that are not finished"


async def test_priorities_and_a_pause_go_together(open_bench: Open, fleet: Node) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    await fleet.ask("pause", QUEUE)
    await bench.send(bench.message("low", priority=1), bench.message("high", priority=9))
    await fleet.ask("resume", QUEUE)
    assert bodies(await received(bench, 2)) == ["high", "low"]
