"""Functions of DataFrames that subscribe to events, over a real journal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from tests.spark.dataframe_program import FATAL, Crew
from tests.spark.shop import Shop, open_shop

from matador import DontRetry, StandardRetryPolicy
from matador.errors import ConfigurationError, InvalidEventError
from matador.observe import Journal
from matador.spark.dataframes.runner import (
    dead_batches,
    redrive_dead_batches,
    run_dataframe_subscribers,
)
from matador.spark.dataframes.store import BatchState, BatchStore
from matador.spark.dataframes.subscriber import Batch, BatchResult, dataframe_subscriber
from matador.spark.runtime.arrow import parquet

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop with two subscribers, so that each event is recorded twice."""
    return open_shop(tmp_path_factory.mktemp("shop"), "shop_frames", "again", "picky")


@pytest.fixture(scope="module")
def journal(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of a hundred orders."""
    folder = tmp_path_factory.mktemp("journal")
    shop.send(range(100), Journal(folder))
    return folder


def test_each_event_is_given_once_typed_and_what_is_new_next(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    given: list[tuple[str, int, Any, int]] = []

    @dataframe_subscriber(shop.module.OrderPlaced, description="All of them.")
    def all_of_them(orders: DataFrame, batch: Batch) -> None:
        assert dict(orders.dtypes)["data"] == "struct<number:bigint,customer:string>"
        total = orders.agg(sql.sum("data.number")).collect()[0][0]
        given.append(("all", batch.id, total, batch.rows))

    @dataframe_subscriber(shop.module.OrderPlaced, description="Copies.", copy_for="picky")
    def copies(orders: DataFrame) -> None:
        assert orders.select("subscriber").distinct().collect()[0][0] == "picky"
        given.append(("copies", 0, None, orders.count()))

    journal = tmp_path / "journal"
    both = [all_of_them, copies]
    shop.send(range(1000, 1010), Journal(tmp_path / "elsewhere"))
    for numbers in (range(100), range(100, 110)):
        shop.send(numbers, Journal(journal))
        for path in (tmp_path / "elsewhere").iterdir():  # links are not followed
            (journal / f"{numbers.start}-link.jsonl").symlink_to(path)
        totals = run_dataframe_subscribers(
            both, journal=journal, checkpoint=tmp_path / "checkpoint", spark=spark
        )
        assert [(one.batches, one.rows) for one in totals] == [(1, len(numbers))] * 2
    assert sorted(given, key=str) == [
        ("all", 0, sum(range(100)), 100),
        ("all", 1, sum(range(100, 110)), 10),
        ("copies", 0, None, 10),
        ("copies", 0, None, 100),
    ]


def test_a_failing_batch_is_retried_dead_lettered_and_redriven(
    spark: SparkSession, shop: Shop, journal: Path, tmp_path: Path
) -> None:
    results: list[BatchResult] = []
    errors: list[BaseException] = [ValueError("one"), SystemExit("two"), DontRetry("three")]
    policy = StandardRetryPolicy(max_attempts=2, base_delay=0.01)

    @dataframe_subscriber(shop.module.OrderPlaced, description="Fails.", retry=policy)
    def failing(orders: DataFrame) -> None:
        if errors:
            raise errors.pop(0)
        assert orders.where("data.number >= 0").count() == 100

    checkpoint = tmp_path / "checkpoint"
    (totals,) = run_dataframe_subscribers(
        [failing], journal=journal, checkpoint=checkpoint, spark=spark, on_result=results.append
    )
    assert (totals.batches, totals.retries, totals.dead_letters) == (0, 1, 1)
    assert [(one.outcome, one.attempt, one.error) for one in results] == [
        ("retry", 1, "one"),
        ("dead-letter", 2, "two"),
    ]
    (dead,) = dead_batches(checkpoint)
    assert (dead.subscriber, dead.rows, dead.attempts) == ("failing", 100, 2)
    assert dead.reason == "max attempts exceeded (2)"
    assert spark.read.parquet(dead.events).count() == 100

    redrive_dead_batches([failing], checkpoint=checkpoint, spark=spark, batch_ids=[7])
    assert len(errors) == 1
    redrive_dead_batches([failing], checkpoint=checkpoint, spark=spark)
    (dead,) = dead_batches(checkpoint)
    assert dead.reason == "three"
    (totals,) = redrive_dead_batches([failing], checkpoint=checkpoint, spark=spark)
    assert totals.rows == 100
    assert dead_batches(checkpoint) == []


@pytest.mark.parametrize("idempotent", ["yes", "no"])
def test_a_batch_that_was_running_when_the_process_died_comes_again(
    spark: SparkSession, shop: Shop, journal: Path, tmp_path: Path, idempotent: Any
) -> None:
    given: list[Batch] = []
    checkpoint = tmp_path / "checkpoint"

    @dataframe_subscriber(shop.module.OrderPlaced, description="Dies.", idempotent=idempotent)
    def dies(orders: DataFrame, batch: Batch) -> None:
        given.append(batch)

    # What a process leaves that is killed in the middle of its first batch.
    store = BatchStore(checkpoint, "dies")
    store.make()
    store.save(0, BatchState(deliveries=1, running=True))
    run_dataframe_subscribers([dies], journal=journal, checkpoint=checkpoint, spark=spark)
    if idempotent == "yes":
        assert given == [Batch(0, attempt=1, redelivered=True, rows=100)]
        assert dead_batches(checkpoint) == []
    else:
        assert given == []
        (dead,) = dead_batches(checkpoint)
        assert dead.reason.startswith("redelivered, and the handler is not idempotent")


def test_a_batch_that_was_done_is_not_given_again(
    spark: SparkSession, shop: Shop, journal: Path, tmp_path: Path
) -> None:
    given: list[Batch] = []
    checkpoint = tmp_path / "checkpoint"

    @dataframe_subscriber(shop.module.OrderPlaced, description="Is done.")
    def is_done(orders: DataFrame, batch: Batch) -> None:
        given.append(batch)

    # Killed after its first batch was done, and before Spark had noted that.
    store = BatchStore(checkpoint, "is-done")
    store.make()
    store.save(0, BatchState(deliveries=1, attempts=1, outcome="success"))
    run_dataframe_subscribers([is_done], journal=journal, checkpoint=checkpoint, spark=spark)
    assert given == []


def test_it_follows_the_journal_until_it_is_stopped(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    stop = threading.Event()
    journal = tmp_path / "journal"
    shop.send(range(5), Journal(journal))
    rows: list[int] = []

    @dataframe_subscriber(shop.module.OrderPlaced, description="Follows.")
    def follows(orders: DataFrame, batch: Batch) -> None:
        rows.append(batch.rows)
        if sum(rows) == 8:
            stop.set()
        else:
            shop.send(range(5, 8), Journal(journal))

    (totals,) = run_dataframe_subscribers(
        [follows],
        journal=journal,
        checkpoint=tmp_path / "checkpoint",
        spark=spark,
        follow=True,
        poll=0.2,
        stop=stop,
    )
    assert rows == [5, 3]
    assert (totals.batches, totals.dead_letters) == (2, 0)


def test_a_driver_that_is_killed_skips_no_batch_and_repeats_the_one_that_ran(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    for first in range(0, 40, 10):
        shop.send(range(first, first + 10), Journal(tmp_path / "journal"))
    program = Path(__file__).with_name("dataframe_program.py")
    killed = subprocess.run(
        [sys.executable, program, shop.reference, tmp_path],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
        start_new_session=True,
        capture_output=True,
        timeout=400,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()

    crew = Crew(shop.module, tmp_path)
    totals = {one.subscriber: one for one in crew.run(spark)}

    everything = Counter(range(40))
    for name, ids in (("middle", [0, 1, 1, 2, 3]), ("careful", range(4)), ("ended", range(4))):
        given = crew.given(name)
        assert [one["id"] for one in given] == list(ids)
        assert sum(one["again"] for one in given) == (name == "middle")
        rows = {one["id"]: one["numbers"] for one in given}
        assert all(one["numbers"] == rows[one["id"]] for one in given), "the same rows come again"
        assert Counter(number for numbers in rows.values() for number in numbers) == everything
    assert {name: one.batches for name, one in totals.items()} == {
        "middle": 3,
        "careful": 2,
        "ended": 2,
    }
    assert kept(crew.kept("middle")) == kept(crew.kept("ended")) == everything
    # What must not run twice is set aside.
    (dead,) = dead_batches(tmp_path / "checkpoint")
    assert (dead.subscriber, dead.batch_id) == ("careful", FATAL)
    assert kept(crew.kept("careful")) + Counter(crew.given("careful")[FATAL]["numbers"]) == (
        everything
    )


def kept(folder: Path) -> Counter[int]:
    """The numbers in a folder of Parquet."""
    return Counter(parquet.read_table(folder).column("number").to_pylist())


def test_what_cannot_be_a_dataframe_subscriber_is_refused(shop: Shop, tmp_path: Path) -> None:
    async def slow(orders: DataFrame) -> None: ...
    def plain(orders: DataFrame) -> None: ...

    event = shop.module.OrderPlaced
    with pytest.raises(ConfigurationError, match="must not be async"):
        dataframe_subscriber(event, description="Async.")(slow)
    with pytest.raises(ConfigurationError, match="it names a folder"):
        dataframe_subscriber(event, description="Named.", name="a/b")(plain)
    with pytest.raises(InvalidEventError):
        dataframe_subscriber(int, description="No event.")
    one = dataframe_subscriber(event, description="One.")(plain)
    with pytest.raises(ConfigurationError, match="duplicate DataFrame subscriber 'plain'"):
        run_dataframe_subscribers([one, one], journal=tmp_path, checkpoint=tmp_path)
    with pytest.raises(ConfigurationError, match=r"journal folder .* does not exist"):
        run_dataframe_subscribers([one], journal=tmp_path / "none", checkpoint=tmp_path)
