"""Connections that are killed, servers that are restarted, emptied, frozen."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import pytest
from tests.support.own_time import OwnTime
from tests.support.redis import OwnServer, is_reading
from tests.transports.redis.conftest import Open

from matador.errors import ConnectionFailedError, MatadorError, NotConnectedError
from matador.model.message import Complete, DeadLetter
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.testing.compliance.bench import Bench, bodies
from matador.testing.compliance.connection import StateRecorder
from matador.transports.redis import RedisListTransport, RedisTransport

pytestmark = pytest.mark.broker


async def clients_of(client: Any) -> list[str]:
    found = await client.client_list()
    return [one["id"] for one in found if one["name"] == "matador-redis"]


async def kill_clients(client: Any) -> int:
    """Cut every connection of ours, as a proxy or an administrator would."""
    ids = await clients_of(client)
    for one in ids:
        await client.execute_command("CLIENT", "KILL", "ID", one)
    return len(ids)


async def send_surely(bench: Bench, body: str, *, patience: float = 30) -> None:
    async def sent() -> bool:
        try:
            return list(await bench.transport.send([bench.message(body)])) == [None]
        except NotConnectedError:
            return False

    await wait_for(sent, timeout=patience, message="a send")


async def is_back(bench: Bench) -> bool:
    try:
        return await bench.count(bench.name()) is not None
    except MatadorError:
        return False


async def test_a_killed_connection_is_made_again(open_bench: Open, client: Any) -> None:
    bench = await open_bench()
    states = StateRecorder()
    bench.transport.observe(states)
    subscription = await bench.subscribe()
    waiting = asyncio.create_task(subscription.receive(1))
    await wait_for(lambda: is_reading(subscription))
    assert await kill_clients(client) == 3, "commands, reads, the watch"
    await send_surely(bench, "after")
    async with asyncio.timeout(30):
        assert bodies(await waiting) == ["after"]
    assert states.statuses == ["reconnecting", "connected"]


async def test_killed_while_sending_each_send_has_a_named_outcome(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench()
    outcomes: dict[str, MatadorError | None] = {}

    async def send(number: int) -> None:
        body = str(number)
        try:
            (outcomes[body],) = await bench.transport.send([bench.message(body)])
        except MatadorError as error:
            outcomes[body] = error

    async def send_all() -> None:
        for start in range(0, 1000, 50):
            await asyncio.gather(*(send(number) for number in range(start, start + 50)))

    sending = asyncio.create_task(send_all())
    for count in (100, 400, 700):
        await wait_for(lambda count=count: len(outcomes) > count)
        await kill_clients(client)
    async with asyncio.timeout(30):
        await sending
    stored = {body for body, outcome in outcomes.items() if outcome is None}
    assert len(outcomes) == 1000
    assert len(stored) > 500
    await wait_for(lambda: is_back(bench))
    subscription = await bench.subscribe()
    found: list[str] = []
    while (await bench.transport.depth(bench.name())).total:
        deliveries = await subscription.receive(500)
        found += bodies(deliveries)
        await bench.complete(deliveries)
    assert len(found) == len(set(found)), "none twice: nothing is sent again by itself"
    assert stored <= set(found), "none lost"


async def test_killed_while_consuming_nothing_is_lost_or_delivered_twice(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench(lease=30)
    total = 3000
    await bench.send(*map(str, range(total)))
    subscription = await bench.subscribe()
    handled: list[str] = []
    kills = 0
    while len(set(handled)) < total:
        async with asyncio.timeout(20):
            deliveries = await subscription.receive(50)
        assert not any(delivery.receipt.redelivered for delivery in deliveries)
        handled += bodies(deliveries)
        if len(handled) // 700 > kills:
            kills += 1
            await kill_clients(client)
        settlements = [Complete(delivery.receipt) for delivery in deliveries]
        await wait_for(lambda settlements=settlements: settled(bench, settlements))
    assert kills > 2
    # A lease of 30 s: whatever a cut connection swallowed came back at once, and uncounted.
    assert sorted(handled, key=int) == [str(number) for number in range(total)]


async def settled(bench: Bench, settlements: list[Complete]) -> bool:
    try:
        outcomes = await bench.transport.settle(settlements)
    except NotConnectedError:
        return False
    return all(outcome is None or "already" in str(outcome) for outcome in outcomes)


async def test_a_restarted_server_is_consumed_again_within_five_seconds(
    open_bench: Open, server: OwnServer
) -> None:
    bench = await open_bench()
    subscription = await bench.subscribe()
    await bench.send("in flight", "waiting")
    held = await bench.receive_one(subscription)
    waiting = asyncio.create_task(bench.receive_one(subscription))
    await waiting
    await asyncio.to_thread(server.restart, signal.SIGKILL)
    async with OwnTime() as own:
        await send_surely(bench, "after")
        assert bodies([await bench.receive_one(subscription)]) == ["after"]
    assert own.seconds < 5
    await bench.complete([held, waiting.result()])
    assert await bench.count(bench.name()) == 1


async def test_while_the_server_is_down_sends_fail_soon_and_by_name(
    open_bench: Open, server: OwnServer
) -> None:
    bench = await open_bench()
    await asyncio.to_thread(server.stop, signal.SIGKILL)
    try:
        await wait_for(lambda: bench.transport.state.status == "reconnecting")
        async with OwnTime() as own:
            with pytest.raises(NotConnectedError, match="reconnecting"):
                await bench.transport.send([bench.message("a")])
        assert own.seconds < 3
        with pytest.raises(NotConnectedError):
            await bench.transport.depth(bench.name())
        other = RedisTransport(server.url)
        with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{server.port}"):
            await other.connect()
        assert other.state.status == "failed"
    finally:
        await asyncio.to_thread(server.start)
    await send_surely(bench, "b")


async def test_a_server_that_does_not_answer_is_noticed_within_two_heartbeats(
    open_bench: Open, server: OwnServer
) -> None:
    bench = await open_bench(heartbeat=0.4)
    await bench.send("before")
    server.freeze()
    try:
        async with OwnTime() as own:
            await wait_for(lambda: bench.transport.state.status == "reconnecting")
        assert own.seconds < 2 * 0.4 + 0.5
    finally:
        server.thaw()
    await send_surely(bench, "after")


async def test_an_emptied_server_gets_its_queues_back(open_bench: Open, client: Any) -> None:
    bench = await open_bench()
    subscription = await bench.subscribe()
    await bench.send("gone")
    lost = await bench.receive_one(subscription)
    waiting = asyncio.create_task(bench.receive_one(subscription))
    await wait_for(lambda: is_reading(subscription))
    await client.flushall()
    await bench.send("after")
    assert bodies([await waiting]) == ["after"]
    (outcome,) = await bench.transport.settle([Complete(lost.receipt)])
    assert outcome is not None
    assert outcome.name == "LeaseLostError"


async def test_scripts_are_loaded_again(open_bench: Open, client: Any) -> None:
    bench = await open_bench()
    subscription = await bench.subscribe()
    await bench.send("a")
    delivery = await bench.receive_one(subscription)
    await client.script_flush()
    await bench.complete([delivery])
    await client.script_flush()
    await bench.send("b")
    assert bodies([await bench.receive_one(subscription)]) == ["b"]


async def test_a_user_who_may_not_unblock_can_still_close(
    open_bench: Open, client: Any, server: OwnServer, prefix: str
) -> None:
    await client.execute_command(
        *f"ACL SETUSER small on >pw ~{prefix}:* +@all -@dangerous".split(" ")
    )
    bench = await open_bench(url=server.url.replace("//", "//small:pw@"), heartbeat=0.5)
    subscription = await bench.subscribe()
    waiting = asyncio.create_task(subscription.receive(1))
    await wait_for(lambda: is_reading(subscription))
    async with asyncio.timeout(30):
        await subscription.close()
        assert list(await waiting) == []


async def test_wrong_credentials_are_named_and_not_repeated(server: OwnServer) -> None:
    transport = RedisTransport(server.url.replace("//", "//nobody:s3cr3t@"))
    with pytest.raises(ConnectionFailedError, match="the user, the password") as caught:
        await transport.connect()
    assert "s3cr3t" not in f"{caught.value!r}{caught.value.__cause__!r}"


@pytest.mark.parametrize("kind", [RedisTransport, RedisListTransport])
async def test_a_server_that_became_a_replica_is_left_for_its_primary(
    server: OwnServer, client: Any, prefix: str, kind: type[RedisTransport | RedisListTransport]
) -> None:
    transport = kind(server.url, prefix=prefix, lease=30)
    await transport.connect()
    topology = Topology("shop", queues=["events"])
    bench = Bench(
        transport, topology, await transport.apply_topology(topology), patience=10, quiet=0
    )
    states = StateRecorder()
    await bench.send("a", "b")
    held = await bench.receive(await bench.subscribe(), 2)
    transport.observe(states)
    await client.replicaof("127.0.0.1", 1)
    try:
        for attempt in (
            lambda: transport.send([bench.message("c")]),
            lambda: transport.settle([DeadLetter(held[0].receipt, "undeliverable", "r")]),
        ):
            with contextlib.suppress(NotConnectedError):
                (outcome,) = await attempt()
                assert type(outcome) is NotConnectedError
            await wait_for(lambda: transport.state.status == "reconnecting")
    finally:
        await client.replicaof("NO", "ONE")
    await wait_for(lambda: transport.state.status == "connected")
    assert "connected" in states.statuses
    await bench.complete(held)
    await transport.disconnect()
