"""Aggregates of a lake: volume, health and triage, kept up to date batch by batch.

An update reads only the batches that came since the last one, and a second update of the same
batches changes nothing.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from matador.model.options import Seconds
from matador.spark import health, triage
from matador.spark.aggregate_store import AggregateStore, Piece
from matador.spark.batch_log import last_done
from matador.spark.consumers import Consumers
from matador.spark.files import locked
from matador.spark.layout import Layout, spark_schema

_TABLES: Final = {
    "volume": health.VOLUME_PIECE,
    "health": health.HEALTH_PIECE,
    "triage": triage.TRIAGE_PIECE,
}


_CONSUMER = "aggregates"

FAN: Final = 8
"""So many pieces of one level are merged into one of the next."""


def update(spark: SparkSession, layout: Layout, *, fan: int = FAN) -> int:
    """Take in the batches that are new and finished; how many there were.

    Raises:
        StorageLockedError: somebody else is doing so.
    """
    store = AggregateStore(spark, layout, _TABLES)
    layout.make()
    with locked(store.lock):
        state = store.state
        store.clean()
        # Compaction merges no batch that is not in yet: it would be counted twice, or not at all.
        consumers = Consumers(layout)
        consumers.advance(_CONSUMER, state.through)
        last = last_done(layout.checkpoints / "ingest")
        present = sorted({*layout.batches("events"), *layout.batches("deliveries")})
        new = [number for number in present if state.through < number <= last]
        if new:
            deliveries = _batches(spark, layout, "deliveries", new)
            frames = {
                "volume": health.volume_piece(_batches(spark, layout, "events", new)),
                "health": health.health_piece(deliveries),
                "triage": triage.triage_piece(deliveries, state.runs + 1),
            }
            store.add(Piece(state.through + 1, last), frames)
            consumers.advance(_CONSUMER, last)
            store.merge(_merged, fan)
    return len(new)


def read_volume(spark: SparkSession, layout: Layout, window: Seconds = health.WINDOW) -> DataFrame:
    """See ``health.volume``."""
    return health.volume(*pieces(spark, layout), window)


def read_health(spark: SparkSession, layout: Layout, window: Seconds = health.WINDOW) -> DataFrame:
    """See ``health.health``."""
    return health.health(pieces(spark, layout)[1], window)


def read_triage(spark: SparkSession, layout: Layout) -> DataFrame:
    """See ``triage.triage``."""
    store = AggregateStore(spark, layout, _TABLES)
    return triage.triage(store.read("triage"), store.state.runs)


def pieces(spark: SparkSession, layout: Layout) -> tuple[DataFrame, DataFrame]:
    """The pieces of volume and of health, for whoever merges them in another way."""
    store = AggregateStore(spark, layout, _TABLES)
    return store.read("volume"), store.read("health")


def _merged(table: str, rows: DataFrame) -> DataFrame:
    if table == "volume":
        return health.merged_volume(rows)
    return health.merged_health(rows) if table == "health" else triage.merged_triage(rows)


def _batches(spark: SparkSession, layout: Layout, table: str, numbers: list[int]) -> DataFrame:
    there = set(layout.batches(table))
    folders = [str(layout.batch(table, number)) for number in numbers if number in there]
    reader = spark.read.schema(spark_schema(table)).option("basePath", str(layout.table(table)))
    if folders:
        return reader.parquet(*folders)
    return reader.parquet(str(layout.table(table))).limit(0)
