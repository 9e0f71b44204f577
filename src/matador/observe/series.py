"""The counters and histograms, per queue, name and subscriber.

They are plain numbers, which an event loop changes and any thread may read: the metrics of
``prometheus_client`` take a lock for each change, which costs more than everything else. The
numbers are converted to its metrics on collection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from matador.errors import ConfigurationError
from matador.policy.retry import Outcome
from matador.runtime.facts import Attempt

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""The upper bounds of the histograms, in seconds."""

_LABELS = ("way", "queue", "name", "subscriber")


class Series:
    """The metrics of one queue, name and subscriber.

    Those of sends and of attempts appear when they are first used: a process that only sends
    shows no attempts.
    """

    __slots__ = (
        "_bounds",
        "duration",
        "durations",
        "labels",
        "outcomes",
        "send_errors",
        "sent",
        "wait",
        "waits",
    )

    def __init__(self, labels: tuple[str, ...], bounds: Sequence[float]) -> None:
        self.labels = labels
        self.sent = 0
        self.send_errors = 0
        self.outcomes: dict[Outcome, int] = {}
        self._bounds = bounds
        self.durations: list[int] = []
        self.waits: list[int] = []
        self.duration = self.wait = 0.0

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Count attempts that have ended. A message that was refused has no duration."""
        outcomes, bounds = self.outcomes, self._bounds
        durations, waits = self.durations, self.waits
        shortest, total, waited_in_all = bounds[0], 0.0, 0.0
        successes = 0
        for attempt in attempts:
            outcome = attempt.outcome
            if outcome == "success":
                successes += 1
            else:
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if not attempt.ran:
                continue
            if not durations:
                durations, waits = self._make_histograms()
            duration, message = attempt.duration, attempt.message
            durations[0 if duration <= shortest else bisect_left(bounds, duration)] += 1
            total += duration
            due = message.due_at
            waited = attempt.started_at - (message.created_at if due is None else due)
            if waited <= shortest:
                waits[0] += 1
                if waited < 0:  # clocks of two machines may differ
                    continue
            else:
                waits[bisect_left(bounds, waited)] += 1
            waited_in_all += waited
        if successes:
            outcomes["success"] = outcomes.get("success", 0) + successes
        self.duration += total
        self.wait += waited_in_all

    def _make_histograms(self) -> tuple[list[int], list[int]]:
        number = len(self._bounds) + 1
        self.waits = [0] * number
        self.durations = [0] * number
        return self.durations, self.waits


class AllSeries:
    """All series: a collector of ``prometheus_client``. ``collect`` may run in any thread.

    Raises:
        ConfigurationError: the bounds of the histograms are not in order.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(float(one) for one in bounds if one != float("inf"))
        if not self._bounds or list(self._bounds) != sorted(set(self._bounds)):
            raise ConfigurationError(
                f"Metrics: buckets must be numbers in ascending order, got {bounds!r}"
            )
        self._series: list[Series] = []
        self.malformed: dict[str, int] = {}
        self.fallbacks: dict[tuple[str, str], int] = {}

    def make(self, labels: tuple[str, ...]) -> Series:
        """Create a series."""
        made = Series(labels, self._bounds)
        self._series.append(made)
        return made

    def describe(self) -> Iterable[Metric]:
        """All metrics without values, to reserve their names."""
        return self._metrics([])

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        return self._metrics(list(self._series))

    def _metrics(self, series: Sequence[Series]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        def counter(name: str, text: str, labels: Sequence[str] = _LABELS) -> Any:
            return CounterMetricFamily(f"matador_{name}", text, labels=labels)

        sent = counter("messages_sent", "Messages that the broker has stored.")
        errors = counter("send_errors", "Messages that could not be stored.")
        text = "Attempts to handle a message, by outcome."
        attempts = counter("attempts", text, (*_LABELS, "outcome"))
        letters = counter("dead_letters", "Messages that became dead letters.")
        malformed = counter("malformed", "Messages that could not be read.", ("queue",))
        text = "Messages sent to the next transport, because one failed."
        fallbacks = counter("transport_fallbacks", text, ("failed", "next"))
        durations = HistogramMetricFamily(
            "matador_attempt_duration_seconds",
            "How long the handler of a message ran.",
            labels=_LABELS,
        )
        waits = HistogramMetricFamily(
            "matador_wait_seconds",
            "How long a message waited after it was due, until an attempt began.",
            labels=_LABELS,
        )
        for one in series:
            for family, number in (
                (sent, one.sent),
                (errors, one.send_errors),
                (letters, one.outcomes.get("dead-letter", 0)),
            ):
                if number:
                    family.add_metric(one.labels, number)
            for outcome, number in list(one.outcomes.items()):
                attempts.add_metric((*one.labels, outcome), number)
            if one.durations:
                durations.add_metric(one.labels, self._buckets(one.durations), one.duration)
                waits.add_metric(one.labels, self._buckets(one.waits), one.wait)
        for queue, number in list(self.malformed.items()):
            malformed.add_metric((queue,), number)
        for names, number in list(self.fallbacks.items()):
            fallbacks.add_metric(names, number)
        yield from (sent, errors, attempts, letters, malformed, fallbacks, durations, waits)

    def _buckets(self, counts: Sequence[int]) -> list[tuple[str, float]]:
        """Cumulative counts by bucket, as in Prometheus."""
        total = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds, float("inf")), list(counts), strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return found
