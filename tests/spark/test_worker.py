"""Ordinary subscribers on Spark, on two cores of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.shop import open_shop

from matador.errors import ClusterError, ConfigurationError, QueuePausedError
from matador.spark.workers.worker import SparkWorkerReport, run_spark_worker
from matador.testing import wait_for


async def test_every_message_is_handled_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_counted", "again", "picky")
    await asyncio.to_thread(shop.send, range(200))
    seen: list[SparkWorkerReport] = []
    report = run_spark_worker(
        shop.reference, spark=spark, until_empty=True, slice_seconds=30, progress=seen.append
    )
    log = shop.log()
    assert {number for what, number in log if what == "again-end"} == set(range(200))
    assert set(log.values()) == {1}
    assert (report.handled, report.failed, report.dead_letters, report.lost) == (380, 0, 20, 0)
    assert seen[-1] == report
    by = {(row.subscriber, row.outcome): row for row in report.outcomes}
    assert by["picky", "dead-letter"].count == 20
    assert by["picky", "dead-letter"].error == "DontRetry: no tens"
    assert by["again", "success"].event_key == "order.placed"
    assert 0 < by["again", "success"].mean_ms <= by["again", "success"].max_ms
    assert await shop.depth() == (0, 0)


async def test_an_early_stop_finishes_what_runs_and_gives_back_the_rest(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = open_shop(tmp_path, "shop_stopped", "again", seconds=0.1)
    await asyncio.to_thread(shop.send, range(2000))
    stop = threading.Event()

    def stop_soon() -> None:
        while len(shop.log()) < 20:
            stop.wait(0.05)
        stop.set()

    threading.Thread(target=stop_soon, daemon=True).start()
    report = run_spark_worker(shop.reference, spark=spark, tasks=2, slice_seconds=250, stop=stop)
    log = shop.log()
    begun = {number for what, number in log if what == "again-begin"}
    assert begun == {number for what, number in log if what == "again-end"}
    assert 0 < len(begun) < 2000
    assert report.handled == len(begun)
    assert await shop.depth() == (2000 - len(begun), 0)


def test_sigterm_ends_the_command_in_good_order(tmp_path: Path) -> None:
    orders = 2000
    shop = open_shop(tmp_path, "shop_terminated", "again", seconds=0.1)
    shop.send(range(orders))
    command = ("spark", "worker", shop.file.name, "--master", "local[2]", "--json")
    with (tmp_path / "err.txt").open("w") as err:
        worker = subprocess.Popen(
            [sys.executable, "-m", "matador", *command, "--slice-seconds", "600"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=err,
        )
    try:
        working = wait_for(lambda: len(shop.log()) >= 20 or worker.poll() is not None, timeout=240)
        asyncio.run(working)
        os.kill(worker.pid, signal.SIGTERM)
        out, _ = worker.communicate(timeout=120)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, (tmp_path / "err.txt").read_text()
    log = shop.log()
    begun = {number for what, number in log if what == "again-begin"}
    assert begun == {number for what, number in log if what == "again-end"}
    assert set(log.values()) == {1}
    assert 0 < len(begun) < orders
    assert asyncio.run(shop.depth()) == (orders - len(begun), 0)
    report = json.loads(out)
    assert [(row["outcome"], row["count"]) for row in report["outcomes"]] == [
        ("success", len(begun))
    ]
    assert report["lost"] == 0


def test_a_session_that_was_there_before_is_not_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = open_shop(tmp_path, "shop_guest", "again")
    work = partial(run_spark_worker, shop.reference, tasks=1, until_empty=True)
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    with ThreadPoolExecutor(1) as elsewhere:  # where no session is the active one
        for run in (work, lambda: elsewhere.submit(work).result()):
            shop.send(range(5))
            assert run().handled == 5
            assert spark.range(3).count() == 3
            assert spark.conf.get("spark.sql.shuffle.partitions") == "5"
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_a_queue_that_is_paused_can_never_be_emptied(spark: SparkSession, tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_waiting", "again")
    shop.send(range(5))
    asyncio.run(shop.pause())
    with pytest.raises(QueuePausedError, match=r"waiting in events.*matador queues resume"):
        run_spark_worker(shop.reference, spark=spark, tasks=2, until_empty=True)
    assert asyncio.run(shop.depth()) == (5, 0)


async def test_a_process_that_is_killed_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_deadly", "deadly")
    await asyncio.to_thread(shop.send, range(50))
    report = run_spark_worker(shop.reference, spark=spark, tasks=1, until_empty=True)
    assert report.lost == 1
    assert {number for _, number in shop.log()} == set(range(50))
    assert await shop.depth() == (0, 0)


def test_an_application_that_executors_cannot_load_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = open_shop(tmp_path, "shop_elsewhere", "again")
    only_here = "from pyspark import TaskContext\nassert TaskContext.get() is None, 'not here'\n"
    shop.file.write_text(shop.file.read_text() + only_here)
    with pytest.raises(ClusterError, match=r"5 slices failed .*AssertionError: not here"):
        run_spark_worker(shop.reference, spark=spark, tasks=1)


def test_what_cannot_run_on_a_cluster_is_refused_at_once(tmp_path: Path) -> None:
    memory = tmp_path / "shop_in_memory.py"
    memory.write_text(
        "from matador import Matador, Schema\n"
        "app = Matador('memory://', schema=Schema(), consume_from=['events'])\n"
        "idle = Matador('sqlite:///idle.db', schema=Schema())\n"
    )
    with pytest.raises(ConfigurationError, match="executors cannot read it"):
        run_spark_worker(f"{memory}:app")
    with pytest.raises(ConfigurationError, match="no queue to consume: choose from events"):
        run_spark_worker(f"{memory}:idle")
    with pytest.raises(ConfigurationError, match="slice_seconds"):
        run_spark_worker(f"{memory}:idle", queues=["events"], slice_seconds=0)
