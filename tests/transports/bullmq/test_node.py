"""BullMQ on Node and this transport work on the same jobs, in both directions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.support.node import Node
from tests.support.shop import Handler, OrderPlaced, failing, make_app
from tests.support.taking import take_stored

from matador import DontRetry
from matador.model.message import REASON_HEADER, DeadLetter, Retry
from matador.model.topology import WorkQueue
from matador.testing.compliance.bench import bodies, collect
from matador.testing.wait import wait_for
from matador.transports.bullmq import BullMQTransport

if TYPE_CHECKING:
    from tests.transports.bullmq.conftest import Open

pytestmark = pytest.mark.broker

QUEUE = "shop.events"


async def test_a_node_worker_processes_what_was_sent(open_bench: Open, node: Node) -> None:
    bench = await open_bench()
    await bench.send(bench.message('{"total": 12}', id="m-1", headers={"kind": "order"}))
    assert (await node.ask("job", QUEUE, id="m-1"))["state"] == "waiting"
    await node.ask("work", QUEUE)
    job = await node.next("job")
    assert job["id"] == "m-1"
    assert job["data"]["_jobData"] == {"total": 12}
    assert job["data"]["_metadata"] == {"id": "m-1", "headers": {"kind": "order"}}

    async def gone() -> bool:
        return await bench.count(QUEUE) == 0

    await wait_for(gone, message="the job to be removed")


async def test_what_a_node_worker_fails_is_tried_again(open_bench: Open, node: Node) -> None:
    bench = await open_bench()
    await bench.send(bench.message("{}", id="m-1"))
    await node.ask("work", QUEUE, failures=1)
    assert (await node.next("job"))["attempts"] == 0
    assert (await node.next("job"))["attempts"] == 1


async def test_what_a_node_worker_fails_for_good_is_a_dead_letter(
    open_bench: Open, node: Node
) -> None:
    bench = await open_bench()
    await node.ask("add", QUEUE, name="order", data={"a": 1}, options={"jobId": "n-1"})
    await node.ask("work", QUEUE, failures=1)
    await node.next("job")

    async def failed() -> bool:
        return await bench.count(bench.dead_letters()) == 1

    await wait_for(failed, message="the job to fail")
    assert await bench.count(bench.dead_letters("unhandled")) == 0
    (letter,) = await bench.drain(bench.dead_letters(), 1)
    assert letter.body == b'{"a":1}'
    assert letter.headers[REASON_HEADER] == "Node says no"


async def test_jobs_that_node_adds_are_received(open_bench: Open, node: Node) -> None:
    bench = await open_bench()
    wrapped = {"_jobData": {"a": 1}, "_metadata": {"id": "n-2", "headers": {"h": "x"}}}
    await node.ask("add", QUEUE, name="bare", data={"plain": True}, options={"attempts": 3})
    await node.ask("add", QUEUE, name="wrapped", data=wrapped)
    bare, other = await bench.drain(QUEUE, 2)
    assert (bare.body, dict(bare.headers)) == (b'{"plain":true}', {"x-bullmq-name": "bare"})
    assert bare.receipt.delivery_count == 1
    assert other.body == b'{"a":1}'
    assert other.headers["h"] == "x"
    assert (await node.ask("counts", QUEUE))["failed"] == 0


async def test_delays_are_kept_in_both_directions(open_bench: Open, node: Node) -> None:
    bench = await open_bench()
    added = time.monotonic()
    await node.ask("add", QUEUE, name="later", data={"n": 1}, options={"delay": 300})
    subscription = await bench.subscribe()
    assert bodies([await bench.receive_one(subscription)]) == ['{"n":1}']
    assert time.monotonic() - added >= 0.29
    await bench.send(bench.message("{}", id="m-1", delay=60))
    job = await node.ask("job", QUEUE, id="m-1")
    assert (job["state"], job["delay"]) == ("delayed", 60_000)


async def test_a_node_worker_takes_higher_priorities_first(open_bench: Open, node: Node) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    sent = [("none", None), ("low", 1), ("high", 9)]
    await bench.send(*[bench.message("{}", id=name, priority=number) for name, number in sent])
    await node.ask("work", QUEUE)
    assert [(await node.next("job"))["id"] for _ in sent] == ["high", "low", "none"]


async def test_priorities_that_node_gives_are_kept(open_bench: Open, node: Node) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    await bench.send(bench.message('"ours"', priority=5))
    for number in (20, 10):
        await node.ask("add", QUEUE, name="n", data=number, options={"priority": number})
    first, second, third = await bench.drain(QUEUE, 3)
    assert bodies([first, second, third]) == ["10", "20", '"ours"']
    assert first.receipt.priority is not None
    assert second.receipt.priority is not None
    assert first.receipt.priority > second.receipt.priority > 5


async def test_a_dead_letter_is_a_failed_job_that_a_dashboard_retries(
    open_bench: Open, node: Node
) -> None:
    bench = await open_bench()
    await bench.send(bench.message("{}", id="m-1"))
    delivery = await bench.receive_one(await bench.subscribe())
    last = bench.message('{"tries": 3}', id="m-1")
    await bench.settle(DeadLetter(delivery.receipt, "unhandled", "nobody knows it", last))
    job = await node.ask("job", QUEUE, id="m-1")
    assert (job["state"], job["failedReason"]) == ("failed", "nobody knows it")
    assert job["data"]["_jobData"] == {"tries": 3}
    assert await bench.count(bench.dead_letters("unhandled")) == 1
    await node.ask("retry", QUEUE, id="m-1")
    assert bodies(await bench.drain(QUEUE, 1)) == ['{"tries": 3}']


async def test_a_redriven_dead_letter_waits_as_a_job_again(open_bench: Open, node: Node) -> None:
    bench = await open_bench()
    transport = bench.transport
    assert isinstance(transport, BullMQTransport)
    await bench.send(bench.message("{}", id="m-1"))
    delivery = await bench.receive_one(await bench.subscribe())
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
    (seen,) = await collect(transport.browse(bench.dead_letters()))
    (taken,) = await take_stored(transport, bench.dead_letters(), [seen.position])
    await bench.settle(Retry(taken.receipt, bench.message('{"again": 1}', id="m-1")))
    job = await node.ask("job", QUEUE, id="m-1")
    assert (job["state"], job["data"]["_jobData"]) == ("waiting", {"again": 1})
    assert (await node.ask("counts", QUEUE))["failed"] == 0


async def test_an_event_that_node_adds_is_handled_by_a_subscriber(
    bullmq_url: str, node: Node
) -> None:
    async with make_app(bullmq_url, Handler(), consume_from=[]) as sender:
        await sender.send(OrderPlaced("1", 5))
    await node.ask("work", QUEUE)
    envelope = (await node.next("job"))["data"]["_jobData"]
    assert envelope["data"] == {"order_id": "1", "amount": 5}

    handler, other = Handler(), failing(DontRetry("not this one"))
    async with make_app(bullmq_url, handler):
        await node.ask("stop", QUEUE)
        envelope["data"]["order_id"] = "2"
        await node.ask("add", QUEUE, name="order.placed", data=envelope)
        await wait_for(lambda: handler.data == [OrderPlaced("2", 5)], message="the event of Node")
    async with make_app(bullmq_url, other) as app:
        envelope["data"]["order_id"] = "3"
        wrapped: dict[str, object] = {"_jobData": envelope, "_metadata": {}}
        await node.ask("add", QUEUE, name="x", data=wrapped, options={"jobId": "n-3"})

        async def failed() -> bool:
            return (await node.ask("counts", QUEUE))["failed"] == 1

        await wait_for(failed, timeout=10, message="the dead letter")
        assert "not this one" in (await node.ask("job", QUEUE, id="n-3"))["failedReason"]
        assert isinstance(app.transport, BullMQTransport)
