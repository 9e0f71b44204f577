"""Marks what a thread asks of Spark, so that another thread can stop it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from pyspark.sql import SparkSession

from matador.spark.runtime.connect import is_connect


@contextlib.contextmanager
def tagged(spark: SparkSession, tag: str) -> Generator[None]:
    """What this thread has Spark do in this block can be stopped with ``interrupt``."""
    add, remove = _marking(spark)
    add(tag)
    try:
        yield
    finally:
        remove(tag)


def interrupt(spark: SparkSession, tag: str) -> None:
    """Stop what runs now under this tag, from any thread. What has not begun is not stopped."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def _marking(spark: SparkSession) -> tuple[Any, Any]:
    # In a session without a server, the tags of a session are unknown to other threads.
    if is_connect(spark):
        return spark.addTag, spark.removeTag
    return spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag
