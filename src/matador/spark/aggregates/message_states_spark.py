"""The state of every message of a lake of any size, computed by Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.spark.aggregates.message_states import COUNTS, MESSAGE, PLACE
from matador.spark.aggregates.windows import WHO
from matador.spark.tables.keys import EVENT


class ManyMessageStates:
    """The states of the messages in DataFrames of ``events`` and ``deliveries``."""

    def __init__(self, events: DataFrame, deliveries: DataFrame) -> None:
        self._states = _states(events, deliveries)

    def counts(self, most: int) -> list[dict[str, Any]]:
        state = F.col("state")
        is_sent = state != "not_sent"
        ends = ("handled", "dead_lettered", "discarded", "waiting")
        counts = {
            "sent": is_sent,
            **{name: state == name for name in ends},
            "replayed": F.col("replayed") & is_sent,
            "sent_again": F.col("again") & (state == "dead_lettered"),
            "handled_twice": F.col("twice"),
            "not_sent": ~is_sent,
        }
        rows = (
            self._states.groupBy(*PLACE)
            .agg(*[F.count_if(counts[name]).alias(name) for name in COUNTS])
            .orderBy(F.desc("sent"), *PLACE)
            .limit(most)
            .collect()
        )
        return [row.asDict() for row in rows]

    def odd(self, most_of_a_kind: int, most: int) -> list[dict[str, Any]]:
        problem = (
            F.when(F.col("state") == "not_sent", "not-sent")
            .when(F.col("twice"), "handled-twice")
            .when(F.col("state") == "waiting", "waiting")
        )
        of_one_kind = Window.partitionBy("problem", *WHO).orderBy("at", "id")
        rows = (
            self._states.withColumn("problem", problem)
            .where(F.col("problem").isNotNull())
            .withColumn("place", F.row_number().over(of_one_kind))
            .where(F.col("place") <= most_of_a_kind)
            .orderBy("problem", "at", "id")
            .select("problem", "id", *PLACE)
            .limit(most)
            .collect()
        )
        return [row.asDict() for row in rows]


def _states(events: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row for each message, with its state."""
    ended = (
        _with_key(deliveries)
        .groupBy("key")
        .agg(
            F.min("id").alias("d_id"),
            F.count_if(F.col("outcome") == "success").alias("successes"),
            # By time: a redriven message starts again with attempt 1.
            F.max_by("outcome", F.struct("started_at", "attempt", "outcome")).alias("last"),
            *[F.min(name).alias(f"d_{name}") for name in PLACE],
            F.min("started_at").alias("d_at"),
        )
    )
    # Job ids may be reused.
    copies = F.count("*").over(Window.partitionBy("key")).alias("copies")
    known = _with_key(events).select(
        "key", "id", *PLACE, "recorded_at", "replay_id", "replay_of", copies
    )
    again = (
        _with_key(known.where(F.col("replay_of").isNotNull()).drop("key"), "replay_of")
        .select("key", F.lit(True).alias("again"))
        .distinct()
    )
    is_sent = F.col("recorded_at").isNotNull()
    state = (
        F.when(~is_sent, "not_sent")
        .when(F.col("successes") > 0, "handled")
        .when(F.col("last") == "dead-letter", "dead_lettered")
        .when(F.col("last") == "discard", "discarded")
        .otherwise("waiting")
    )
    return (
        known.join(ended, "key", "full_outer")
        .join(again, "key", "left")
        .select(
            *[F.coalesce(name, f"d_{name}").alias(name) for name in ("id", *PLACE)],
            F.coalesce("recorded_at", "d_at").alias("at"),
            state.alias("state"),
            F.col("replay_id").isNotNull().alias("replayed"),
            F.coalesce("again", F.lit(False)).alias("again"),
            (F.coalesce("successes", F.lit(0)) > F.coalesce("copies", F.lit(1))).alias("twice"),
        )
    )


def _with_key(rows: DataFrame, id_: str = "id") -> DataFrame:
    """Rows with the key of their message: the id of an event, or the id in its queue.

    Messages of pub/sub are left out.
    """
    own = F.concat_ws("\x1f", "way", "subscriber", id_)
    key = F.when(F.col("way") == EVENT, F.col(id_)).otherwise(own)
    return rows.where(F.col("way") != MESSAGE).withColumn("key", key)
