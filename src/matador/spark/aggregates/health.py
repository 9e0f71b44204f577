"""Volume and health: how many messages each subscriber had, their outcomes, and their times.

A job queue counts as a subscriber, and the name of a job as an event.

Both are kept for windows of a minute and merged into longer ones when they are read. Counts add
up; percentiles do not, so a window keeps mergeable sketches of its waiting and running times (KLL:
a few kilobytes, about one percent of rank off).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.errors import ConfigurationError
from matador.model.options import Seconds, seconds
from matador.policy.retry import Outcome
from matador.spark.tables.reader import with_way

WINDOW: Final = 60
"""The length of the stored windows, in seconds."""

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class OutcomeNames(NamedTuple):
    """What an outcome is called where attempts, and where messages are counted."""

    attempts: str
    messages: str


OUTCOMES: Final[dict[Outcome, OutcomeNames]] = {
    "success": OutcomeNames("successes", "handled"),
    "retry": OutcomeNames("retries", "retried"),
    "dead-letter": OutcomeNames("dead_letters", "dead_lettered"),
    "discard": OutcomeNames("discards", "discarded"),
}

WHO: Final[tuple[str, ...]] = ("way", "event_key", "subscriber")
"""Whose counts and times these are: a subscriber of an event, or the jobs of a name in a queue."""

_KEY = (*WHO, "window_start")
_ENDED = {names.attempts: names.messages for names in OUTCOMES.values()}
_COUNTS = ("count", *_ENDED, "ran")
_SENT = ("sent", "replayed")

VOLUME_PIECE: Final = (
    "way STRING, event_key STRING, subscriber STRING, window_start TIMESTAMP, sent BIGINT, "
    "replayed BIGINT"
)
HEALTH_PIECE: Final = (
    "way STRING, event_key STRING, subscriber STRING, window_start TIMESTAMP, count BIGINT, "
    "successes BIGINT, retries BIGINT, dead_letters BIGINT, discards BIGINT, ran BIGINT, "
    "wait_max DOUBLE, duration_max DOUBLE, wait_sketch BINARY, duration_sketch BINARY"
)


# -- pieces --------------------------------------------------------------------------------------


def volume_piece(events: DataFrame, length: int = WINDOW) -> DataFrame:
    """The volume of some envelopes."""
    return (
        with_way(events)
        .withColumn("window_start", start_of_window(F.col("recorded_at"), length))
        .groupBy(*_KEY)
        .agg(F.count("*").alias("sent"), F.count("replay_id").alias("replayed"))
    )


def health_piece(deliveries: DataFrame, length: int = WINDOW) -> DataFrame:
    """The health of some deliveries. The times of callbacks that did not run are left out."""
    ended = [
        F.count_if(F.col("outcome") == outcome).alias(names.attempts)
        for outcome, names in OUTCOMES.items()
    ]
    duration = F.when(F.col("ran"), F.col("duration_ms"))
    return (
        with_way(deliveries)
        .withColumn("window_start", start_of_window(F.col("started_at"), length))
        .groupBy(*_KEY)
        .agg(
            F.count("*").alias("count"),
            *ended,
            F.count_if("ran").alias("ran"),
            F.max("wait_ms").alias("wait_max"),
            F.max(duration).alias("duration_max"),
            F.kll_sketch_agg_double("wait_ms").alias("wait_sketch"),
            F.kll_sketch_agg_double(duration).alias("duration_sketch"),
        )
    )


def merged_volume(pieces: DataFrame, *keys: str) -> DataFrame:
    """Pieces of the volume, merged into one row for each key."""
    return pieces.groupBy(*(keys or _KEY)).agg(*[F.sum(name).alias(name) for name in _SENT])


def merged_health(pieces: DataFrame, *keys: str) -> DataFrame:
    """Pieces of the health, merged into one row for each key, including the sketches."""
    return pieces.groupBy(*(keys or _KEY)).agg(
        *[F.sum(name).alias(name) for name in _COUNTS],
        *[F.max(name).alias(name) for name in ("wait_max", "duration_max")],
        *[F.kll_merge_agg_double(name).alias(name) for name in ("wait_sketch", "duration_sketch")],
    )


# -- what people read ----------------------------------------------------------------------------


def volume(sent: DataFrame, handled: DataFrame, window: Seconds = WINDOW) -> DataFrame:
    """Sent, handled, retried, dead-lettered and discarded, per event, subscriber and window.

    ``sent`` is counted when the broker has stored the message, the others when an attempt starts.
    """
    length = whole_window(window)
    return (
        _in_windows(counts(sent, handled), length)
        .groupBy(*_KEY, "window_seconds")
        .agg(*[F.sum(name).alias(name) for name in (*_SENT, *_ENDED.values())])
    )


def counts(sent: DataFrame, handled: DataFrame) -> DataFrame:
    """The counts of volume and of health in the same columns, not added up yet."""
    zero = F.lit(0).cast("bigint")
    return sent.select(*_KEY, *_SENT, *[zero.alias(name) for name in _ENDED.values()]).unionByName(
        handled.select(
            *_KEY,
            *[zero.alias(name) for name in _SENT],
            *[F.col(count).alias(name) for count, name in _ENDED.items()],
        )
    )


def health(pieces: DataFrame, window: Seconds = WINDOW) -> DataFrame:
    """Counts, rates and percentiles per event, subscriber and window.

    The sketches stay in the table, so that its rows can be merged further.
    """
    windows = _in_windows(pieces, whole_window(window))
    return with_percentiles(merged_health(windows, *_KEY, "window_seconds"))


def with_percentiles(merged: DataFrame) -> DataFrame:
    """Add the rates and percentiles to merged rows."""
    rates = {
        "success_rate": F.col("successes") / F.col("count"),
        "retry_rate": F.col("retries") / F.col("count"),
        "dead_letter_rate": F.col("dead_letters") / F.col("count"),
    }
    # Asking an empty sketch for a quantile is an error.
    times = {
        f"{what}_{name}": F.when(
            F.col(having) > 0, F.kll_sketch_get_quantile_double(f"{what}_sketch", F.lit(rank))
        )
        for what, having in (("wait", "count"), ("duration", "ran"))
        for name, rank in QUANTILES.items()
    }
    sketches = ["wait_sketch", "duration_sketch"]
    rest = [name for name in merged.columns if name not in sketches]
    return merged.withColumns({**rates, **times}).select(*rest, *rates, *times, *sketches)


def start_of_window(moment: Column, length: int) -> Column:
    """The start of the window of ``length`` seconds that contains a moment."""
    return F.timestamp_seconds(F.floor(F.unix_seconds(moment) / length) * length)


def whole_window(window: Seconds) -> int:
    """The length of a window in seconds; ``ConfigurationError`` unless it is whole minutes."""
    length = seconds(window, "window", minimum=WINDOW)
    if length % WINDOW:
        raise ConfigurationError(
            f"window={window!r} is not a whole number of minutes; use a multiple of {WINDOW} s"
        )
    return int(length)


def _in_windows(rows: DataFrame, length: int) -> DataFrame:
    start = start_of_window(F.col("window_start"), length)
    return rows.withColumns({"window_start": start, "window_seconds": F.lit(length)})
