"""Every settlement ends: what cannot be stored is named, alone, and has a form that always fits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from tests.support.redis import OwnServer
from tests.transports.redis.conftest import Open, OpenEither
from tests.transports.redis.test_full import full

from matador.errors import (
    LeaseLostError,
    MatadorError,
    MessageTooLargeError,
    StorageFullError,
    TransportError,
    UnstorableError,
)
from matador.model.message import (
    REASON_HEADER,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Once,
    Release,
    Retry,
)
from matador.model.topology import Topology
from matador.testing.compliance.bench import Bench, bodies
from matador.transports.redis import (
    RedisListTransport,
    RedisPubSubTransport,
    RedisTransport,
    send,
)

pytestmark = pytest.mark.broker

LONE = "caf\udcff"
OpenAny: TypeAlias = Callable[[], Awaitable[Bench]]


@pytest_asyncio.fixture(params=[RedisTransport, RedisListTransport, RedisPubSubTransport])
async def bench(
    request: pytest.FixtureRequest, server: OwnServer, prefix: str
) -> AsyncIterator[Bench]:
    """A bench of each mode."""
    transport = request.param(server.url, prefix=prefix)
    await transport.connect()
    topology = Topology("shop", queues=["events", "slow"])
    notes = await transport.apply_topology(topology)
    yield Bench(transport, topology, notes, patience=10, quiet=0.1)
    await transport.disconnect()


async def held(bench: Bench, count: int) -> list[Delivery]:
    """Some deliveries, each with its number as its body."""
    subscription = await bench.subscribe()
    await bench.send(*map(str, range(count)))
    return await bench.receive(subscription, count)


def unencodable(bench: Bench, delivery: Delivery) -> list[Any]:
    receipt = delivery.receipt
    odd: Any = {"a": object()}
    messages = [
        bench.message("x", id=LONE),
        bench.message("x", headers={LONE: "a"}),
        bench.message("x", headers={"a": LONE}),
        bench.message("x", headers=odd),
        bench.message("x", key=LONE),
    ]
    letters = [DeadLetter(receipt, "undeliverable", "r", message) for message in messages]
    return [
        *letters,
        DeadLetter(receipt, "undeliverable", LONE),
        DeadLetter(receipt, "undeliverable", LONE, bench.message("x")),
    ]


async def test_what_cannot_be_encoded_is_unstorable_and_fails_alone(bench: Bench) -> None:
    letters = await bench.transport.subscribe(bench.dead_letters(), prefetch=10)
    first, odd, last = await held(bench, 3)
    for settlement in unencodable(bench, odd):
        (outcome,) = await bench.transport.settle([settlement])
        assert type(outcome) is UnstorableError, settlement
    settlements = [
        DeadLetter(first.receipt, "undeliverable", "r"),
        *unencodable(bench, odd),
        Complete(last.receipt),
    ]
    first_, *outcomes, last_ = await bench.transport.settle(settlements)
    assert (first_, last_) == (None, None)
    assert {type(outcome) for outcome in outcomes} == {UnstorableError}
    await bench.settle(DeadLetter(odd.receipt, "undeliverable", LONE, bare=True))
    assert bodies(await bench.receive(letters, 2)) == ["0", "1"]


async def test_a_retry_that_cannot_be_encoded_is_unstorable(open_either: OpenEither) -> None:
    bench = await open_either()
    first, last = await held(bench, 2)
    far = Message("id", f"nowhere.{LONE}", b"x")
    for message in (
        bench.message("x", id=LONE),
        bench.message("x", headers={"a": LONE}),
        bench.message("x", delay=float("inf")),
        bench.message("x", queue="slow", id=LONE),
        far,
    ):
        odd, good = await bench.transport.settle(
            [Retry(first.receipt, message), Retry(last.receipt, bench.message("again"))]
        )
        assert type(odd) is UnstorableError, message
        if good is not None:
            assert isinstance(good, LeaseLostError), "it was done the first time"


async def test_a_send_that_cannot_be_encoded_fails_alone(bench: Bench) -> None:
    subscription = await bench.subscribe()
    outcomes = await bench.transport.send(
        [bench.message("a"), bench.message("x", id=LONE), bench.message("b")]
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), UnstorableError, type(None)]
    assert bodies(await bench.receive(subscription, 2)) == ["a", "b"]


async def test_the_bare_form_has_nothing_that_the_sender_chose(bench: Bench) -> None:
    letters = await bench.transport.subscribe(bench.dead_letters(), prefetch=10)
    subscription = await bench.subscribe()
    await bench.send(bench.message("body", id="mine", headers={"a": "b"}, priority=3, key="k"))
    delivery = await bench.receive_one(subscription)
    full = DeadLetter(delivery.receipt, "undeliverable", "x\0" + "y" * 10**6, bare=True)
    await bench.settle(full)
    letter = await bench.receive_one(letters)
    assert letter.body == b"body"
    assert set(letter.headers) == {REASON_HEADER}
    assert len(str(letter.headers[REASON_HEADER])) <= 200
    assert (letter.receipt.priority, letter.receipt.ordering_key) == (None, None)


async def test_what_no_server_takes_is_not_sent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would drop the connection, and everybody's commands with it."""
    monkeypatch.setattr(send, "LARGEST", 10)
    subscription = await bench.subscribe()
    small, large = bench.message("small"), bench.message("x" * 11, headers={"a": "b"})
    assert list(await bench.transport.send([small])) == [None]
    (outcome,) = await bench.transport.send([large])
    assert type(outcome) is MessageTooLargeError
    (outcome,) = await bench.transport.send([bench.message("x" * 11)])
    assert type(outcome) is MessageTooLargeError
    delivery = await bench.receive_one(subscription)
    if bench.can.durable:
        (outcome,) = await bench.transport.settle([Retry(delivery.receipt, large)])
        assert type(outcome) is MessageTooLargeError
    await bench.complete([delivery])


