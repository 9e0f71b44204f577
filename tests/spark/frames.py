"""Small DataFrames for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]], schema: str) -> DataFrame:
    """A DataFrame of a few rows. (The types of pyspark's own method are not fully known.)"""
    return cast("Any", spark).createDataFrame(list(rows), schema)
