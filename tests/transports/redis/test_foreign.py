"""What somebody else wrote into our keys: read as far as it goes, and in nobody's way."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.support.redis import is_reading
from tests.support.taking import take_stored
from tests.transports.redis.conftest import Open, OpenEither, OpenList
from tests.transports.redis.test_connection import kill_clients

from matador.errors import TransportError
from matador.model.message import Complete, DeadLetter, Message, Release, Retry
from matador.model.topology import WorkQueue
from matador.testing import wait_for
from matador.testing.compliance.bench import bodies, collect
from matador.transports.redis import pubsub
from matador.transports.redis.wire import message_of

pytestmark = pytest.mark.broker

DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([b"i", b"1"], "'b', the body, is missing"),
        ([b"x", b"1", b"y", b"2"], "'b', the body, is missing"),
        ([b"b", b"1", b"b", b"2"], "'b' is repeated"),
        ([b"b", b"1", b"h", b"\xff"], "field 'h'"),
        ([b"b", b"1", b"h", b"[]"], "field 'h'"),
        ([b"b", b"1", b"h", b'{"a": 1.5}'], "field 'h'"),
        ([b"b", b"1", b"h", b'{"a": %s}' % (b"9" * 9000)], "field 'h'"),
        ([b"b", b"1", b"h", DEEP], "field 'h'"),
        ([b"b", b"1", b"p", b"high"], "field 'p'"),
        ([b"b", b"1", b"p", b"9" * 9000], "field 'p'"),
        ([b"b", b"1", b"k", b"\xff"], "field 'k'"),
        ([b"b", b"1", b"r", b"\xff"], "field 'r'"),
        ([b"b", b"1", b"h", b"x", b"k", b"\xff"], "field 'h': .*; field 'k': "),
    ],
)
async def test_what_cannot_be_read_of_an_entry_is_left_out_and_noted(
    open_bench: Open, client: Any, fields: list[bytes], said: str
) -> None:
    bench = await open_bench()
    await bench.send("before")
    await client.execute_command("XADD", f"{bench.key()}:0", "*", *fields)
    await bench.send("after")
    assert len(await collect(bench.transport.browse(bench.name()))) == 3
    first, odd, last = await bench.receive(await bench.subscribe(), 3)
    assert bodies([first, last]) == ["before", "after"]
    assert (first.problem, last.problem) == (None, None)
    assert re.search(said, odd.problem or "")
    # Its raw form is kept, and can be looked at.
    await bench.settle(DeadLetter(odd.receipt, "undeliverable", "malformed"))
    (letter,) = await collect(bench.transport.browse(bench.dead_letters()))
    assert letter.reason == "malformed"
    ((_, kept),) = await client.xrange(f"{bench.key(bench.dead_letters())}:0")
    assert kept.pop(b"r") == b"malformed"
    sent = dict(zip(fields[::2], fields[1::2], strict=True))
    sent.pop(b"r", None)
    assert kept == sent


async def test_what_is_more_than_we_know_is_no_problem(open_bench: Open, client: Any) -> None:
    bench = await open_bench()
    key = "k" * 3_000_000
    large = 10**30
    fields = {"i": b"\xff", "b": "1", "z": b"\xff", "k": key, "p": -large, "h": f'{{"a":{large}}}'}
    await client.xadd(f"{bench.key()}:0", fields)
    (stored,) = await collect(bench.transport.browse(bench.name()))
    assert stored.id == "\N{REPLACEMENT CHARACTER}"
    (delivery,) = await bench.receive(await bench.subscribe(), 1)
    assert delivery.problem is None
    assert (delivery.receipt.ordering_key, delivery.receipt.priority) == (key, -large)
    assert delivery.headers == {"a": large}
    # And so it can be retried.
    again = bench.message("1", headers=delivery.headers, priority=-large, key=key)
    await bench.settle(Retry(delivery.receipt, again))
    assert await bench.count(bench.name()) == 1


async def test_more_fields_than_a_script_can_store_are_kept_all_the_same(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench()
    many = [field for number in range(9000) for field in (f"f{number}", "x")]
    await client.execute_command("XADD", f"{bench.key()}:0", "*", *many, "b", "body")
    await client.execute_command("XADD", f"{bench.key()}:0", "*", *many, "b", "body")
    raw, bare = await bench.receive(await bench.subscribe(), 2)
    await bench.settle(
        DeadLetter(raw.receipt, "undeliverable", "malformed"),
        DeadLetter(bare.receipt, "undeliverable", "malformed", bare=True),
    )
    letters = await collect(bench.transport.browse(bench.dead_letters()))
    assert bodies(letters) == ["body", "body"]
    assert [letter.reason for letter in letters] == ["malformed"] * 2
    ((_, kept), (_, least)) = await client.xrange(f"{bench.key(bench.dead_letters())}:0")
    assert b"f8999" in kept[b"f"]
    assert set(least) == {b"b", b"r"}


@pytest.mark.parametrize("count", [10**6, 2**53, 2**62, 2**63 - 1])
@pytest.mark.parametrize("uncounted", [b"0", b"nan", b"inf", b"-9", b"\xff", b"9" * 40])
async def test_deliveries_that_nobody_can_have_counted_end_as_many(
    open_bench: Open, client: Any, count: int, uncounted: bytes
) -> None:
    bench = await open_bench()
    lane = f"{bench.key()}:0"
    await bench.send("worn out")
    ((id_, _),) = await client.xrange(lane)
    await client.xreadgroup("matador", "ghost", {lane: ">"})
    options = ("IDLE", 10**9, "RETRYCOUNT", count)
    await client.execute_command("XCLAIM", lane, "matador", "ghost", 0, id_, *options)
    await client.hset(f"{bench.key()}:uncounted", b"0:" + id_, uncounted)
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    assert 10**6 <= delivery.receipt.delivery_count < 2**63
    (seen,) = await collect(bench.transport.browse(bench.name()))
    assert seen.delivery_count == delivery.receipt.delivery_count
    assert list(await bench.transport.renew([delivery.receipt])) == [True]
    await bench.settle(Release(delivery.receipt))
    again = await bench.receive_one(subscription)
    await bench.settle(DeadLetter(again.receipt, "undeliverable", "worn out"))
    assert bodies(await bench.drain(bench.dead_letters(), 1)) == ["worn out"]


async def test_entries_deleted_while_somebody_held_them_are_forgotten(
    open_bench: Open, client: Any
) -> None:
    bench = await open_bench(lease=0.2)
    lane = f"{bench.key()}:0"
    await bench.send("deleted", "kept")
    ids = [id_ for id_, _ in await client.xrange(lane)]
    await client.xreadgroup("matador", "ghost", {lane: ">"})
    await client.xdel(lane, ids[0])
    kept = await bench.receive_one(await bench.subscribe())
    assert bodies([kept]) == ["kept"]
    # And one that goes while we hold it.
    await client.xdel(lane, ids[1])
    await bench.transport.settle([DeadLetter(kept.receipt, "undeliverable", "r")])
    await bench.transport.settle([Complete(kept.receipt)])

    async def forgotten() -> bool:
        return (await client.xpending(lane, "matador"))["pending"] == 0

    await wait_for(forgotten)


@pytest.mark.parametrize("member", [b"", b"\xff", b"7" * 16, b"7" * 16 + b"\xc1", b"{}"])
async def test_a_delayed_member_of_another_form_is_a_body(
    open_either: OpenEither, client: Any, member: bytes
) -> None:
    bench = await open_either()
    await client.zadd(f"{bench.key()}:delayed", {member: 2e12})
    await client.zadd(f"{bench.key()}:delayed", {b"never": "inf"})
    assert (await bench.transport.depth(bench.name())).delayed == 2
    if bench.can.browse:
        await _browse_delayed(bench, member)
    # Its time comes, that of a neighbour too.
    await client.zadd(f"{bench.key()}:delayed", {member: 1.5})
    await bench.send(bench.message("neighbour", delay=0.01))
    received = await bench.receive(await bench.subscribe(), 2)
    assert {one.body for one in received} == {member, b"neighbour"}


async def _browse_delayed(bench: Any, member: bytes) -> None:
    first, last = seen = await collect(bench.transport.browse(bench.name()))
    assert {(one.body, one.state) for one in seen} == {(member, "delayed"), (b"never", "delayed")}
    later = await collect(bench.transport.browse(bench.name(), after=first.position))
    assert [one.body for one in later] == [last.body]
    (never,) = [one for one in seen if one.body == b"never"]
    (taken,) = await take_stored(bench.transport, bench.name(), [never.position])
    await bench.complete([taken])
    assert taken.body == b"never"


async def test_elements_of_lists_that_are_not_ours_are_bodies(
    open_list: OpenList, client: Any
) -> None:
    bench = await open_list(lease=0.3)
    transport: Any = bench.transport
    base = transport._key(bench.name())
    odd = [b"", b"x", b"x", b"1:2", b"-1:0:x", b"9" * 30 + b":0:x", b"1:" + b"9" * 30 + b":x"]
    await client.rpush(f"{base}:ready", *odd)
    await bench.send("neighbour")
    received = await bench.receive(await bench.subscribe(), len(odd) + 1)
    assert [one.body for one in received] == [*odd, b"neighbour"]
    assert {one.receipt.delivery_count for one in received} == {1}
    # Frozen for longer than its lease: others get them all, counted.
    for upkeep in transport._upkeep.values():
        await upkeep.close()
    other = await open_list(lease=0.3)
    again = await other.receive(await other.subscribe(), len(odd) + 1)
    assert sorted(one.body for one in again) == sorted([*odd, b"neighbour"])
    assert {one.receipt.delivery_count for one in again} == {2}
    await other.settle(*[DeadLetter(one.receipt, "undeliverable", "r") for one in again])
    letters = await other.drain(other.dead_letters(), len(again))
    assert sorted(one.body for one in letters) == sorted([*odd, b"neighbour"])


async def test_an_absurd_count_of_a_list_stays_a_number(open_list: OpenList, client: Any) -> None:
    bench = await open_list(lease=0.2)
    transport: Any = bench.transport
    base = transport._key(bench.name())
    await client.rpush(f"{base}:held:ghost", b"5:999999999:x")
    await client.zadd(f"{base}:consumers", {"ghost": 1})
    delivery = await bench.receive_one(await bench.subscribe())
    assert (delivery.body, delivery.receipt.delivery_count) == (b"x", 10**6 + 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{\n}",
        b'{"i": 5}\nbody',
        b'{"i": "1", "h": {"a": 1.5}}\nbody',
        b'{"i": "1", "p": %s}\nbody' % (b"9" * 9000),
        b'{"i": "\xff"}\nbody',
        b'{"i": "1", "z": ' + DEEP + b"}\nbody",
    ],
)
def test_content_that_is_not_ours_is_a_body(content: bytes) -> None:
    assert message_of("q", content) == Message("", "q", content)


async def test_a_process_hears_what_anybody_publishes() -> None:
    dropped: list[tuple[str, int]] = []
    queue = pubsub.BroadcastQueue("q", lambda name, number: dropped.append((name, number)))
    queue.put(message_of("q", DEEP))
    assert [one.body for one in queue.take(1)] == [DEEP]
    assert dropped == []


# -- keys that are lost, or hold something else ----------------------------------------------------


@pytest.mark.parametrize("queue", ["events", WorkQueue("events", priorities=True)])
async def test_a_group_or_a_lane_that_somebody_deleted_is_made_again(
    open_bench: Open, client: Any, queue: str | WorkQueue
) -> None:
    bench = await open_bench(queue)
    subscription = await bench.subscribe()
    waiting = asyncio.create_task(bench.receive_one(subscription))
    await wait_for(lambda: is_reading(subscription))
    for key in await client.keys(f"{bench.key()}:*"):
        await client.delete(key)
    assert (await bench.transport.depth(bench.name())).total == 0
    await bench.send("first")
    assert bodies([await waiting]) == ["first"]
    for lane in ("0", "t"):
        await client.xgroup_destroy(f"{bench.key()}:{lane}", "matador")
    assert await collect(bench.transport.browse(bench.name()))
    await bench.send("second")
    received = await bench.receive(subscription, 2)
    assert bodies(received) == ["first", "second"], "the group has forgotten who had the first"


async def test_settings_that_somebody_deleted_are_made_again(open_bench: Open, client: Any) -> None:
    bench = await open_bench(heartbeat=0.4)
    subscription = await bench.subscribe()
    await bench.send("held", "dead")
    held, dead = await bench.receive(subscription, 2)
    waiting = asyncio.create_task(bench.receive_one(subscription))
    await wait_for(lambda: is_reading(subscription))
    await client.delete(bench.key())
    await bench.settle(Complete(held.receipt), DeadLetter(dead.receipt, "undeliverable", "r"))

    async def is_back() -> bool:
        return bool(await client.hexists(bench.key(), "levels"))

    await wait_for(is_back)
    await bench.send(bench.message("later", delay=0.01))
    assert bodies([await waiting]) == ["later"]


async def test_settings_that_make_no_sense_count_as_none(open_bench: Open, client: Any) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True, retention=60))
    odd = {"levels": "1e9", "retention": "nan", "max_length": "x", "last_ms": "?", "last_seq": "?"}
    await client.hset(bench.key(), mapping=odd)
    await bench.send("a", bench.message("b", priority=3))
    received = await bench.receive(await bench.subscribe(), 1)
    await bench.complete(received)
    await client.hset(bench.key(), mapping={"levels": "11", "last_ms": "1e300"})
    await bench.send(bench.message("c", priority=3))


async def test_a_worker_from_before_the_priorities_reads_them_once_it_meets_them(
    open_bench: Open, client: Any
) -> None:
    old = await open_bench("events", lease=0.2)
    subscription = await old.subscribe()
    new = await open_bench(WorkQueue("events", priorities=True))
    await new.send(new.message("high", priority=5))
    await client.xreadgroup("matador", "ghost", {f"{old.key()}:5": ">"})
    assert bodies([await old.receive_one(subscription)]) == ["high"]
    await new.send(new.message("higher", priority=5))
    assert bodies([await old.receive_one(subscription)]) == ["higher"]


@pytest.mark.parametrize("queue", ["events", WorkQueue("events", priorities=True, retention=60)])
async def test_an_id_of_the_future_stops_nobody(
    open_bench: Open, client: Any, queue: str | WorkQueue
) -> None:
    bench = await open_bench(queue)
    await client.xadd(f"{bench.key()}:0", {"b": "odd"}, id=f"{2**63}-5")
    await bench.send("good", bench.message("delayed", delay=0.01))
    seen = await collect(bench.transport.browse(bench.name()))
    assert bodies(seen)[:2] == ["odd", "good"]
    assert seen[0].stored_at is None
    taken = await take_stored(bench.transport, bench.name(), [seen[1].position])
    assert bodies(taken) == ["good"]
    received = await bench.receive(await bench.subscribe(), 2)
    assert bodies(received) == ["odd", "delayed"]
    await bench.complete([*taken, *received])


@pytest.mark.parametrize("part", [":delayed", ":uncounted", ":bell", ":done"])
async def test_a_key_of_another_type_fails_what_needs_it_and_nothing_else(
    open_bench: Open, client: Any, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await open_bench(WorkQueue("events", retention=60), lease=0.2)
    await bench.send("stale")
    await client.xreadgroup("matador", "ghost", {f"{bench.key()}:0": ">"})
    await client.delete(f"{bench.key()}{part}")
    await client.set(f"{bench.key()}{part}", "something else")
    outcomes = await bench.transport.send(
        [bench.message("a"), bench.message("later", delay=60), bench.message("b")]
    )
    assert [outcomes[0], outcomes[2]] == [None, None]
    subscription = await bench.subscribe()
    received = await bench.receive(subscription, 3)
    assert sorted(bodies(received)) == ["a", "b", "stale"]
    if part == ":delayed":
        assert isinstance(outcomes[1], TransportError)
        assert "another prefix" in str(outcomes[1])
        await wait_for(lambda: "WRONGTYPE" in caplog.text)
    else:
        assert outcomes[1] is None
    await bench.transport.renew([one.receipt for one in received])
    await bench.settle(Release(received[0].receipt))
    await bench.complete(received[1:])
    await bench.complete([await bench.receive_one(subscription)])
    assert (await client.xpending(f"{bench.key()}:0", "matador"))["pending"] == 0


async def test_a_queue_of_another_type_is_named_and_others_go_on(
    open_either: OpenEither, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await open_either()
    await client.delete(bench.key(bench.name("slow")))
    await client.set(bench.key(bench.name("slow")), "something else")
    (good, bad) = await bench.transport.send([bench.message("a"), bench.message("b", queue="slow")])
    assert good is None
    if type(bench.transport).__name__ == "RedisTransport":
        assert isinstance(bad, TransportError)
        assert bench.key(bench.name("slow")) in str(bad)
        assert "another prefix" in str(bad)
    # The connection is made again, though this one queue cannot be.
    await kill_clients(client)
    await wait_for(lambda: bench.transport.state.status == "connected" and _is_up(bench))
    assert bodies([await bench.receive_one(await bench.subscribe())]) == ["a"]


async def _is_up(bench: Any) -> bool:
    try:
        return (await bench.transport.depth(bench.name())).ready == 1
    except TransportError:
        return False
