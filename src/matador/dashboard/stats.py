"""Figures of a period, from the history: throughput, running times, health of subscribers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from matador.charts.markup import Html, element, joined
from matador.charts.svg import (
    NARROW,
    WIDE,
    ChartSeries,
    in_every_width,
    legend,
    lines,
    stacked_bars,
)
from matador.observe.history.records import OutcomeKey, OutcomeTotals, percentile
from matador.observe.history.store import HistoryStore

PERIODS: Final = {
    "15m": ("15 minutes", 900, 30),
    "1h": ("hour", 3600, 60),
    "24h": ("24 hours", 86_400, 1800),
    "7d": ("7 days", 7 * 86_400, 10_800),
}
"""Periods to choose from: name, seconds, and the seconds that one bar of a chart covers."""

LATELY: Final = 300
"""The period of current rates and failures: the last five minutes, in seconds."""

_OUTCOMES = {
    "success": ("handled", "good"),
    "retry": ("retried", "retry"),
    "dead-letter": ("dead-lettered", "bad"),
    "discard": ("discarded", "idle"),
}


@dataclass(slots=True)
class Edge:
    """The outcomes of the messages of one name for one receiver. ``queue``: of the last ones."""

    totals: dict[str, int] = field(default_factory=dict[str, int])
    times: OutcomeTotals = field(default_factory=OutcomeTotals)
    failed_since: float | None = None
    queue: str = ""

    @property
    def attempts(self) -> int:
        """How many attempts there were."""
        return sum(self.totals.values())

    @property
    def failed(self) -> int:
        """How many of them did not succeed."""
        return self.attempts - self.totals.get("success", 0)

    @property
    def failure_rate(self) -> float:
        """The share of attempts that did not succeed."""
        return self.failed / self.attempts if self.attempts else 0.0

    @property
    def p95(self) -> float | None:
        """The estimated 95th percentile of running times in milliseconds."""
        return percentile(self.times.buckets, 0.95)

    @property
    def health(self) -> str:
        """The health in one word, which is also a CSS class."""
        if not self.attempts:
            return "idle"
        return "good" if not self.failed else "retry" if self.failure_rate < 0.1 else "bad"


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of a period."""

    step: int
    times: tuple[datetime, ...]
    outcomes: dict[str, list[int]]
    durations: dict[str, list[float | None]]
    depths: list[int]
    dead: list[int]
    edges: dict[tuple[str, str], Edge]
    lately: dict[tuple[str, str], Edge]
    queues: dict[str, Edge]

    @property
    def per_minute(self) -> float:
        """Messages handled per minute, recently."""
        handled = sum(one.totals.get("success", 0) for one in self.lately.values())
        return handled / (LATELY / 60)

    @property
    def failing(self) -> float | None:
        """The share of recent attempts that failed; None without attempts."""
        attempts = sum(one.attempts for one in self.lately.values())
        failed = sum(one.failed for one in self.lately.values())
        return failed / attempts if attempts else None

    @property
    def p95(self) -> float | None:
        """The estimated 95th percentile of recent running times in milliseconds."""
        every = OutcomeTotals()
        for one in self.lately.values():
            every.include(one.times)
        return percentile(every.buckets, 0.95)

    @property
    def has_outcomes(self) -> bool:
        """Whether any worker recorded outcomes."""
        return bool(self.edges)

    def throughput(self) -> Html:
        """The outcomes of attempts, as a chart."""
        series = [
            ChartSeries(name, self.outcomes[outcome], style)
            for outcome, (name, style) in _OUTCOMES.items()
        ]
        return self._figure("Attempts by outcome", stacked_bars, series, WIDE)

    def running_times(self) -> Html:
        """How long subscribers ran, as a chart."""
        styles = {"p50": "good", "p95": "bad"}
        series = [ChartSeries(name, self.durations[name], style) for name, style in styles.items()]
        return self._figure("Running time of subscribers", lines, series, NARROW)

    def backlog(self) -> Html:
        """Waiting messages and dead letters, as a chart."""
        series = [
            ChartSeries("waiting", self.depths, "sent"),
            ChartSeries("dead letters", self.dead, "bad"),
        ]
        return self._figure("Waiting messages and dead letters", stacked_bars, series, NARROW)

    def _figure(
        self, label: str, draw: Callable[..., Html], series: list[ChartSeries], widest: int
    ) -> Html:
        drawn = in_every_width(draw, self.times, self.step, series, widest)
        return element("figure", joined(legend(series), drawn), aria_label=label)


def read_stats(
    store: HistoryStore, period: str, now: float, queue: tuple[str, str] | None = None
) -> Stats:
    """The figures of a period, read from the history. Blocks.

    ``queue``: only those of one, by its full name and its name in the dashboard.

    Raises:
        HistoryError: the history cannot be read.
    """
    _, length, step = PERIODS[period]
    last = int(now) - int(now) % step
    starts = list(range(last - length + step, last + step, step))
    at_of = {start: at for at, start in enumerate(starts)}
    outcomes = {name: [0] * len(starts) for name in _OUTCOMES}
    times = [OutcomeTotals() for _ in starts]
    edges: defaultdict[tuple[str, str], Edge] = defaultdict(Edge)
    for start, key, totals in store.outcomes(starts[0], step):
        at = at_of.get(start)
        if at is None or key.outcome not in outcomes or (queue and key.queue != queue[0]):
            continue
        outcomes[key.outcome][at] += totals.count
        times[at].include(totals)
        edge = edges[key.event_key, key.subscriber]
        _add(edge, key, totals)
        if key.outcome != "success" and edge.failed_since is None:  # rows come in order of time
            edge.failed_since = start
    lately: defaultdict[tuple[str, str], Edge] = defaultdict(Edge)
    queues: defaultdict[str, Edge] = defaultdict(Edge)
    for _, key, totals in store.outcomes(now - LATELY, 10):
        _add(lately[key.event_key, key.subscriber], key, totals)
        _add(queues[key.queue], key, totals)
    depths, dead = [0] * len(starts), [0] * len(starts)
    for start, name, waiting, letters in store.depths(starts[0], step):
        at = at_of.get(start)
        if at is not None and (queue is None or name == queue[1]):
            depths[at] += waiting
            dead[at] += letters
    return Stats(
        step,
        tuple(datetime.fromtimestamp(start, UTC).astimezone() for start in starts),
        outcomes,
        {name: _percentiles(times, share) for name, share in (("p50", 0.5), ("p95", 0.95))},
        depths,
        dead,
        dict(edges),
        dict(lately),
        dict(queues),
    )


def _add(edge: Edge, key: OutcomeKey, totals: OutcomeTotals) -> None:
    edge.totals[key.outcome] = edge.totals.get(key.outcome, 0) + totals.count
    edge.times.include(totals)
    edge.queue = key.queue


def _percentiles(times: Iterable[OutcomeTotals], share: float) -> list[float | None]:
    return [percentile(one.buckets, share) for one in times]
