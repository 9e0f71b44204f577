"""The driver of the cluster tests, a process of its own: ``cluster_program.py MASTER SHOP FOLDER``.

Runs the ordinary subscribers of a shop until its queue is empty, then a DataFrame subscriber over
the journal, and prints what was reported as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from tests.spark.cluster import Cluster

from matador.events.loading import load_application
from matador.spark import spark_session
from matador.spark.arrow import RecordBatch, map_in_arrow
from matador.spark.dataframe_runner import run_dataframe_subscribers
from matador.spark.dataframe_subscribers import Batch, dataframe_subscriber
from matador.spark.worker import run_spark_worker

_PATIENCE = 300.0


def slowly(folder: Path, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Pass rows on, once the test has killed an executor in the middle of it."""
    until = time.monotonic() + _PATIENCE
    (folder / "batch-started").touch()
    while not (folder / "batch-killed").exists() and time.monotonic() < until:
        time.sleep(0.05)
    yield from batches


def main(master: str, reference: str, folder: Path) -> None:
    """Run both."""
    spark = spark_session(master, config=Cluster(master, folder).config())
    worked = run_spark_worker(reference, spark=spark, tasks=2, slice_seconds=5, until_empty=True)
    module = load_application(reference).module

    @dataframe_subscriber(module.OrderPlaced, description="Keeps orders by batch.")
    def keep(orders: DataFrame, batch: Batch) -> None:
        slow = map_in_arrow(
            orders.select("id", "data.number"), partial(slowly, folder), "id string, number bigint"
        )
        slow.write.mode("overwrite").parquet(str(folder / "kept" / f"batch={batch.id}"))

    (totals,) = run_dataframe_subscribers(
        [keep], journal=folder / "journal", checkpoint=folder / "checkpoint", spark=spark
    )
    kept = spark.read.parquet(str(folder / "kept")).select("number").distinct().count()
    found = {"lost": worked.lost, "slices": worked.slices, "kept": kept, "totals": asdict(totals)}
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
