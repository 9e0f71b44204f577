"""A DataFrame subscriber: revenue by customer, from the journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from matador import event

REVENUE = Path("revenue")


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    customer: str
    amount: int


# --8<-- [start:subscriber]
from pyspark.sql import functions as sql

from matador import DontRetry, StandardRetryPolicy
from matador.spark import Batch, dataframe_subscriber


@dataframe_subscriber(
    OrderPlaced,
    description="Revenue by customer.",
    retry=StandardRetryPolicy(max_attempts=5),
)
def revenue(orders: DataFrame, batch: Batch) -> None:
    if orders.where("data.amount < 0").count():
        raise DontRetry("there are negative amounts")
    found = orders.groupBy("data.customer").agg(sql.sum("data.amount").alias("amount"))
    # Keyed by the batch: if it comes again after a crash, it replaces what it had written.
    found.write.mode("overwrite").parquet(f"{REVENUE}/batch={batch.id}")


# --8<-- [end:subscriber]
# --8<-- [start:run]
from matador.spark import (
    dead_batches,
    redrive_dead_batches,
    run_dataframe_subscribers,
)


def run(journal: str, checkpoint: str, spark: SparkSession | None = None) -> None:
    for totals in run_dataframe_subscribers(
        [revenue], journal=journal, checkpoint=checkpoint, spark=spark
    ):
        print(f"{totals.subscriber}: {totals.rows} rows, {totals.dead_letters} dead batches")


def redrive(checkpoint: str, spark: SparkSession | None = None) -> None:
    for dead in dead_batches(checkpoint):
        print(f"{dead.subscriber}, batch {dead.batch_id}: {dead.reason}")
    redrive_dead_batches([revenue], checkpoint=checkpoint, spark=spark)


# --8<-- [end:run]
