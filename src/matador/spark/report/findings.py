"""The content of a report: health, slow and failing subscribers, growth, dead letters.

All of it comes from the aggregates, without Spark, and is bounded, however large the lake is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from matador.spark.aggregates import windows
from matador.spark.aggregates.reconcile import Reconciliation
from matador.spark.aggregates.store import Aggregates
from matador.spark.runtime.arrow import Table, pa
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
        """Messages sent in the second half, relative to the first; None if the first has none."""
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
_VOLUME = ("sent", *windows.ENDED)
_KEY = list(windows.WHO)
_NEVER: dict[str, Any] = {"count": 0}
_MOST_KINDS = 20
_MICROS = 1_000_000


def find(lake: LakeTables, aggregates: Aggregates, reconciliation: Reconciliation) -> Findings:
    """The findings of a lake, from its tables, its aggregates and its reconciliation."""
    groups = aggregates.read("triage").sort_by(
        [("count", "descending"), ("signature", "ascending")]
    )
    findings = Findings(
        lake=lake.name,
        made_at=datetime.now(UTC),
        groups=tuple(_group(row) for row in groups.slice(0, MOST_GROUPS).to_pylist()),
        more_groups=max(groups.num_rows - MOST_GROUPS, 0),
        quarantined=_quarantined(lake),
        reconciliation=reconciliation,
    )
    volume = aggregates.read("volume")
    if not volume.num_rows:
        return findings
    times = volume.column("window_start").cast(pa.int64()).to_numpy() // _MICROS
    start, end = int(times.min()), int(times.max()) + windows.WINDOW
    step = next((one for one in _STEPS if (end - start) // one < _MOMENTS), _STEPS[-1])
    counts = windows.from_health(aggregates.read("health"))
    if step < windows.WINDOW:  # finer than the stored windows; a short period is counted quickly
        fine = _counted_finely(lake, aggregates, step)
        if _total(fine_volume := windows.to_volume(fine, step)) == _total(volume):
            counts, volume = fine, fine_volume
        else:  # rows have expired, but the stored counts include them
            step = windows.WINDOW
    subscribers, more = _subscribers(volume, counts, (start + end) // 2)
    return replace(
        findings,
        step=step,
        moments=_moments(volume, counts, step),
        subscribers=subscribers,
        more_subscribers=more,
    )


def _total(volume: Table) -> int:
    return sum(sum(volume.column(name).to_pylist()) for name in _VOLUME)


def _counted_finely(lake: LakeTables, aggregates: Aggregates, step: int) -> windows.Counts:
    found: list[windows.Counts] = []
    for name in ("events", "deliveries"):
        table = lake.layout.table(name).open()
        found.append(aggregates.count(table, table.files(), step).counts)
    return windows.add_up(found)


def _moments(volume: Table, counts: windows.Counts, step: int) -> tuple[Moment, ...]:
    rows = windows.add_volume([volume], step)
    totals = rows.group_by("window_start").aggregate([(name, "sum") for name in _VOLUME])
    found: dict[int, Moment] = {}
    for row in totals.to_pylist():
        at = int(row["window_start"].timestamp())
        found[at] = Moment(_utc(at), **{name: row[f"{name}_sum"] for name in _VOLUME})
    for row in windows.to_health(counts, step, ["window_start"]).to_pylist():
        at = int(row["window_start"].timestamp())
        if at in found:
            wait, duration = _percentiles(row, "wait"), _percentiles(row, "duration")
            found[at] = replace(found[at], wait=wait, duration=duration)
    for at, name, count in _by_event(rows):
        found[at].by_event[name] = count
    every = range(min(found), max(found) + 1, step)
    return tuple(found.get(at) or Moment(_utc(at)) for at in every)


def _by_event(volume: Table) -> list[tuple[int, str, int]]:
    """The messages sent of the most frequent events, and of all others together, by moment."""
    by_event = volume.group_by(["window_start", "event_key"]).aggregate([("sent", "sum")])
    rows = [
        (row["window_start"], row["event_key"], row["sent_sum"]) for row in by_event.to_pylist()
    ]
    totals: Counter[str] = Counter()
    for _, name, sent in rows:
        totals[name] += sent
    ranked = sorted(totals, key=lambda name: (-totals[name], name))[:MOST_EVENTS]
    found: Counter[tuple[int, str]] = Counter()
    for at, name, sent in rows:
        if sent:
            found[int(at.timestamp()), name if name in ranked else OTHERS] += sent
    return [(at, name, sent) for (at, name), sent in found.items()]


def _subscribers(
    volume: Table, counts: windows.Counts, middle: int
) -> tuple[tuple[SubscriberHealth, ...], int]:
    sent: Counter[tuple[str, str, str]] = Counter()
    early: Counter[tuple[str, str, str]] = Counter()
    for row in volume.select([*_KEY, "window_start", "sent"]).to_pylist():
        key = row["way"], row["event_key"], row["subscriber"]
        sent[key] += row["sent"]
        if row["window_start"].timestamp() < middle:
            early[key] += row["sent"]
    times = {
        (row["way"], row["event_key"], row["subscriber"]): row
        for row in windows.to_health(counts, keys=_KEY).to_pylist()
    }
    every = sorted(
        {*sent, *times},
        key=lambda key: (-sent[key], -times.get(key, _NEVER)["count"], key[1:], key),
    )
    chosen = every[:MOST_SUBSCRIBERS]
    return tuple(
        _subscriber(key, sent[key], early[key], times.get(key, _NEVER)) for key in chosen
    ), len(every) - len(chosen)


def _subscriber(
    key: tuple[str, str, str], sent: int, early: int, row: Mapping[str, Any]
) -> SubscriberHealth:
    names = ["count", *(names.attempts for names in windows.OUTCOMES.values())]
    percentiles = [f"{what}_{one}" for what in ("wait", "duration") for one in windows.QUANTILES]
    counts: dict[str, Any] = {name: row.get(name) or 0 for name in names}
    times: dict[str, Any] = {name: row.get(name) for name in percentiles}
    return SubscriberHealth(
        *key[1:],
        way=key[0],
        sent=sent,
        sent_early=early,
        sent_late=sent - early,
        **counts,
        **times,
    )


def _percentiles(
    row: Mapping[str, Any], what: str
) -> tuple[float | None, float | None, float | None]:
    return row[f"{what}_p50"], row[f"{what}_p95"], row[f"{what}_p99"]


def _group(row: Mapping[str, Any]) -> DeadLetterGroup:
    fields: dict[str, Any] = dict(row)
    for name in ("first_seen", "last_seen"):
        fields[name] = fields[name].astimezone(UTC)
    for name in ("events", "subscribers", "queues"):
        fields[name] = tuple(fields[name])
    return DeadLetterGroup(**fields)


def _quarantined(lake: LakeTables) -> tuple[tuple[str, int], ...]:
    try:
        table = lake.layout.table("quarantine").open(create=False)
    except FileNotFoundError:
        return ()
    kinds: Counter[str] = Counter()
    for batch in table.dataset().to_batches(columns=["kind"]):
        kinds.update(batch.column(0).to_pylist())
    return tuple(sorted(kinds.items(), key=lambda one: (-one[1], one[0]))[:_MOST_KINDS])


def _utc(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)
