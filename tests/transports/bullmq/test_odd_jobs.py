"""An odd job becomes a delivery that says what is odd, and can be settled; others get through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.taking import take_stored

from matador.errors import MessageTooLargeError, UnstorableError
from matador.model.message import Complete, DeadLetter, Delivery, Release, Retry
from matador.model.topology import WorkQueue
from matador.testing.compliance.bench import Bench, bodies, collect
from matador.transports.base import Browsing, Leasing, Measuring
from matador.transports.bullmq import BullMQTransport
from matador.transports.bullmq.jobs import BullJob
from matador.transports.bullmq.wire import KEYS, id_bytes, id_text, job_id

if TYPE_CHECKING:
    from tests.transports.bullmq.conftest import Open

pytestmark = pytest.mark.broker

QUEUE = "shop.events"
GOOD = {"name": "n", "data": '{"a":1}', "opts": "{}", "timestamp": "1700000000000"}

ODD: list[tuple[dict[str, Any], str | None]] = [
    ({"opts": "{"}, "opts: not JSON"),
    ({"opts": "[1]"}, "opts: not a JSON object"),
    ({"opts": "[" * 5000}, "opts: not JSON"),
    ({"name": b"\xff"}, "name: not UTF-8"),
    ({"data": None}, "data: missing"),
    ({"data": '{"_jobData":"!","_metadata":{"encoding":"base64"}}'}, "_jobData: not base64"),
    ({"parent": "{"}, "parent: not JSON"),
    ({"parent": '{"id":{}}', "parentKey": "x" * 100_000}, "parentKey: not the key of a job"),
    ({"defa": "a child failed"}, "failed by BullMQ before it ran: a child failed"),
    ({"data": "[" * 5000}, None),
    ({"data": b"\xff\xfe"}, None),
    ({"atm": "x", "ats": "9" * 40, "stc": "-7"}, None),
    ({"atm": "9223372036854775807", "stc": "1.5"}, None),
    ({"priority": "nan", "delay": "-1", "timestamp": "9" * 30}, None),
]


async def put(
    client: Any, prefix: str, id_: str | bytes, fields: dict[str, Any], state: str = "wait"
) -> None:
    """Store a job as somebody else does."""
    key = f"{prefix}:{QUEUE}:".encode()
    raw = id_.encode() if isinstance(id_, str) else id_
    given = {name: value for name, value in {**GOOD, **fields}.items() if value is not None}
    await client.hset(key + raw, mapping=given)
    if state == "wait":
        await client.lpush(key + b"wait", raw)
    else:
        await client.zadd(key + state.encode(), {raw: 1})


async def odd_one(bench: Bench) -> Delivery:
    """The delivery that is not the neighbour; both must come."""
    await bench.send("neighbour")
    subscription = await bench.subscribe()
    both = [await bench.receive_one(subscription) for _ in range(2)]
    (neighbour,) = [one for one in both if one.body == b"neighbour"]
    await bench.settle(Complete(neighbour.receipt))
    (odd,) = [one for one in both if one is not neighbour]
    return odd


@pytest.mark.parametrize(("fields", "problem"), ODD, ids=[str(one[0])[:40] for one in ODD])
@pytest.mark.parametrize("state", ["wait", "delayed"])
async def test_an_odd_job_is_a_delivery_and_can_be_a_dead_letter(
    open_bench: Open,
    client: Any,
    prefix: str,
    fields: dict[str, Any],
    problem: str | None,
    state: str,
) -> None:
    bench = await open_bench()
    await put(client, prefix, "odd", fields, state)
    delivery = await odd_one(bench)
    if problem is None:
        assert delivery.problem is None
    else:
        assert delivery.problem is not None
        assert delivery.problem.startswith(problem)
    assert delivery.receipt.delivery_count == 1
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "odd"))
    assert isinstance(bench.transport, Browsing)
    (letter,) = await collect(bench.transport.browse(bench.dead_letters()))
    assert letter.headers["x-matador-dead-letter-reason"] == "odd"
    raw = await client.hget(f"{prefix}:{QUEUE}:odd", "data")
    given = fields.get("data", GOOD["data"])
    assert raw == (given.encode() if isinstance(given, str) else given)


@pytest.mark.parametrize("how", ["complete", "retry", "retry later", "release"])
async def test_counters_that_are_no_numbers_hinder_no_settlement(
    open_bench: Open, client: Any, prefix: str, how: str
) -> None:
    bench = await open_bench()
    odd = {"atm": "x", "ats": "y", "stc": "z", "priority": "nan", "parent": "{", "deid": "d"}
    await put(client, prefix, "odd", odd)
    await client.hset(f"{prefix}:{QUEUE}:de:d", "another", "type")
    await client.set(f"{prefix}:{QUEUE}:odd:dependencies", "another type")
    receipt = (await odd_one(bench)).receipt
    again = bench.message("again", id="odd", delay=0.05 if how == "retry later" else 0)
    await bench.settle(
        {"complete": Complete(receipt), "release": Release(receipt)}.get(how)
        or Retry(receipt, again)
    )
    assert isinstance(bench.transport, Measuring)
    depth = await bench.transport.depth(QUEUE)
    assert depth.in_flight == 0
    assert depth.ready + depth.delayed == (how != "complete")


@pytest.mark.parametrize("id_", [b"a:b", b"\xff\xfe", b"hex~ff", "é\n".encode(), b"x" * 5000, b"7"])
async def test_ids_of_every_form_are_settled(
    open_bench: Open, client: Any, prefix: str, id_: bytes
) -> None:
    bench = await open_bench()
    await put(client, prefix, id_, {})
    delivery = await odd_one(bench)
    assert isinstance(bench.transport, Browsing)
    assert isinstance(bench.transport, Leasing)
    assert await bench.transport.renew([delivery.receipt]) == [True]
    await bench.settle(DeadLetter(delivery.receipt, "unhandled", "r"))
    (letter,) = await collect(bench.transport.browse(bench.dead_letters("unhandled")))
    letter.position.encode()
    (taken,) = await take_stored(
        bench.transport, bench.dead_letters("unhandled"), [letter.position]
    )
    await bench.settle(Complete(taken.receipt))
    assert not await client.exists(f"{prefix}:{QUEUE}:".encode() + id_)


@pytest.mark.parametrize("kind", ["string", "list", "none", *KEYS])
@pytest.mark.parametrize("state", ["wait", "prioritized", "delayed"])
async def test_an_id_without_a_job_becomes_a_dead_letter(
    open_bench: Open, client: Any, prefix: str, kind: str, state: str
) -> None:
    bench = await open_bench()
    key = f"{prefix}:{QUEUE}"
    if kind == "string":
        await client.set(f"{key}:odd", b"the \xff text")
    elif kind == "list":
        await client.rpush(f"{key}:odd", "x")
    id_ = kind if kind in KEYS else "odd"
    if state == "wait":
        await client.lpush(f"{key}:wait", id_)
    else:
        await client.zadd(f"{key}:{state}", {id_: 1})
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    assert delivery.problem is not None
    assert delivery.body == (b"the \xff text" if kind == "string" else b"")
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", delivery.problem))
    assert await bench.count(bench.dead_letters()) == 1
    await bench.send("neighbour", bench.message("later", delay=0.01))
    found = [await bench.receive_one(subscription) for _ in range(2)]
    assert sorted(bodies(found)) == ["later", "neighbour"]


async def test_an_odd_job_among_delayed_ones_costs_no_neighbour(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(WorkQueue("events", priorities=True))
    key = f"{prefix}:{QUEUE}"
    await client.rpush(f"{key}:odd", "a list where a job should be")
    await client.zadd(f"{key}:delayed", {"odd": 0})
    await put(client, prefix, "nan", {"priority": "nan"}, "delayed")
    await bench.send(*[bench.message(str(number), delay=0.01) for number in range(5)])
    subscription = await bench.subscribe()
    found = bodies([await bench.receive_one(subscription) for _ in range(7)])
    assert sorted(found) == ["", "0", "1", "2", "3", "4", '{"a":1}']


async def test_one_odd_stalled_job_does_not_keep_the_others(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(lease=0.3)
    key = f"{prefix}:{QUEUE}"
    await client.set(f"{key}:odd", "no job")
    await client.lpush(f"{key}:active", "odd", "paused")
    await put(client, prefix, "count", {"stc": "many"})
    await bench.send("neighbour")
    subscription = await bench.subscribe()
    first = [await bench.receive_one(subscription) for _ in range(2)]
    assert sorted(bodies(first)) == ["neighbour", '{"a":1}']
    missing = {"", "neighbour", "no job", '{"a":1}'}
    while missing:  # a job whose lease ends again comes again, before or after the others
        missing -= set(bodies([await bench.receive_one(subscription)]))


async def test_a_job_that_is_removed_while_it_is_held_is_lost_and_stops_nobody(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench(lease=0.3)
    await bench.send(bench.message("a", id="m-1"))
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    await client.delete(f"{prefix}:{QUEUE}:m-1")
    (outcome,) = await bench.transport.settle([Complete(delivery.receipt)])
    assert outcome is not None
    again = await bench.receive_one(subscription)  # its id was still in BullMQ's list
    assert again.problem == "data: missing"


async def test_settings_of_a_queue_that_are_no_numbers_stop_nobody(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    odd = {"concurrency": "many", "max": "x", "duration": "y", "opts.maxLenEvents": "z"}
    await client.hset(f"{prefix}:{QUEUE}:meta", mapping=odd)
    await bench.send("a")
    subscription = await bench.subscribe()
    delivery = await bench.receive_one(subscription)
    await bench.settle(Release(delivery.receipt))
    await bench.settle(Complete((await bench.receive_one(subscription)).receipt))


@pytest.mark.parametrize("form", ["complete", "raw", "bare", "full", "retry"])
async def test_a_script_that_breaks_off_leaves_the_job_in_its_hands(
    open_bench: Open, client: Any, prefix: str, form: str
) -> None:
    bench = await open_bench()
    key = f"{prefix}:{QUEUE}"
    await put(client, prefix, "odd", {"deid": "d"})
    # What BullMQ is to add when this job is done has no name: its script breaks off.
    await client.hset(f"{key}:dn:d", "opts", "{}")
    receipt = (await odd_one(bench)).receipt
    last = bench.message("last", id="odd")
    letter = DeadLetter(receipt, "undeliverable", "r")
    forms = {
        "complete": Complete(receipt),
        "raw": letter,
        "bare": DeadLetter(receipt, "undeliverable", "r", bare=True),
        "full": DeadLetter(receipt, "undeliverable", "r", last),
        "retry": Retry(receipt, last),
    }
    (outcome,) = await bench.transport.settle([forms[form]])
    if form == "full":
        assert isinstance(outcome, UnstorableError)
        assert await client.lrange(f"{key}:active", 0, -1) == [b"odd"]
        assert await bench.transport.settle([letter]) == [None]
    else:
        assert outcome is None
    failed = await client.zrange(f"{key}:failed", 0, -1)
    assert failed == ([] if form in ("complete", "retry") else [b"odd"])
    assert await client.llen(f"{key}:active") == 0


async def test_a_server_that_cannot_write_may_do_so_later(
    open_bench: Open, client: Any, prefix: str
) -> None:
    bench = await open_bench()
    await client.rpush(f"{prefix}:{QUEUE}:failed", "a list where a set should be")
    await bench.send("a")
    delivery = await bench.receive_one(await bench.subscribe())
    letter = DeadLetter(delivery.receipt, "undeliverable", "r", bare=True)
    (outcome,) = await bench.transport.settle([letter])
    assert outcome is not None
    await client.delete(f"{prefix}:{QUEUE}:failed")
    assert await bench.transport.settle([letter]) == [None]
    assert await bench.count(bench.dead_letters()) == 1


# -- dead letters ----------------------------------------------------------------------------------


async def test_odd_dead_letters_hide_no_others(open_bench: Open, client: Any, prefix: str) -> None:
    bench = await open_bench()
    transport = bench.transport
    assert isinstance(transport, BullMQTransport)
    await put(client, prefix, "kind", {"matador-kind": b"\xff"}, "failed")
    await put(client, prefix, "taken", {"matador-taken": "x", "timestamp": "y"}, "failed")
    await put(client, prefix, "count", {"matador-taken": "-9", "timestamp": None}, "failed")
    await client.set(f"{prefix}:{QUEUE}:odd", "no job")
    await client.zadd(f"{prefix}:{QUEUE}:failed", {"odd": 1, "missing": 1})
    seen = await collect(transport.browse(bench.dead_letters()))
    assert sorted(one.id for one in seen) == ["count", "kind", "taken"]
    assert await bench.count(bench.dead_letters("unhandled")) == 0
    subscription = await transport.subscribe(bench.dead_letters(), prefetch=1)
    found = await subscription.receive(10)
    assert len(found) == 3
    assert all(one.receipt.delivery_count <= 1 for one in found)


# -- what cannot be stored -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        {"id": "\udcff"},
        {"headers": {"a": "\ud800"}},
        {"headers": {"x-bullmq-name": "\udcff"}},
        {"delay": float("inf")},
        {"delay": 1e300},
    ],
    ids=str,
)
async def test_what_can_never_be_stored_is_refused_for_good(
    open_bench: Open, spoil: dict[str, Any]
) -> None:
    bench = await open_bench("events", "slow")
    odd = bench.message("odd", **spoil)
    outcomes = await bench.transport.send([odd, bench.message("neighbour")])
    assert isinstance(outcomes[0], UnstorableError)
    assert outcomes[1] is None
    delivery = await bench.receive_one(await bench.subscribe())
    elsewhere = bench.message("odd", queue="slow", **spoil)
    for settlement in (
        Retry(delivery.receipt, odd),
        Retry(delivery.receipt, elsewhere),
        DeadLetter(delivery.receipt, "undeliverable", "r", odd),
    ):
        (outcome,) = await bench.transport.settle([settlement])
        if "delay" in spoil and isinstance(settlement, DeadLetter):
            assert outcome is None  # a dead letter has no delay
            return
        assert isinstance(outcome, UnstorableError), settlement
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "odd\udcff", bare=True))


async def test_long_ids_and_reasons_are_stored(open_bench: Open) -> None:
    bench = await open_bench()
    message = bench.message("a", id="é" * 300)
    await bench.send(message)
    delivery = await bench.receive_one(await bench.subscribe())
    reason = "x" * 1_000_000
    await bench.settle(DeadLetter(delivery.receipt, "undeliverable", reason, message))
    (letter,) = await bench.drain(bench.dead_letters(), 1)
    assert letter.headers["x-matador-dead-letter-reason"] == reason


async def test_what_the_server_would_cut_the_connection_for_is_refused(
    open_bench: Open, client: Any
) -> None:
    await client.config_set("proto-max-bulk-len", 1 << 20)
    try:
        bench = await open_bench()
        (outcome,) = await bench.transport.send([bench.message("é" * (1 << 19))])
        assert isinstance(outcome, MessageTooLargeError)
        await bench.send("a")
        delivery = await bench.receive_one(await bench.subscribe())
        large = bench.message("x" * (1 << 20))
        (outcome,) = await bench.transport.settle([Retry(delivery.receipt, large)])
        assert isinstance(outcome, MessageTooLargeError)
        letter = DeadLetter(delivery.receipt, "undeliverable", "too large", large)
        (outcome,) = await bench.transport.settle([letter])
        assert isinstance(outcome, MessageTooLargeError)
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "too large"))
        assert bench.transport.state.status == "connected"
    finally:
        await client.config_set("proto-max-bulk-len", 512 << 20)


# -- without a server ------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", [b"m-1", b"\xff", b"hex~ff", b"hex~no", b"", "é".encode()])
def test_ids_are_text_and_come_back(id_: bytes) -> None:
    text = id_text(id_)
    text.encode()
    assert id_bytes(text) == id_


def test_ids_that_would_be_keys_are_left_to_bullmq() -> None:
    assert [job_id(name) for name in ("meta", "wait", "hex~ff", "42", "a:b")] == [""] * 5


def test_numbers_that_make_no_sense_count_as_the_nearest_that_does() -> None:
    job = BullJob("j", {b"stc": b"9" * 40, b"atm": b"-3", b"matador-counted": b"x"})
    assert (job.count(failed=False), job.attempts, job.attempts_elsewhere) == (2**31 - 1, 0, 0)
    assert BullJob("j", {b"atm": b"9" * 5000}).attempts == 0  # no number of that length is read
