"""What becomes of jobs where BullMQ has ways of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.redis import OwnServer
from tests.support.shop import TOPOLOGY, OrderPlaced
from tests.support.taking import take_stored

from matador import Context, Envelope, Matador, Schema, StandardRetryPolicy, subscriber
from matador.errors import NotConnectedError, UnsupportedError
from matador.model.message import DeadLetter, Message, Properties, Release, Retry
from matador.model.topology import DeadLetterQueue, DeadLetters, WorkQueue
from matador.testing.compliance.bench import bodies, collect
from matador.testing.wait import wait_for
from matador.transports.base import Browsing, Examining

if TYPE_CHECKING:
    from tests.transports.bullmq.conftest import Open

pytestmark = pytest.mark.broker


async def test_the_job_has_the_id_of_the_message(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    await bench.send(bench.message("{}", id="m-1"), bench.message("{}", id="42"))
    ids = [id_.decode() for id_ in await client.lrange(f"{prefix}:shop.events:wait", 0, -1)]
    assert sorted(ids) == ["2", "m-1"], "a whole number would be an id of BullMQ's own"
    assert isinstance(bench.transport, Browsing)
    seen = await collect(bench.transport.browse(bench.name()))
    assert [stored.id for stored in seen] == ["m-1", "42"]


async def test_browsing_finds_as_many_as_asked_for_behind_a_job_that_is_gone(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    await bench.send(*(bench.message("{}", id=f"m-{number}") for number in range(3)))
    await client.lpush(f"{prefix}:shop.events:wait", "gone")  # an id without a job
    assert isinstance(bench.transport, Browsing)
    seen = await collect(bench.transport.browse(bench.name(), limit=2))
    assert [stored.id for stored in seen] == ["m-0", "m-1"]


async def test_a_job_has_the_name_of_its_event(bullmq_url: str, client: Any, prefix: str) -> None:
    tries: list[Envelope[OrderPlaced]] = []
    headers: list[Mapping[str, Any]] = []

    @subscriber(description="Fails each time.")
    async def mailer(envelope: Envelope[OrderPlaced], context: Context) -> None:
        tries.append(envelope)
        headers.append(context.headers)
        raise ValueError(str(envelope.data.amount))

    schema = Schema({OrderPlaced: [mailer]})
    retry = StandardRetryPolicy(max_attempts=2, base_delay=0.01)

    async def names() -> list[bytes]:
        keys = [key async for key in client.scan_iter(f"{prefix}:shop.events:*-*-*")]
        return [await client.hget(key, "name") for key in keys]

    app = Matador(bullmq_url, schema=schema, topology=TOPOLOGY, retry=retry)
    async with app:
        await app.send(OrderPlaced("1", 5))
        await app.send(OrderPlaced("2", 5), metadata={"tenant": "a"}, delay=0.01)
        assert await names() == [b"order.placed"] * 2
    worker = Matador(
        bullmq_url, schema=schema, topology=TOPOLOGY, retry=retry, consume_from=["events"]
    )
    async with worker:
        await wait_for(lambda: len(tries) == 4)

        async def are_kept() -> bool:
            return await worker.dead_letters.count() == 2

        await wait_for(are_kept)
    assert await names() == [b"order.placed"] * 2
    assert all("x-bullmq-name" not in one for one in headers)


async def test_a_job_has_the_name_of_its_command(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    request = bench.message("{}", id="m-1")
    named = msgspec.structs.replace(request, properties=Properties(type="ADD"))
    await bench.send(named)
    assert await client.hget(f"{prefix}:shop.events:m-1", "name") == b"ADD"
    (delivery,) = await bench.drain(bench.name(), 1)
    assert dict(delivery.headers) == dict(request.headers)


async def test_a_retry_and_a_dead_letter_keep_the_job(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    await bench.send(bench.message("{}", id="m-1"))
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    await bench.settle(Retry(delivery.receipt, bench.message('{"n": 2}', id="m-1")))
    delivery = await bench.receive_one(subscription)
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "why"))
    job = f"{prefix}:shop.events:m-1"
    assert await client.zrange(f"{prefix}:shop.events:failed", 0, -1) == [b"m-1"]
    assert await client.hget(job, "failedReason") == b"why"
    assert b'{"n": 2}' in await client.hget(job, "data")


async def test_a_successor_elsewhere_overwrites_nothing(open_bench: Open) -> None:
    bench = await open_bench("events", "slow")
    await bench.send(bench.message("1", id="m-1"), bench.message("2", id="m-1", queue="slow"))
    delivery = await bench.receive_one(await bench.subscribe())
    await bench.settle(Retry(delivery.receipt, bench.message("1", id="m-1", queue="slow")))
    assert sorted(bodies(await bench.drain(bench.name("slow"), 2))) == ["1", "2"]
    assert await bench.count(bench.name()) == 0


async def test_a_dead_letter_that_nobody_settles_is_handed_out_again(open_bench: Open) -> None:
    bench, hasty = await open_bench(), await open_bench(lease=0.3)
    await bench.send("a")
    delivery = await bench.receive_one(await bench.subscribe())
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
    letters = await hasty.transport.subscribe(bench.dead_letters(), prefetch=1)
    assert (await hasty.receive_one(letters)).receipt.delivery_count == 1
    for count in range(2, 12):  # on a busy machine the lease may end before it is given back
        again = await hasty.receive_one(letters)
        assert again.receipt.delivery_count == count
        if list(await hasty.transport.settle([Release(again.receipt)])) == [None]:
            assert (await hasty.receive_one(letters)).receipt.delivery_count == count
            return
    raise AssertionError("it was never given back")


async def test_a_delayed_job_that_is_taken_and_given_back_waits_on(open_bench: Open) -> None:
    bench = await open_bench()
    transport = bench.transport
    assert isinstance(transport, Browsing)
    await bench.send(bench.message("later", delay=60))
    (seen,) = await collect(transport.browse(bench.name()))
    (taken,) = await take_stored(transport, bench.name(), [seen.position])
    await bench.settle(Release(taken.receipt))
    (again,) = await collect(transport.browse(bench.name()))
    assert (again.state, again.delivery_count) == ("delayed", 0)


async def test_scripts_that_were_flushed_are_loaded_again(open_bench: Open, client: Any) -> None:
    bench = await open_bench("events", "slow")
    await client.script_flush()
    await bench.send("a")
    await client.script_flush()
    delivery = await bench.receive_one(await bench.subscribe())
    await client.script_flush()
    await bench.settle(Retry(delivery.receipt, bench.message("b", queue="slow")))
    assert bodies(await bench.drain(bench.name("slow"), 1)) == ["b"]


async def test_nothing_can_be_sent_to_dead_letters(open_bench: Open) -> None:
    bench = await open_bench()
    (outcome,) = await bench.transport.send([Message("x", bench.dead_letters(), b"{}")])
    assert isinstance(outcome, UnsupportedError)


async def test_what_cannot_be_honoured_is_noted(open_bench: Open) -> None:
    letters = DeadLetters(unhandled=DeadLetterQueue(ttl=60))
    own = WorkQueue("their:orders", exact=True)
    bench = await open_bench(WorkQueue("events", retention=60), own, dead_letters=letters)
    assert bench.noted(bench.name())
    assert bench.noted(bench.dead_letters("unhandled"))
    assert not bench.noted(bench.dead_letters("undeliverable"))
    (note,) = [note for note in bench.notes if note.queue == "their:orders"]
    assert "'their%3Aorders'" in note.text


async def test_the_doctor_looks_at_the_server(open_bench: Open) -> None:
    transport = (await open_bench()).transport
    assert isinstance(transport, Examining)
    findings = {finding.subject: finding for finding in await transport.examine()}
    assert set(findings) == {"server", "memory", "persistence"}
    assert not any(finding.fix for finding in findings.values())


async def test_a_waiting_receiver_goes_on_when_the_server_was_killed(
    open_bench: Open, server: OwnServer
) -> None:
    bench = await open_bench()
    subscription = await bench.subscribe()
    waiting = asyncio.create_task(bench.receive_one(subscription))
    await asyncio.sleep(0)
    await asyncio.to_thread(server.restart, signal.SIGKILL)

    async def sent() -> bool:
        try:
            return list(await bench.transport.send([bench.message("after")])) == [None]
        except NotConnectedError:
            return False

    await wait_for(sent, timeout=10, message="a send after the restart")
    assert bodies([await waiting]) == ["after"]
