"""Selects the events of a replay: by event, subscriber, time and SQL predicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql

from matador.errors import ConfigurationError
from matador.events.app import Matador
from matador.model.event import EventType
from matador.model.options import suggestion
from matador.spark.replay.ledger import ReplayCount
from matador.spark.runtime.compat import analyze
from matador.spark.runtime.messages import spark_error, without_logged_queries
from matador.spark.tables.decode import EVENT
from matador.spark.tables.read_only_sql import check_predicate, without_variables
from matador.spark.tables.reader import LakeTables

ROWS = (
    *("id", "event_key", "subscriber", "created_at"),
    *("correlation_id", "metadata", "data_json", "before_json"),
)
"""The columns that a replay needs."""

_SAME_EVENT = ("event_key", "created_at", "correlation_id", "data_json")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which events to select; None does not restrict them."""

    event: type[Any] | str | EventType | None = None
    subscriber: str | None = None
    since: datetime | str | None = None
    until: datetime | str | None = None
    where: str | None = None
    replays: bool = False

    def restrict(self, rows: DataFrame, time: str) -> DataFrame:
        """The rows of the subscriber and of the period, by a column with their time."""
        if self.subscriber is not None:
            rows = rows.where(rows.subscriber == self.subscriber)
        if self.since is not None:
            rows = rows.where(rows[time] >= sql.lit(moment(self.since, "since")))
        if self.until is not None:
            rows = rows.where(rows[time] < sql.lit(moment(self.until, "until")))
        return rows

    @property
    def period(self) -> dict[str, datetime | None]:
        """``since`` and ``until`` as points in time."""
        return {
            "since": None if self.since is None else moment(self.since, "since"),
            "until": None if self.until is None else moment(self.until, "until"),
        }

    def request(self, to: str | None) -> dict[str, str]:
        """The options that were given, as text."""
        event = self.event
        named = event if isinstance(event, str | None) else getattr(event, "key", repr(event))
        asked = {
            "event": named,
            "subscriber": self.subscriber,
            "where": self.where,
            "since": None if self.since is None else str(moment(self.since, "since")),
            "until": None if self.until is None else str(moment(self.until, "until")),
            "replays": "yes" if self.replays else None,
            "to": to,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """Where events are sent: to their original subscriber, another one or all; and the queue."""

    subscriber: str | None = None
    queue: str | None = None
    everybody: bool = False

    @property
    def by_event(self) -> bool:
        """Whether an event is sent once, however many subscribers it had."""
        return self.everybody or self.subscriber is not None


def target_of(app: Matador, to: str | None) -> ReplayTarget:
    """The target that ``to`` names: None, ``all``, a subscriber or a queue."""
    if to is None:
        return ReplayTarget()
    if to == "all":
        return ReplayTarget(everybody=True)
    names = _subscribers(app)
    if to in names:
        return ReplayTarget(subscriber=to)
    if app.topology.has_queue(to):
        return ReplayTarget(queue=to)
    known = ["all", *sorted(names), *(queue.name for queue in app.topology.queues)]
    raise ConfigurationError(
        f"replay to {to!r}: not a subscriber, not a queue of the application, and not 'all'"
        f"{suggestion(to, known)}"
    )


def choose(lake: LakeTables, app: Matador, choice: Choice, target: ReplayTarget) -> DataFrame:
    """The selected rows, one for each message or, if the target requires it, for each event."""
    event = None if choice.event is None else app.schema.event(choice.event)
    rows = lake.events(event, **choice.period)
    rows = rows.where(rows.way == EVENT)
    if not choice.replays:
        rows = rows.where(rows.replay_id.isNull())
    if choice.subscriber is not None:
        check_subscriber(app, choice.subscriber)
    rows = choice.restrict(rows, "created_at")
    if choice.where is not None:
        hint = "" if event else " (name an event to use the fields of its payload, as data.field)"
        rows = filtered(rows, choice.where, hint)
    return _one_an_event(rows.select(*ROWS)) if target.by_event else rows.select(*ROWS)


Groups: TypeAlias = Mapping[tuple[str, str], int]
"""The number of rows by event and original subscriber."""


def groups_of(rows: DataFrame) -> Groups:
    """The rows, counted in Spark."""
    found = rows.groupBy("event_key", "subscriber").count().collect()
    return {(str(row[0]), str(row[1])): int(row[2]) for row in found}


def counted(
    groups: Groups, app: Matador, target: ReplayTarget
) -> tuple[list[ReplayCount], list[ReplayCount]]:
    """The messages that the rows become, and the rows that no longer have a receiver."""
    counts: dict[tuple[str, str], int] = {}
    ignored: list[ReplayCount] = []
    for (event_key, subscriber), count in sorted(groups.items()):
        names = receivers(app, event_key, subscriber, target)
        if not names:
            ignored.append(ReplayCount(event_key, subscriber, count))
        for name in names:
            counts[event_key, name] = counts.get((event_key, name), 0) + count
    return [ReplayCount(key, name, count) for (key, name), count in counts.items()], ignored


def receivers(app: Matador, event_key: str, subscriber: str, target: ReplayTarget) -> Sequence[str]:
    """The subscribers that a row is sent to; empty if they no longer exist."""
    known = [one.name for one in app.schema.subscribers(event_key)]
    if target.everybody:
        return known
    wanted = target.subscriber or subscriber
    return [wanted] if wanted in known else []


def moment(given: datetime | str, what: str) -> datetime:
    """A point in time; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ConfigurationError(
            f"{what} must be a time such as 2026-11-01 or 2026-11-01T08:00:00Z, got {given!r}"
        ) from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def check_subscriber(app: Matador, name: str) -> None:
    """Raise ``ConfigurationError`` unless an event has that subscriber."""
    known = _subscribers(app)
    if name not in known:
        raise ConfigurationError(f"no event has a subscriber {name!r}{suggestion(name, known)}")


def _subscribers(app: Matador) -> set[str]:
    return {one.name for _, subscribers in app.schema for one in subscribers}


def filtered(rows: DataFrame, where: str, hint: str) -> DataFrame:
    """The rows for which a predicate is true; the error for an invalid one ends with ``hint``."""
    try:
        with without_variables(rows.sparkSession), without_logged_queries():
            return analyze(rows.where(check_predicate(rows.sparkSession, where)))
    except (AnalysisException, ParseException) as error:
        raise ConfigurationError(
            f"invalid predicate where={where!r}: {spark_error(error)}{hint}"
        ) from error


def _one_an_event(rows: DataFrame) -> DataFrame:
    """One row for each event, out of those for its subscribers.

    These rows differ only in id and subscriber. Two events that are equal to the microsecond still
    count as two: each subscriber has two rows then.
    """
    alike = Window.partitionBy(*_SAME_EVENT, "subscriber").orderBy("id")
    each = Window.partitionBy(*_SAME_EVENT, "nth").orderBy("id")
    return (
        rows.withColumn("nth", sql.row_number().over(alike))
        .withColumn("first", sql.row_number().over(each))
        .where("first = 1")
        .select(*ROWS)
    )
