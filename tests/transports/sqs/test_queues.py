"""What is special about queues on SQS: delays, groups, redrive, dead letters, closing."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from uuid import uuid4

import pytest
from tests.transports.sqs.conftest import Open

from matador.errors import (
    ConnectionFailedError,
    MessageTooLargeError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.model.message import Complete, DeadLetter, Delivery, Message, Release
from matador.model.topology import Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.sqs import SqsTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("sqs")]


def message(topology: Topology, body: bytes = b"a", **more: Any) -> Message:
    given: dict[str, Any] = {"id": str(uuid4()), **more}
    return Message(queue=topology.full_name("events"), body=body, **given)


async def url_of(raw: Any, name: str) -> str:
    return (await raw.get_queue_url(QueueName=name))["QueueUrl"]


async def next_of(subscription: Subscription) -> Delivery:
    async with asyncio.timeout(15):
        return (await subscription.receive(1))[0]


# -- delays ----------------------------------------------------------------------------------------


async def test_a_long_delay_is_made_of_several(
    open_transport: Open, topology: Topology, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SQS would have it if a minute were two seconds: received early, stored for the rest."""
    monkeypatch.setattr("matador.transports.sqs.settle.LONGEST_DELAY", 1)
    transport = await open_transport()
    sent_at = time.monotonic()
    assert await transport.send([message(topology, b"late", delay=2.5)]) == [None]
    subscription = await transport.subscribe(topology.full_name("events"), prefetch=1)
    delivery = await next_of(subscription)
    assert time.monotonic() - sent_at >= 2.4
    assert delivery.body == b"late"
    assert (delivery.receipt.delivery_count, delivery.receipt.redelivered) == (1, False)
    assert await transport.settle([Release(delivery.receipt)]) == [None]
    again = await next_of(subscription)
    assert again.body == b"late", "released, it is due at once"
    assert await transport.settle([Complete(again.receipt)]) == [None]
    assert (await transport.depth(topology.full_name("events"))).total == 0


