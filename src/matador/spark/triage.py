"""Triage: the dead letters in groups, one for each thing that goes wrong.

A group is an error signature (see ``signature``). That many thousand dead letters are three bugs
is what a person wants to know first.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.spark.signature import signature_id_column, signature_text_column

MOST_NAMES: Final = 100
"""Names of events, subscribers and queues that a group lists; a message can name any event."""

_SETS = ("events", "subscribers", "queues")

TRIAGE_PIECE: Final = (
    "signature STRING, text STRING, error_type STRING, first_seen TIMESTAMP, last_seen TIMESTAMP, "
    "count BIGINT, example STRUCT<id: STRING, message: STRING>, events ARRAY<STRING>, "
    "subscribers ARRAY<STRING>, queues ARRAY<STRING>, first_run BIGINT"
)


def with_signature(deliveries: DataFrame) -> DataFrame:
    """Deliveries with their ``message`` (error, or reason), its ``text`` and its ``signature``."""
    message = F.coalesce("error", "reason", F.lit(""))
    return (
        deliveries.withColumn("message", message)
        .withColumn("text", signature_text_column(F.col("message")))
        .withColumn("signature", signature_id_column(F.col("error_type"), F.col("text")))
    )


def triage_piece(deliveries: DataFrame, run: int) -> DataFrame:
    """The dead letters among some deliveries, by signature, as first met in that run."""
    dead = with_signature(deliveries.where(F.col("outcome") == "dead-letter"))
    return merged_triage(
        dead.select(
            "signature",
            "text",
            "error_type",
            F.col("started_at").alias("first_seen"),
            F.col("started_at").alias("last_seen"),
            F.lit(1).cast("bigint").alias("count"),
            F.struct("id", "message").alias("example"),
            F.array("event_key").alias("events"),
            F.array("subscriber").alias("subscribers"),
            F.array("queue").alias("queues"),
            F.lit(run).cast("bigint").alias("first_run"),
        )
    )


def merged_triage(pieces: DataFrame) -> DataFrame:
    """Pieces as one row a signature. The example is the latest one."""
    return pieces.groupBy("signature").agg(
        F.min("text").alias("text"),
        F.min("error_type").alias("error_type"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.sum("count").alias("count"),
        F.max_by("example", "last_seen").alias("example"),
        *[
            F.slice(
                F.array_sort(F.array_distinct(F.flatten(F.collect_set(name)))), 1, MOST_NAMES
            ).alias(name)
            for name in _SETS
        ],
        F.min("first_run").alias("first_run"),
    )


def triage(pieces: DataFrame, runs: int) -> DataFrame:
    """The groups; ``new`` are those first met in the last of so many runs."""
    return merged_triage(pieces).select(
        "signature",
        "error_type",
        "text",
        "count",
        (F.col("first_run") == runs).alias("new"),
        "first_seen",
        "last_seen",
        F.col("example.id").alias("example_id"),
        F.col("example.message").alias("example"),
        *_SETS,
    )
