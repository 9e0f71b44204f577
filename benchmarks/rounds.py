"""Runs contestants in turn, round after round, and prints their rates as ratios.

The machine is noisy: a figure alone says little. Contestants take turns within a round, so that
noise hits all of them, and the median of the rounds' ratios is what counts (of latencies the ratio
of their medians).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Turn: TypeAlias = Callable[[], tuple[float, float]]
"""Gives a rate a second, and a second of CPU time."""


@dataclass(frozen=True)
class Bar:
    """What a ratio has to reach: ours against one contestant."""

    against: str
    at_least: float


@dataclass(frozen=True)
class Contest:
    """One thing measured: each contestant gives its rate, in messages (or calls) per second."""

    name: str
    ours: str
    contestants: dict[str, Callable[[], float]]
    bars: Sequence[Bar] = ()
    unit: str = "/s"
    lower_is_better: bool = False


@dataclass
class Outcome:
    """The rates of all rounds."""

    contest: Contest
    rates: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def rate(self, contestant: str) -> float:
        """The median rate of a contestant."""
        return statistics.median(self.rates[contestant])

    def ratio(self, against: str) -> float:
        """How many times as good as the other ours is: the median of the rounds' ratios.

        Of latencies it is the ratio of the medians: a single hiccup of the machine decides the p99
        of a round, and hits one contestant only.
        """
        if self.contest.lower_is_better:
            return self.rate(against) / self.rate(self.contest.ours)
        pairs = zip(self.rates[self.contest.ours], self.rates[against], strict=True)
        return statistics.median(ours / other for ours, other in pairs)

    @property
    def met(self) -> bool:
        """Is every bar met?"""
        return all(self.ratio(bar.against) >= bar.at_least for bar in self.contest.bars)


def hold(contest: Contest, rounds: int) -> Outcome:
    """Run a contest; the order of the contestants alternates from round to round."""
    outcome = Outcome(contest, {name: [] for name in contest.contestants})
    for number in range(rounds):
        names = list(contest.contestants)
        for name in names if number % 2 == 0 else reversed(names):
            print(f"  {contest.name}: round {number + 1}/{rounds}, {name} …", file=sys.stderr)
            outcome.rates[name].append(contest.contestants[name]())
    return outcome


def hold_both(
    name: str,
    ours: str,
    turns: dict[str, Turn],
    bars: Sequence[Bar],
    rounds: int,
    unit: str = " rows/s",
    cpu_bars: Sequence[Bar] | None = None,
) -> list[Outcome]:
    """A contest by the clock, and the same turns by CPU time, with the same bars by default."""
    by_cpu: dict[str, list[float]] = {one: [] for one in turns}

    def timed(one: str) -> Callable[[], float]:
        def turn() -> float:
            rate, cpu_rate = turns[one]()
            by_cpu[one].append(cpu_rate)
            return rate

        return turn

    contest = Contest(name, ours, {one: timed(one) for one in turns}, bars, unit)
    outcome = hold(contest, rounds)
    by_cpu_name = f"{name}, by CPU time"
    bars = bars if cpu_bars is None else cpu_bars
    return [outcome, Outcome(Contest(by_cpu_name, ours, contest.contestants, bars, "/s"), by_cpu)]


def table(outcomes: Sequence[Outcome]) -> str:
    """All outcomes as a Markdown table."""
    lines = [
        "| what | contestant | median | ours is | bar |",
        "|---|---|---:|---:|---|",
    ]
    for outcome in outcomes:
        contest = outcome.contest
        bars = {bar.against: bar.at_least for bar in contest.bars}
        for name in contest.contestants:
            ours = name == contest.ours
            ratio = "" if ours else f"{outcome.ratio(name):.2f} ×"
            bar = ""
            if name in bars:
                met = outcome.ratio(name) >= bars[name]
                bar = f"≥ {bars[name]:g} × {'met' if met else 'NOT MET'}"
            label = f"**{name}**" if ours else name
            digits = 2 if contest.lower_is_better else 0
            rate = f"{outcome.rate(name):,.{digits}f}{contest.unit}"
            lines.append(f"| {contest.name if ours else ''} | {label} | {rate} | {ratio} | {bar} |")
    return "\n".join(lines)
