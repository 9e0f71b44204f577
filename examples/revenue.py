"""A DataFrame subscriber on Spark: revenue by country, from the journal of journaled_shop.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from matador import DontRetry, StandardRetryPolicy, event
from matador.spark import (
    Batch,
    dataframe_subscriber,
    dead_batches,
    redrive_dead_batches,
    run_dataframe_subscribers,
)

REVENUE = Path("revenue")


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int
    country: str


@dataframe_subscriber(
    OrderPlaced,
    description="Revenue by country.",
    retry=StandardRetryPolicy(max_attempts=5),
)
def revenue(orders: DataFrame, batch: Batch) -> None:
    if orders.where("data.amount < 0").count():
        raise DontRetry("there are negative amounts")
    found = orders.groupBy("data.country").agg(sql.sum("data.amount").alias("amount"))
    # Named after the batch: if the batch comes again after a crash, it replaces these files.
    found.write.mode("overwrite").parquet(f"{REVENUE}/batch={batch.id}")


def run(journal: str, checkpoint: str, spark: SparkSession | None = None) -> None:
    for totals in run_dataframe_subscribers(
        [revenue], journal=journal, checkpoint=checkpoint, spark=spark
    ):
        print(f"{totals.subscriber}: {totals.rows} rows, {totals.dead_letters} dead batches")


def redrive(checkpoint: str, spark: SparkSession | None = None) -> None:
    for dead in dead_batches(checkpoint):
        print(f"{dead.subscriber}, batch {dead.batch_id}: {dead.reason}")
    redrive_dead_batches([revenue], checkpoint=checkpoint, spark=spark)


if __name__ == "__main__":
    run("journal/", "checkpoint/")
