"""The content of a report: health, slow and failing subscribers, growth, dead letters.

Everything is computed in Spark; what is collected is bounded, however large the lake is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.spark.aggregates import health
from matador.spark.aggregates.reconcile import Reconciliation
from matador.spark.aggregates.store import Aggregates
from matador.spark.tables.reader import LakeTables


@dataclass(frozen=True, slots=True)
class SubscriberHealth:
    """The health of one subscriber of an event, or of the jobs of one name in one queue.

    Times in milliseconds; None if it never ran. The ``event_key`` of a job is its name, and its
    ``subscriber`` is its queue; ``way`` tells them apart.

    ``sent_early`` and ``sent_late`` are the halves before and after the middle of the period.
    """

    event_key: str
    subscriber: str
    sent: int
    sent_early: int
    sent_late: int
    count: int
    successes: int
    retries: int
    dead_letters: int
    discards: int
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    duration_p50: float | None
    duration_p95: float | None
    duration_p99: float | None
    way: str = "event"

    @property
    def success_rate(self) -> float:
        """The share of attempts that succeeded."""
        return self.successes / self.count if self.count else 0.0

    @property
    def retry_rate(self) -> float:
        """The share of attempts that are retried."""
        return self.retries / self.count if self.count else 0.0

    @property
    def dead_letter_rate(self) -> float:
        """The share of attempts that ended in dead letters."""
        return self.dead_letters / self.count if self.count else 0.0

    @property
    def growth(self) -> float | None:
        """What was sent in the second half, relative to the first; None if that was nothing."""
        return self.sent_late / self.sent_early if self.sent_early else None


@dataclass(frozen=True, slots=True)
class Moment:
    """The counts and times of one step of the charts."""

    start: datetime
    sent: int = 0
    handled: int = 0
    retried: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    by_event: dict[str, int] = field(default_factory=dict[str, int])
    wait: tuple[float | None, float | None, float | None] = (None, None, None)
    duration: tuple[float | None, float | None, float | None] = (None, None, None)


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """The dead letters of one error signature; see ``triage``."""

    signature: str
    error_type: str | None
    text: str
    count: int
    new: bool
    first_seen: datetime
    last_seen: datetime
    example_id: str
    example: str
    events: tuple[str, ...]
    subscribers: tuple[str, ...]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings; ``more_…`` counts those left out, ``step`` is the length of a moment in s."""

    lake: str
    made_at: datetime
    step: int = 60
    moments: tuple[Moment, ...] = ()
    subscribers: tuple[SubscriberHealth, ...] = ()
    more_subscribers: int = 0
    groups: tuple[DeadLetterGroup, ...] = ()
    more_groups: int = 0
    quarantined: tuple[tuple[str, int], ...] = ()
    reconciliation: Reconciliation = field(default_factory=Reconciliation)

    @property
    def slowest(self) -> list[SubscriberHealth]:
        """Subscribers by the 95th percentile of their running time, slowest first."""
        ran = [one for one in self.subscribers if one.duration_p95 is not None]
        return sorted(ran, key=lambda one: -(one.duration_p95 or 0))

    @property
    def failing(self) -> list[SubscriberHealth]:
        """Subscribers with dead letters or retries, worst first."""
        failed = [one for one in self.subscribers if one.dead_letters or one.retries]
        return sorted(failed, key=lambda one: (-one.dead_letter_rate, -one.retry_rate))

    @property
    def growing(self) -> list[SubscriberHealth]:
        """Subscribers that got more in the second half of the period than in the first."""
        more = [one for one in self.subscribers if one.sent_late > one.sent_early]
        return sorted(more, key=lambda one: -(one.growth or one.sent_late))

    def total(self, name: str) -> int:
        """The sum of one count of all moments: ``sent``, ``handled``, ``dead_lettered`` …"""
        return sum(getattr(moment, name) for moment in self.moments)


MOST_SUBSCRIBERS: Final = 50
MOST_GROUPS: Final = 50
MOST_EVENTS: Final = 7
"""Events that a chart shows separately; the rest are shown as one."""

OTHERS: Final = "others"

_MOMENTS = 72
_STEPS = (
    *(1, 2, 5, 10, 15, 30, 60),
    *(60 * minutes for minutes in (2, 5, 10, 15, 30, 60)),
    *(3600 * hours for hours in (2, 3, 6, 12, 24)),
    *(86_400 * days for days in (2, 7, 30, 365, 3650)),
)
_VOLUME = ("sent", *(names.messages for names in health.OUTCOMES.values()))
_KEY = list(health.WHO)


