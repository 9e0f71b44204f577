"""What needs a server of the tests' own: users, limits, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.rabbitmq import connections
from tests.support.raw_rabbitmq import RawRabbitMQ, field, long, properties, short
from tests.transports.rabbitmq.conftest import OwnServer

from matador.errors import (
    LeaseLostError,
    MatadorError,
    MessageTooLargeError,
    SendTimeoutError,
    StorageFullError,
)
from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Release,
    Retry,
    Settlement,
)
from matador.model.topology import Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.rabbitmq import RabbitMQTransport

TOPOLOGY = Topology("own", queues=[WorkQueue("events", type="classic")])
QUEUE = "own.events"
LETTERS = "own.events.undeliverable"


@pytest.fixture
async def transport(server: OwnServer) -> AsyncIterator[RabbitMQTransport]:
    transport = RabbitMQTransport(server.url())
    await transport.connect()
    await transport.apply_topology(TOPOLOGY)
    yield transport
    for queue in (QUEUE, LETTERS):
        await transport.purge(queue)
    await transport.disconnect()


async def delivered(transport: RabbitMQTransport, url: str, given: bytes, body: bytes) -> Delivery:
    writer = RawRabbitMQ(url)
    await writer.publish(QUEUE, given, body)
    await writer.close()
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    async with asyncio.timeout(20):
        (delivery,) = await subscription.receive(1)
    await subscription.close()
    return delivery


async def letters(transport: RabbitMQTransport) -> list[bytes]:
    return [one.body async for one in transport.browse(LETTERS)]


async def test_what_another_user_signed_can_be_given_back_and_dead_lettered(
    server: OwnServer, transport: RabbitMQTransport
) -> None:
    await asyncio.to_thread(server.ctl, "add_user", "other", "other")
    await asyncio.to_thread(server.ctl, "set_permissions", "other", ".*", ".*", ".*")
    signed = properties(b"", user_id=short(b"other"))
    first = await delivered(transport, server.url("other", "other"), signed, b"\xff")
    assert await transport.settle([Release(first.receipt)]) == [None]
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    (second,) = await subscription.receive(1)
    assert second.body == b"\xff"
    letter = DeadLetter(second.receipt, "undeliverable", "malformed")
    assert await transport.settle([letter]) == [None]
    assert await letters(transport) == [b"\xff"]


async def test_what_the_server_finds_too_large_is_named_and_neighbours_get_through(
    server: OwnServer, transport: RabbitMQTransport
) -> None:
    await asyncio.to_thread(
        server.ctl, "eval", "application:set_env(rabbit,max_message_size,1000)."
    )
    limited = RabbitMQTransport(server.url())
    await limited.connect()
    await limited.apply_topology(TOPOLOGY)
    try:
        large, small = Message("l", QUEUE, b"x" * 1001), Message("s", QUEUE, b"x" * 1000)
        outcomes = await limited.send([large, small, large, small])
        kinds = [MessageTooLargeError, type(None), MessageTooLargeError, type(None)]
        assert [type(one) for one in outcomes] == kinds
        assert "1,000" in str(outcomes[0])
        await wait_for(lambda: limited.state.status == "connected")
        assert (await limited.depth(QUEUE)).ready == 2
    finally:
        await limited.disconnect()
        reset = "application:set_env(rabbit,max_message_size,134217728)."
        await asyncio.to_thread(server.ctl, "eval", reset)


@pytest.mark.parametrize("bare", [False, True])
async def test_dead_letters_of_what_was_not_to_last_survive_a_restart(
    server: OwnServer, transport: RabbitMQTransport, bare: bool
) -> None:
    transient = properties(field(b"h", b"S", long(b"x")), delivery_mode=b"\1")
    for given in (properties(), transient):
        delivery = await delivered(transport, server.url(), given, b"\xff")
        letter = DeadLetter(delivery.receipt, "undeliverable", "malformed", bare=bare)
        assert await transport.settle([letter]) == [None]
    assert await transport.send([Message("m", QUEUE, b"sent")]) == [None]
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    await wait_for(lambda: transport.state.status == "connected", timeout=30)
    assert await letters(transport) == [b"\xff", b"\xff"]
    assert (await transport.depth(QUEUE)).ready == 1


# -- a broker that is out of memory ----------------------------------------------------------------

MEMORY = "{resource_limit, memory, node()}"


async def test_a_broker_that_blocks_publishers_is_named_and_others_go_on(
    server: OwnServer, transport: RabbitMQTransport
) -> None:
    hasty = RabbitMQTransport(f"{server.url()}?send_timeout=1")
    await hasty.connect()
    await hasty.apply_topology(TOPOLOGY)
    publishing = connections(hasty)[0]
    one = [Message("m", QUEUE, b"x")]
    assert await hasty.send(one * 4) == [None] * 4
    subscription = await hasty.subscribe(QUEUE, prefetch=4)
    deliveries = [delivery for _ in range(4) for delivery in await subscription.receive(1)]
    await asyncio.to_thread(server.ctl, "eval", f"rabbit_alarm:set_alarm({{{MEMORY}, []}}).")
    try:
        # The broker tells those who publish, as soon as it has heard of the alarm itself. What is
        # on its way then may be stored, or not.
        refused: MatadorError | None = None
        while publishing.blocked is None or refused is None:
            (refused,) = await hasty.send(one)
            assert isinstance(refused, SendTimeoutError | StorageFullError | None)
        assert "memory" in str(refused)
        # From then on nothing is written.
        second, third = await hasty.send(one * 2)
        assert type(second) is type(third) is StorageFullError
        assert "memory" in str(second)
        # Acknowledgements are not held up, nor is what is given back; what needs room waits.
        completed, retried, released, dead = deliveries
        retry = Retry(retried.receipt, Message("m", QUEUE, b"again"))
        letter = DeadLetter(dead.receipt, "undeliverable", "why")
        outcomes = await hasty.settle(
            [Complete(completed.receipt), retry, Release(released.receipt), letter]
        )
        kinds = [type(None), StorageFullError, type(None), StorageFullError]
        assert [type(outcome) for outcome in outcomes] == kinds
    finally:
        await asyncio.to_thread(server.ctl, "eval", f"rabbit_alarm:clear_alarm({MEMORY}).")
    await wait_for(lambda: publishing.blocked is None, timeout=60, message="unblocked")
    assert await settled(hasty, retry, letter), "still ours"
    await hasty.disconnect()


async def settled(transport: RabbitMQTransport, *settlements: Settlement) -> bool:
    """Sooner or later: a server that has just come to itself may take longer than one second."""
    async with asyncio.timeout(60):
        while settlements:
            outcomes = await transport.settle(settlements)
            left = [one for one, outcome in zip(settlements, outcomes, strict=True) if outcome]
            assert not [one for one in outcomes if isinstance(one, LeaseLostError)]
            settlements = tuple(left)
    return True