async def test_a_delay_of_a_fifo_queue_counts_no_delivery(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport(fifo=True)
    sent_at = time.monotonic()
    later = message(topology, b"later", delay=1.5, ordering_key="k")
    assert await transport.send([later, message(topology, b"next", ordering_key="k")]) == [None] * 2
    subscription = await transport.subscribe(topology.full_name("events"), prefetch=1)
    first = await next_of(subscription)
    assert time.monotonic() - sent_at >= 1.4
    assert (first.body, first.receipt.delivery_count) == (b"later", 1)
    assert not first.receipt.redelivered


async def test_a_release_counts_neither_itself_nor_forgets_a_crash(
    open_transport: Open, topology: Topology
) -> None:
    crashing, transport = await open_transport(lease=1), await open_transport(lease=30)
    await transport.send([message(topology)])
    subscription = await crashing.subscribe(topology.full_name("events"), prefetch=1)
    assert (await next_of(subscription)).receipt.delivery_count == 1  # and then nothing
    subscription = await transport.subscribe(topology.full_name("events"), prefetch=1)
    for _ in range(3):
        delivery = await next_of(subscription)
        assert delivery.receipt.delivery_count == 2
        assert delivery.receipt.redelivered
        assert await transport.settle([Release(delivery.receipt)]) == [None]


# -- FIFO ------------------------------------------------------------------------------------------


async def test_one_key_is_one_at_a_time_whoever_receives(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport(fifo=True)
    bodies = [b"1", b"2", b"3"]
    await transport.send([message(topology, body, ordering_key="k") for body in bodies])
    name = topology.full_name("events")
    both = [await transport.subscribe(name, prefetch=10) for _ in range(2)]
    first = (await both[0].receive(10))[0]
    waiting = asyncio.create_task(both[1].receive(10))
    early, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not early, "its group is locked"
    await transport.settle([Complete(first.receipt)])
    second = (await waiting)[0]
    assert (first.body, second.body) == (b"1", b"2")


async def test_a_redriven_message_is_not_taken_for_a_duplicate(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport(fifo=True)
    same = message(topology, b"same", ordering_key="k")
    for _ in range(3):
        assert await transport.send([same]) == [None]
    assert (await transport.depth(topology.full_name("events"))).ready == 3


async def test_the_group_of_a_foreign_message_is_its_ordering_key(
    open_transport: Open, topology: Topology, raw: Any
) -> None:
    transport = await open_transport(fifo=True)
    name = topology.full_name("events")
    await raw.send_message(
        QueueUrl=await url_of(raw, f"{topology.namespace}__events.fifo"),
        MessageBody="theirs",
        MessageGroupId="their-group",
        MessageDeduplicationId="1",
    )
    delivery = await next_of(await transport.subscribe(name, prefetch=1))
    assert delivery.receipt.ordering_key == "their-group"


# -- sizes and batches -----------------------------------------------------------------------------


async def test_large_messages_of_one_call_are_split_into_batches(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport()
    sizes = [100_000, 200_000, 60_000, 10, 250_000]
    sent = [message(topology, b"x" * size) for size in sizes]
    large = message(topology, b"x" * 262_144)
    *outcomes, refused = await transport.send([*sent, large])
    assert outcomes == [None] * len(sizes)
    assert isinstance(refused, MessageTooLargeError)
    assert (await transport.depth(topology.full_name("events"))).ready == len(sizes)


# -- topology --------------------------------------------------------------------------------------


async def test_a_redrive_policy_is_the_safety_net(
    open_transport: Open, topology: Topology, raw: Any
) -> None:
    transport = await open_transport(max_receives=2, lease=1)
    url = await url_of(raw, f"{topology.namespace}__events")
    attributes = (await raw.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))[
        "Attributes"
    ]
    policy = json.loads(attributes["RedrivePolicy"])
    assert int(policy["maxReceiveCount"]) == 2
    assert policy["deadLetterTargetArn"].endswith(f"{topology.namespace}__events__undeliverable")
    await transport.send([message(topology, b"deadly")])
    subscription = await transport.subscribe(topology.full_name("events"), prefetch=1)
    for count in (1, 2):
        assert (await next_of(subscription)).receipt.delivery_count == count
    waiting = asyncio.create_task(subscription.receive(1))
    letters = topology.dead_letter_name("events", "undeliverable")

    async def moved() -> bool:
        return (await transport.depth(letters)).ready == 1

    await wait_for(moved)
    await subscription.close()
    assert await waiting == ()


async def test_an_exact_queue_has_its_own_name_and_is_made_if_missing(
    open_transport: Open, raw: Any, topology: Topology
) -> None:
    name = f"{topology.namespace}-jobs"
    exact = Topology(topology.namespace, queues=[WorkQueue(name, exact=True)])
    strict = await open_transport(create=False, apply=False)
    with pytest.raises(QueueNotFoundError):
        await strict.apply_topology(exact)
    transport = await open_transport(apply=False)
    assert await transport.apply_topology(exact) == []
    assert name in await url_of(raw, name)
    assert await strict.apply_topology(exact) == []


async def test_a_deleted_queue_is_made_again_and_consumed(
    open_transport: Open, topology: Topology, raw: Any
) -> None:
    transport = await open_transport()
    subscription = await transport.subscribe(topology.full_name("events"), prefetch=1)
    waiting = asyncio.create_task(next_of(subscription))
    await asyncio.sleep(0)
    await raw.delete_queue(QueueUrl=await url_of(raw, f"{topology.namespace}__events"))
    assert await transport.send([message(topology, b"after")]) == [None]
    assert (await waiting).body == b"after"


# -- jobs and other programs -----------------------------------------------------------------------


async def test_a_job_is_what_other_programs_expect(
    open_transport: Open, topology: Topology, raw: Any
) -> None:
    transport = await open_transport()
    headers = {"job.id": "j-1", "job.name": "mail", "job.maxAttempts": 3, "job.createdAt": 17}
    job = message(topology, b'{"_jobData":{"a":1}}', id="j-1", headers=headers)
    assert await transport.send([job]) == [None]
    url = await url_of(raw, f"{topology.namespace}__events")
    answer = await raw.receive_message(
        QueueUrl=url, MessageAttributeNames=["All"], VisibilityTimeout=0
    )
    (stored,) = answer["Messages"]
    assert stored["Body"] == '{"_jobData":{"a":1}}'
    found = {
        name: (one["DataType"], one["StringValue"])
        for name, one in stored["MessageAttributes"].items()
    }
    assert found == {
        "job.id": ("String", "j-1"),
        "job.name": ("String", "mail"),
        "job.maxAttempts": ("Number", "3"),
        "job.createdAt": ("Number", "17"),
    }
    delivery = await next_of(await transport.subscribe(topology.full_name("events"), prefetch=1))
    assert delivery.headers == headers


# -- dead letters ----------------------------------------------------------------------------------


async def test_dead_letters_can_be_looked_at_and_taken(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport(lease=30)
    name, letters = topology.full_name("events"), topology.dead_letter_name("events", "unhandled")
    await transport.send([message(topology, str(number).encode()) for number in range(12)])
    subscription = await transport.subscribe(name, prefetch=12)
    held: list[Delivery] = []
    while len(held) < 12:
        held += await subscription.receive(12)
    await transport.settle([DeadLetter(one.receipt, "unhandled", "why") for one in held])
    seen = [stored async for stored in transport.browse(letters)]
    again = [stored async for stored in transport.browse(letters)]
    assert sorted(one.body for one in seen) == sorted(one.body for one in again)
    assert len(seen) == 12
    assert {one.reason for one in seen} == {"why"}
    chosen, other = seen[5], seen[7]
    first, unknown = await transport.take(letters, [chosen.position, "nowhere"])
    assert first is not None
    assert first.body == chosen.body
    assert unknown is None
    assert await transport.take(letters, [chosen.position]) == [None], "in other hands"
    await transport.settle([Complete(first.receipt)])
    await transport.disconnect()  # gives back what was looked at
    fresh = await open_transport()
    (second,) = await fresh.take(letters, [other.position])
    assert second is not None
    assert second.body == other.body
    with pytest.raises(UnsupportedError, match="dead letters"):
        await fresh.take(name, [])


# -- connection and shutdown -----------------------------------------------------------------------


async def test_closing_gives_back_what_the_poll_in_flight_brings(
    open_transport: Open, topology: Topology
) -> None:
    transport, other = await open_transport(lease=30), await open_transport(lease=30)
    name = topology.full_name("events")
    subscription = await transport.subscribe(name, prefetch=10)
    waiting = asyncio.create_task(subscription.receive(10))
    await wait_for(lambda: subscription._polling is not None)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await other.send([message(topology, b"late")]) == [None]
    await subscription.close()
    delivery = await next_of(await other.subscribe(name, prefetch=1))
    assert (delivery.body, delivery.receipt.delivery_count) == (b"late", 1)


async def test_it_says_when_sqs_cannot_be_reached(url: str) -> None:
    nowhere = SqsTransport("sqs://eu-west-1?endpoint=http://127.0.0.1:9&timeout=2")
    with pytest.raises(ConnectionFailedError, match=r"cannot reach SQS at http://127\.0\.0\.1:9"):
        await nowhere.connect()
    assert nowhere.state.status == "failed"
    await nowhere.disconnect()


async def test_the_doctor_finds_what_takes_messages_away(
    open_transport: Open, topology: Topology, raw: Any
) -> None:
    transport = await open_transport(max_receives=3)
    (server,) = await transport.examine()
    assert server.text.endswith("answers")
    (few,) = await transport.check_topology(topology)
    assert few.queue == topology.full_name("events")
    assert "after 3 receives" in few.text
    unknown = Topology(f"{topology.namespace}x", queues=["events"])
    assert await transport.check_topology(unknown) == [], "what is missing is not noted"