def find(lake: LakeTables, aggregates: Aggregates, reconciliation: Reconciliation) -> Findings:
    """The findings of a lake, from its tables, its aggregates and its reconciliation."""
    sent, handled = aggregates.pieces("volume"), aggregates.pieces("health")
    groups = aggregates.triage().orderBy(F.desc("count"), "signature")
    shown = tuple(_group(row) for row in groups.limit(MOST_GROUPS).collect())
    more = groups.count() - len(shown) if len(shown) == MOST_GROUPS else 0
    findings = Findings(
        lake=lake.path.name,
        made_at=datetime.now(UTC),
        groups=shown,
        more_groups=more,
        quarantined=_quarantined(lake.quarantine()),
        reconciliation=reconciliation,
    )
    start, end = _period(sent, handled)
    if start is None or end is None:
        return findings
    step = next((one for one in _STEPS if (end - start) // one < _MOMENTS), _STEPS[-1])
    if step < health.WINDOW:  # finer than what is stored; a short period is counted quickly
        sent = health.volume_piece(lake.events(), step)
        handled = health.health_piece(lake.deliveries(), step)
    subscribers, more = _subscribers(sent, handled, (start + end) // 2)
    return replace(
        findings,
        step=step,
        moments=_moments(sent, handled, step),
        subscribers=subscribers,
        more_subscribers=more,
    )


def _period(sent: DataFrame, handled: DataFrame) -> tuple[int | None, int | None]:
    starts = sent.select("window_start").unionByName(handled.select("window_start"))
    at = F.unix_seconds("window_start")
    (row,) = starts.agg(F.min(at), F.max(at) + health.WINDOW).collect()
    return row[0], row[1]


def _moments(sent: DataFrame, handled: DataFrame, step: int) -> tuple[Moment, ...]:
    start = F.unix_seconds(health.start_of_window(F.col("window_start"), step))
    volume = health.counts(sent, handled).withColumn("at", start)
    totals = volume.groupBy("at").agg(*[F.sum(name).alias(name) for name in _VOLUME])
    times = health.with_percentiles(
        health.merged_health(handled.withColumn("at", start), "at")
    ).drop("wait_sketch", "duration_sketch")
    found: dict[int, Moment] = {}
    for row in totals.orderBy("at").limit(_MOMENTS + 1).collect():
        counts: dict[str, Any] = {name: int(row[name]) for name in _VOLUME}
        found[row["at"]] = Moment(_utc(row["at"]), **counts)
    for row in times.orderBy("at").limit(_MOMENTS + 1).collect():
        if (moment := found.get(row["at"])) is not None:
            wait, duration = _percentiles(row, "wait"), _percentiles(row, "duration")
            found[row["at"]] = replace(moment, wait=wait, duration=duration)
    for at, name, count in _by_event(volume):
        if at in found:
            found[at].by_event[name] = count
    if not found:
        return ()
    every = range(min(found), max(found) + 1, step)
    return tuple(found.get(at) or Moment(_utc(at)) for at in every)


def _by_event(volume: DataFrame) -> list[tuple[int, str, int]]:
    """What was sent of the most frequent events, and of all others together, by moment."""
    ranked = volume.groupBy("event_key").agg(F.sum("sent").alias("sent"))
    common = ranked.orderBy(F.desc("sent"), "event_key").limit(MOST_EVENTS).collect()
    names = [str(row["event_key"]) for row in common]
    name = F.when(F.col("event_key").isin(names), F.col("event_key")).otherwise(OTHERS)
    rows = (
        volume.groupBy("at", name.alias("name"))
        .agg(F.sum("sent").alias("sent"))
        .where("sent > 0")
        .limit((_MOMENTS + 1) * (MOST_EVENTS + 1))
        .collect()
    )
    return [(row["at"], row["name"], row["sent"]) for row in rows]


def _subscribers(
    sent: DataFrame, handled: DataFrame, middle: int
) -> tuple[tuple[SubscriberHealth, ...], int]:
    early = F.unix_seconds("window_start") < middle
    volume = sent.groupBy(*_KEY).agg(
        F.sum("sent").alias("sent"),
        F.sum(F.when(early, F.col("sent")).otherwise(0)).alias("sent_early"),
    )
    times = health.with_percentiles(health.merged_health(handled, *_KEY))
    both = volume.join(times, _KEY, "full_outer")
    busiest = both.orderBy(F.desc(F.coalesce("sent", F.lit(0))), F.desc("count"), *_KEY)
    rows = busiest.limit(MOST_SUBSCRIBERS).collect()
    more = both.count() - len(rows) if len(rows) == MOST_SUBSCRIBERS else 0
    return tuple(_subscriber(row) for row in rows), more


def _subscriber(row: Row) -> SubscriberHealth:
    def number(name: str) -> int:
        return int(row[name] or 0)

    times: dict[str, Any] = {
        f"{what}_{rank}": row[f"{what}_{rank}"]
        for what in ("wait", "duration")
        for rank in health.QUANTILES
    }
    outcomes = [names.attempts for names in health.OUTCOMES.values()]
    return SubscriberHealth(
        event_key=row["event_key"],
        subscriber=row["subscriber"],
        way=row["way"],
        sent_late=number("sent") - number("sent_early"),
        **{name: number(name) for name in ("sent", "sent_early", "count", *outcomes)},
        **times,
    )


def _percentiles(row: Row, what: str) -> tuple[float | None, float | None, float | None]:
    return row[f"{what}_p50"], row[f"{what}_p95"], row[f"{what}_p99"]


def _group(row: Row) -> DeadLetterGroup:
    fields: dict[str, Any] = row.asDict()
    for name in ("first_seen", "last_seen"):
        fields[name] = fields[name].astimezone(UTC)
    for name in ("events", "subscribers", "queues"):
        fields[name] = tuple(fields[name])
    return DeadLetterGroup(**fields)


def _quarantined(quarantine: DataFrame) -> tuple[tuple[str, int], ...]:
    rows = quarantine.groupBy("kind").count().orderBy(F.desc("count"), "kind").limit(20).collect()
    return tuple((row["kind"], row["count"]) for row in rows)


def _utc(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)