# -- queues that are gone, or are something else ---------------------------------------------------


@pytest.mark.parametrize("gone", ["all", "settings", "messages"])
async def test_a_deleted_queue_of_dead_letters_is_made_again(
    open_either: OpenEither, client: Any, gone: str
) -> None:
    bench = await open_either()
    key = bench.key(bench.dead_letters())
    first, second, last = await held(bench, 3)
    await bench.settle(DeadLetter(first.receipt, "undeliverable", "r"))
    for one in await client.keys(f"{key}*"):
        if gone == "all" or (one == key.encode()) == (gone == "settings"):
            await client.delete(one)
    await bench.settle(
        DeadLetter(second.receipt, "undeliverable", "r"),
        Complete(last.receipt),
    )
    left = ["0", "1"] if gone == "settings" else ["1"]
    assert (await bench.transport.depth(bench.dead_letters())).ready == len(left)
    assert bodies(await bench.drain(bench.dead_letters(), len(left))) == left
    assert await bench.count(bench.name()) == 0


async def test_a_retry_makes_its_queue_again(open_either: OpenEither, client: Any) -> None:
    bench = await open_either()
    (delivery,) = await held(bench, 1)
    for one in await client.keys(f"{bench.key(bench.name('slow'))}*"):
        await client.delete(one)
    await bench.settle(Retry(delivery.receipt, bench.message("again", queue="slow")))
    assert bodies(await bench.drain(bench.name("slow"), 1)) == ["again"]


async def test_dead_letters_that_cannot_be_stored_hold_up_nobody(
    open_either: OpenEither, client: Any
) -> None:
    """Whatever is wrong with one, the others in its batch are done, and are done once."""
    bench = await open_either()
    key = bench.key(bench.dead_letters())
    lane = f"{key}:0" if type(bench.transport) is RedisTransport else f"{key}:ready"
    deliveries = await held(bench, 6)
    receipts = [one.receipt for one in deliveries]
    await client.delete(lane)
    await client.set(lane, "something else")
    settlements = [
        Retry(receipts[0], bench.message("retried")),
        DeadLetter(receipts[1], "undeliverable", "r"),
        Release(receipts[2]),
        DeadLetter(receipts[3], "undeliverable", "r", bench.message("letter")),
        DeadLetter(receipts[4], "unhandled", "r"),
        Complete(receipts[5]),
    ]
    outcomes = list(await bench.transport.settle(settlements))
    refused = [place for place, outcome in enumerate(outcomes) if outcome is not None]
    assert refused == [1, 3]
    assert all(type(outcomes[place]) is TransportError for place in refused)
    assert "another prefix" in str(outcomes[1])
    again = await bench.transport.settle(settlements)
    assert isinstance(again[0], LeaseLostError)
    # Once there is room for them, they go there.
    await client.delete(lane)
    await bench.settle(settlements[1], settlements[3])
    assert bodies(await bench.drain(bench.dead_letters(), 2)) == ["1", "letter"]
    assert bodies(await bench.drain(f"{bench.name()}.unhandled", 1)) == ["4"]
    assert sorted(bodies(await bench.drain(bench.name(), 2))) == ["2", "retried"]


async def test_what_could_not_be_stored_was_not_stored(
    open_either: OpenEither, client: Any
) -> None:
    bench = await open_either()
    await client.set(f"{bench.key()}:delayed", "something else")
    messages = [bench.message("a"), bench.message("later", delay=60), bench.message("b")]
    outcomes = list(await bench.transport.send(messages))
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert type(outcomes[1]) is TransportError
    await client.delete(f"{bench.key()}:delayed")
    assert await bench.count(bench.name()) == 2


async def test_an_id_is_noted_only_with_its_message_in_a_batch_too(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench()
    await client.set(f"{bench.key()}:delayed", "something else")
    messages = [bench.message("a"), bench.message("later", delay=60), bench.message("b")]
    outcomes = await bench.transport.send_once(messages, Once("scope"))
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    await client.delete(f"{bench.key()}:delayed")
    assert list(await bench.transport.send_once(messages, Once("scope"))) == [None] * 3
    assert await bench.count(bench.name()) == 3
    assert (await bench.transport.depth(bench.name())).delayed == 1


async def test_a_full_server_refuses_what_needs_room_and_nothing_else(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench(lease=30)
    dead, released, completed, retried = await held(bench, 4)
    async with full(client):
        outcomes: list[MatadorError | None] = [
            *await bench.transport.settle(
                [
                    DeadLetter(dead.receipt, "undeliverable", "r"),
                    Retry(retried.receipt, bench.message("again")),
                ]
            ),
            *await bench.transport.settle(
                [
                    DeadLetter(dead.receipt, "undeliverable", "r"),
                    Release(released.receipt),
                    Complete(completed.receipt),
                ]
            ),
        ]
    assert [type(outcome) for outcome in outcomes] == [StorageFullError] * 3 + [type(None)] * 2
    assert not any(isinstance(outcome, UnstorableError) for outcome in outcomes)
    await bench.settle(
        DeadLetter(dead.receipt, "undeliverable", "r"),
        Retry(retried.receipt, bench.message("again")),
    )
    assert sorted(bodies(await bench.drain(bench.name(), 2))) == ["1", "again"]
