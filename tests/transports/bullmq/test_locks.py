"""Locks: only who holds a job settles it, and it is held for as long as it is renewed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError
from tests.support.redis import OwnServer
from tests.support.taking import take_stored

from matador.errors import LeaseLostError, TransportError, UnstorableError
from matador.model.message import (
    Complete,
    DeadLetter,
    Receipt,
    Release,
    Retry,
    Settlement,
)
from matador.model.topology import WorkQueue
from matador.testing.compliance.bench import collect
from matador.transports.base import Browsing, Leasing, Measuring
from matador.transports.bullmq import BullMQTransport
from matador.transports.bullmq.jobs import BullJob
from matador.transports.bullmq.schedules import continue_schedulers
from matador.transports.bullmq.settle import refused

if TYPE_CHECKING:
    from tests.transports.bullmq.conftest import Open

pytestmark = pytest.mark.broker

QUEUE = "shop.events"
FORMS = ["complete", "release", "retry", "later", "elsewhere", "raw", "bare", "full"]


@pytest.mark.parametrize("form", FORMS)
async def test_who_lost_a_job_cannot_settle_it(
    open_bench: Open, client: Any, prefix: str, form: str
) -> None:
    bench = await open_bench("events", "slow")
    await bench.send(bench.message("a", id="m-1"))
    receipt = (await bench.receive_one(await bench.subscribe())).receipt
    job = f"{prefix}:{QUEUE}:m-1"
    await client.set(f"{job}:lock", "of another worker")
    before = await client.hgetall(job)
    message = bench.message("b", id="m-1")
    forms: dict[str, Settlement] = {
        "complete": Complete(receipt),
        "release": Release(receipt),
        "retry": Retry(receipt, message),
        "later": Retry(receipt, bench.message("b", id="m-1", delay=1)),
        "elsewhere": Retry(receipt, bench.message("b", id="m-1", queue="slow")),
        "raw": DeadLetter(receipt, "undeliverable", "r"),
        "bare": DeadLetter(receipt, "undeliverable", "r", bare=True),
        "full": DeadLetter(receipt, "undeliverable", "r", message),
    }
    (outcome,) = await bench.transport.settle([forms[form]])
    assert isinstance(outcome, LeaseLostError)
    assert await client.get(f"{job}:lock") == b"of another worker"
    assert await client.lrange(f"{prefix}:{QUEUE}:active", 0, -1) == [b"m-1"]
    assert await client.hgetall(job) == before
    assert await bench.count(bench.name("slow")) == 0


async def test_a_parent_with_children_cannot_go_elsewhere(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench("events", "slow")
    await bench.send(bench.message("a", id="m-1"))
    receipt = (await bench.receive_one(await bench.subscribe())).receipt
    await client.sadd(f"{prefix}:{QUEUE}:m-1:dependencies", "a child")
    moved = Retry(receipt, bench.message("b", id="m-1", queue="slow"))
    (outcome,) = await bench.transport.settle([moved])
    assert outcome is not None
    assert await client.lrange(f"{prefix}:{QUEUE}:active", 0, -1) == [b"m-1"]


async def test_a_renewal_is_for_a_whole_lease_and_only_of_what_is_held(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(lease=30)
    assert isinstance(bench.transport, Leasing)
    await bench.send(bench.message("a", id="held"), bench.message("b", id="lost"))
    subscription = await bench.subscribe()
    receipts = [(await bench.receive_one(subscription)).receipt for _ in range(2)]
    await client.pexpire(f"{prefix}:{QUEUE}:held:lock", 5_000)
    await client.set(f"{prefix}:{QUEUE}:lost:lock", "of another worker")
    foreign = Receipt(QUEUE, "of another transport")
    assert await bench.transport.renew([*receipts, foreign]) == [True, False, False]
    assert await client.pttl(f"{prefix}:{QUEUE}:held:lock") > 20_000


async def test_a_dead_letter_is_in_one_pair_of_hands(open_bench: Open) -> None:
    bench, other = await open_bench(lease=30), await open_bench(lease=30)
    await bench.send("a")
    delivery = await bench.receive_one(await bench.subscribe())
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
    letters = await bench.transport.subscribe(bench.dead_letters(), prefetch=1)
    taken = await bench.receive_one(letters)
    assert isinstance(other.transport, Browsing)
    (seen,) = await collect(other.transport.browse(bench.dead_letters()))
    assert seen.state == "in-flight"
    assert await take_stored(other.transport, bench.dead_letters(), [seen.position]) == []
    handle: Any = taken.receipt.handle
    stale = Receipt(taken.receipt.queue, handle._replace(token="of another worker"))
    for settlement in (Release(stale), Complete(stale), Retry(stale, bench.message("a"))):
        (late,) = await bench.transport.settle([settlement])
        assert isinstance(late, LeaseLostError)
    assert isinstance(bench.transport, Leasing)
    assert await bench.transport.renew([taken.receipt]) == [True]
    await bench.settle(Complete(taken.receipt))
    (late,) = await bench.transport.settle([Complete(taken.receipt)])
    assert isinstance(late, LeaseLostError)


async def test_dead_letters_are_in_order_of_failing(open_bench: Open) -> None:
    bench = await open_bench(lease=300)
    sent = [str(number) for number in range(200)]
    await bench.send(*sent)
    subscription = await bench.subscribe()
    found = [await bench.receive_one(subscription) for _ in sent]
    await bench.settle(*[DeadLetter(one.receipt, "undeliverable", "r") for one in found])
    assert isinstance(bench.transport, Browsing)
    letters = await collect(bench.transport.browse(bench.dead_letters()))
    assert [letter.body.decode() for letter in letters] == sent


async def test_a_retry_starts_a_new_count(open_bench: Open, client: Any, prefix: str) -> None:
    bench = await open_bench()
    await bench.send(bench.message("a", id="m-1"))
    await client.hset(f"{prefix}:{QUEUE}:m-1", "stc", 3)
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    assert delivery.receipt.delivery_count == 4
    await bench.settle(Release(delivery.receipt))
    delivery = await bench.receive_one(subscription)
    assert delivery.receipt.delivery_count == 4
    await bench.settle(Retry(delivery.receipt, bench.message("a", id="m-1")))
    assert (await bench.receive_one(subscription)).receipt.delivery_count == 1


async def test_a_job_with_a_priority_that_goes_back_wakes_a_worker(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    await bench.send(bench.message("a", priority=3))
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    await subscription.close()
    marker = f"{prefix}:{QUEUE}:marker"
    await client.delete(marker)
    await bench.settle(Release(delivery.receipt))
    assert await client.zrange(marker, 0, -1) == [b"0"]


async def test_what_a_closed_subscription_took_goes_back(open_bench: Open) -> None:
    bench = await open_bench(lease=30)
    await bench.send("a", "b", "c")
    subscription = await bench.subscribe()
    await bench.settle(Complete((await bench.receive_one(subscription)).receipt))
    receiving = asyncio.create_task(subscription.receive(3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the question is on its way, and what it takes has no receiver
    receiving.cancel()
    await subscription.close()
    assert isinstance(bench.transport, Measuring)
    depth = await bench.transport.depth(QUEUE)
    assert (depth.ready, depth.in_flight) == (2, 0)


def test_only_what_is_in_a_job_is_refused_for_good() -> None:
    receipt = Receipt(QUEUE, None)

    def error(said: str) -> TransportError:
        made = TransportError(said)
        made.__cause__ = ResponseError(said)
        return made

    passing = error("BUSY Redis is busy running a script")
    assert refused(passing, receipt) is passing
    for said in ("WRONGTYPE Operation", "ERR user_script:7: attempt to compare nil"):
        assert isinstance(refused(error(said), receipt), UnstorableError)


async def test_a_job_whose_scheduler_could_not_go_on_is_not_handed_out(tmp_path: Path) -> None:
    server = OwnServer(tmp_path)
    server.start()
    transport = BullMQTransport(f"bullmq://127.0.0.1:{server.port}/0", timeout=10)
    await transport.connect()
    try:
        session = await transport._client.connection()
        server.stop()
        fields = {b"rjk": b"clock", b"opts": b'{"repeat":{"every":1000}}', b"data": b"1"}
        job = BullJob("repeat:clock:1", fields)
        assert await continue_schedulers(session, QUEUE, [job]) == {job.id}
    finally:
        await transport.disconnect()
        server.stop()
