"""The driver of the cluster tests, a process of its own: ``cluster_program.py MASTER SHOP FOLDER``.

Makes a lake of the journal of a shop, runs its ordinary subscribers until its queue is empty, then
a DataFrame subscriber over the journal, replays the lake, and prints what was reported as one line
of JSON. No file of the shop is anywhere that the executors import from.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.spark.cluster import Cluster

from matador.errors import ConfigurationError
from matador.loading import load_application
from matador.spark import Lake, spark_session
from matador.spark.dataframes.runner import run_dataframe_subscribers
from matador.spark.dataframes.subscriber import Batch, dataframe_subscriber
from matador.spark.runtime.arrow import RecordBatch, map_in_arrow
from matador.spark.workers.worker import run_spark_worker

RATE = 40.0  # replayed messages a second: slow enough to be killed in the middle
_PATIENCE = 300.0


def slowly(folder: Path, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Pass rows on, once the test has killed an executor in the middle of it."""
    until = time.monotonic() + _PATIENCE
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    executor = daemon.rpartition(")")[2].split()[1]  # whose child the daemon of this process is
    if not (folder / "batch-started").exists():
        (folder / "executor").write_text(executor)
        (folder / "batch-started").touch()
    while not (folder / "batch-killed").exists() and time.monotonic() < until:
        time.sleep(0.05)
    yield from batches


def refused(spark: SparkSession, folder: Path) -> str:
    """What is said of an application whose file needs another one, which was not sent."""
    (folder / "neighbour.py").touch()
    (folder / "lonely.py").write_text(
        "import neighbour\n" + (folder / "shop_cluster.py").read_text()
    )
    lonely = load_application(f"{folder / 'lonely.py'}:app").app.schema
    try:
        Lake(folder / "refused", schema=lonely, spark=spark).ingest(folder / "journal")
    except ConfigurationError as error:
        return str(error)
    return "nothing"


def main(master: str, reference: str, folder: Path) -> None:
    """Run all of it."""
    spark = spark_session(master, config=Cluster(master, folder).config())
    schema = load_application(reference).app.schema
    lake = Lake(folder / "lake", schema=schema, spark=spark)
    ingested = lake.ingest(folder / "journal")
    error = refused(spark, folder)
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
    replayed = lake.replay(reference, subscriber="again", rate=RATE)
    found = {
        "ingested": [ingested.events, ingested.quarantined],
        "refused": error,
        "handled": worked.handled,
        "kept": kept,
        "totals": asdict(totals),
        "replayed": [replayed.sent, replayed.failed],
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
