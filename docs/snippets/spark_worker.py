"""Run the subscribers of an application on Spark until its queues are empty."""

from __future__ import annotations

from pyspark.sql import SparkSession

# --8<-- [start:worker]
from matador.spark import run_spark_worker


def work_until_empty(app: str, spark: SparkSession | None = None) -> None:
    report = run_spark_worker(
        app,  # "shop.events:app", or "shop.py:app"
        master="local[2]",  # or "spark://host:7077", "k8s://…"; or spark=, your own session
        tasks=2,
        slice_seconds=30,
        until_empty=True,
        spark=spark,
    )
    for row in report.outcomes:
        print(f"{row.subscriber}: {row.count} × {row.outcome}, {row.error or 'no error'}")


# --8<-- [end:worker]
