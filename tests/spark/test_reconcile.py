"""Reconciliation: every envelope in one state, and what does not add up by its id."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.spark.rows import delivered, ingest, random_day, sent
from tests.support.shop import QUEUE, TOPOLOGY, OrderPlaced

from matador import Envelope, Matador, Schema, subscriber
from matador.errors import ConfigurationError
from matador.observe.journal.records import DeliveryRecord, SentRecord
from matador.spark.aggregates.queue_depths import depths_of, queue_depths
from matador.spark.aggregates.reconcile import Line, Odd, Reconciliation, reconcile, states_in
from matador.spark.lake import Lake


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake", spark=spark)


def reconciled(lake: Lake) -> Reconciliation:
    """As Spark finds it, which must be as this process finds it."""
    by_spark = reconcile(states_in(lake, few_rows=-1))
    assert lake.reconcile() == by_spark
    return by_spark


def test_every_envelope_is_in_one_state(lake: Lake) -> None:
    records = random_day(2000)
    ingest(lake, records[:1000], records[1000:])

    last: dict[str, str] = {}
    sent_to: dict[str, tuple[str, str]] = {}
    for record in records:
        if isinstance(record, SentRecord):
            sent_to[record.id] = (record.event_key, record.subscriber)
        else:
            last[record.id] = record.outcome
    expected: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for id, key in sent_to.items():
        expected[key][last.get(id, "none")] += 1

    found = reconciled(lake)
    assert found.adds_up
    assert found.total("sent") == 2000
    assert {(line.event_key, line.subscriber) for line in found.lines} == expected.keys()
    for line in found.lines:
        counts = expected[line.event_key, line.subscriber]
        assert (line.handled, line.dead_lettered, line.discarded, line.waiting) == (
            counts["success"],
            counts["dead-letter"],
            counts["discard"],
            counts["none"],
        )
    assert {odd.problem for odd in found.odd} == {"waiting"}
    assert len(found.odd) == 60  # twenty of each of three
    assert all(odd.id not in last for odd in found.odd)


def test_what_does_not_add_up_is_named(lake: Lake) -> None:
    ingest(
        lake,
        [
            *(sent("waits"), sent("retries", after=1), delivered("retries", "retry")),
            *(sent("twice"), delivered("twice"), delivered("twice", after=5)),
            delivered("stranger", "dead-letter", error="gone"),
            # Dead, redriven by hand (attempt 1 again, and later), handled at last.
            *(sent("redriven"), delivered("redriven", "dead-letter", attempt=3, error="gone")),
            delivered("redriven", after=100, attempt=1),
            # Dead, and replayed as an envelope of its own.
            *(sent("dead"), delivered("dead", "dead-letter", error="gone")),
            sent("replay", after=50, replay_of="dead", replay_id="r1"),
            delivered("replay", after=51),
        ],
    )
    found = reconciled(lake)
    (line,) = found.lines
    assert line == Line(
        "order.placed",
        "ship",
        sent=6,
        handled=3,
        dead_lettered=1,
        discarded=0,
        waiting=2,
        replayed=1,
        sent_again=1,
        handled_twice=1,
        not_sent=1,
    )
    assert not line.adds_up
    assert not found.adds_up
    assert [(odd.problem, odd.id) for odd in found.odd] == [
        ("handled-twice", "twice"),
        ("not-sent", "stranger"),
        ("waiting", "waits"),
        ("waiting", "retries"),
    ]
    assert found.odd[0] == Odd("handled-twice", "twice", "order.placed", "ship", "events")


def test_the_broker_says_whether_waiting_ones_wait(lake: Lake) -> None:
    ingest(lake, [sent("1"), sent("2"), sent("3"), delivered("3")])
    (check,) = lake.reconcile(depths={"events": 2}).queues
    assert (check.waiting, check.depth, check.missing) == (2, 2, 0)
    found = lake.reconcile(depths={"events": 1})
    assert found.queues[0].missing == 1
    assert not found.adds_up
    assert lake.reconcile().queues[0].missing == 0  # nobody asked


def test_nothing_adds_up_to_nothing(lake: Lake) -> None:
    assert reconciled(lake) == Reconciliation()
    assert reconciled(lake).adds_up


def test_jobs_are_told_apart_by_their_queue_and_messages_are_left_out(lake: Lake) -> None:
    def job(id: str, queue: str, after: float = 0.0) -> SentRecord:
        return replace(sent(id, "welcome", queue, after=after), way="job")

    def ran(id: str, after: float) -> DeliveryRecord:
        return replace(delivered(id, "success", "welcome", "mail", after=after), way="job")

    ingest(
        lake,
        [
            *(job("1", "mail"), job("1", "letters"), ran("1", 1), ran("1", 3)),
            # The id is used again once the job is gone.
            *(job("7", "mail"), ran("7", 1), job("7", "mail", 9), ran("7", 10)),
            # Nobody has recorded that it was sent; two queues had it.
            delivered("9", "retry", subscriber="b", queue="two"),
            delivered("9", "discard", after=2, subscriber="a", queue="one"),
            *(replace(sent("2"), way="message"), replace(delivered("3"), way="message")),
        ],
    )
    found = reconciled(lake)
    lines = {(one.way, one.subscriber): one for one in found.lines}
    assert lines.keys() == {("job", "mail"), ("job", "letters"), ("event", "a")}
    assert (lines["job", "mail"].handled, lines["job", "mail"].handled_twice) == (3, 1)
    assert lines["job", "letters"].waiting == 1
    assert [(one.problem, one.id, one.queue) for one in found.odd] == [
        ("handled-twice", "1", "events"),
        ("not-sent", "9", "one"),
        ("waiting", "1", "events"),
    ]


def test_a_small_lake_needs_no_spark(lake: Lake) -> None:
    ingest(lake, random_day(100))

    def refuse() -> SparkSession:
        raise AssertionError("Spark was started")

    alone = Lake(lake.path)
    alone.start_later(refuse)
    assert alone.report().findings.reconciliation == lake.reconcile()
    assert alone.vacuum().files == 0
    with pytest.raises(AssertionError, match="was started"):
        alone.events()


# -- asking the broker -------------------------------------------------------------------------


async def handle(envelope: Envelope[OrderPlaced]) -> None: ...


def shop(folder: Path) -> Matador:
    """A shop that sends and never works."""
    ship = subscriber(description="Ship the parcel.")(handle)
    return Matador(
        f"sqlite:///{folder}/shop.db", schema=Schema({OrderPlaced: [ship]}), topology=TOPOLOGY
    )


def test_an_application_is_asked_for_its_depths(tmp_path: Path) -> None:
    app = shop(tmp_path)
    with app.sync() as running:
        running.send(OrderPlaced("1"))
        running.send(OrderPlaced("2"))
        assert depths_of(running) == {QUEUE: 2}
    assert depths_of(app) == {QUEUE: 2}


async def test_an_application_in_a_loop_is_asked_there(tmp_path: Path) -> None:
    async with shop(tmp_path) as app:
        await app.send(OrderPlaced("1"))
        assert await queue_depths(app) == {QUEUE: 1}
        with pytest.raises(ConfigurationError, match="sync"):
            depths_of(app)
