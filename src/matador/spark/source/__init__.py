"""The Spark data source ``matador``: queues and journals as tables and streams, rows as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register ``format("matador")`` with a session.

    Spark finds it by itself where this package is installed; this is for sessions with other import
    paths, and harmless elsewhere.

    Example:
        >>> register(spark)
        >>> spark.read.format("matador").option("journal", "journal/").load()
    """
    from pyspark.errors import PySparkException

    from pyspark_matador import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except PySparkException as error:
        # Spark 4.0 refuses to replace a source that it has found by itself.
        if "already exists" not in str(error):
            raise
