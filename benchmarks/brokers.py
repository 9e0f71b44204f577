"""What the benchmarks of brokers share: contests, contestants in processes of their own, bars."""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from benchmarks.peers import environment
from benchmarks.rounds import Bar, Contest, Outcome, hold, table

Role: TypeAlias = Literal["ours", "variant", "raw", "bulk", "peer", "node"]
CONTESTS = ("send-many", "send-one", "consume", "latency")
_TITLES = {
    "send-many": "send, concurrent",
    "send-one": "send, one by one",
    "consume": "consume",
}
_ROOT = Path(__file__).parents[1]
_LATENCY = 400  # messages: two seconds at the rate of the harness
_TIMEOUT = 180.0

# What a contest asks for: how many times as good as each contestant of a role ours has to be. Where
# "no worse" is asked for, a tenth is left to the noise.
_BARS: dict[str, dict[Role, float]] = {
    "send-many": {"peer": 2, "raw": 0.6},
    "send-one": {"peer": 0.9},
    "consume": {"peer": 2, "raw": 0.6, "node": 1},
    "latency": {"peer": 0.9},
}


@dataclass(frozen=True)
class Contestant:
    """One that takes part, by a script of its own.

    Attributes:
        name: what the table calls it.
        role: what it is to us, which decides the bar.
        script: in ``benchmarks/peers``; none: it is ours.
        requirements: the lock of its environment.
        share: how much of the messages it gets in a contest; slow ones get fewer.
        contests: those it takes part in.
        options: more arguments.
        module: which one is ours.
    """

    name: str
    role: Role
    script: str = ""
    requirements: str = "brokers.txt"
    share: dict[str, float] = field(default_factory=dict[str, float])
    contests: Sequence[str] = CONTESTS
    options: Sequence[str] = ()
    module: str = "benchmarks.contestant"

    def run(self, contest: str, url: str, messages: int) -> list[float]:
        """One turn: its figures."""
        number = max(200, round(messages * self.share.get(contest, 1)))
        arguments = (contest, url, _LATENCY if contest == "latency" else number, *self.options)
        if self.script:
            return environment.run_for_all(
                self.script, *arguments, requirements=self.requirements, timeout=_TIMEOUT
            )
        command = [sys.executable, "-m", self.module, *map(str, arguments)]
        return environment.figures(command, _TIMEOUT)


def parse(description: str | None, names: Sequence[str], messages: int) -> argparse.Namespace:
    """The options that all these benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=messages, help="for the quickest ones")
    parser.add_argument("--only", choices=CONTESTS, action="append", help="a contest; repeatable")
    parser.add_argument(
        "--without", choices=names, metavar="PEER", action="append", default=[], help="repeatable"
    )
    parser.add_argument("--url", help="of a server to use; default: one that is started")
    return parser.parse_args()


def running(broker: str) -> str:
    """The URL of a broker of ``script/brokers``, which is started if it does not run."""
    script = _ROOT / "script" / "brokers"
    subprocess.run([script, "up", broker], check=True, stdout=sys.stderr)
    found = subprocess.run([script, "url", broker], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def compete(contestants: Sequence[Contestant], url: str, chosen: argparse.Namespace) -> int:
    """Hold the contests, print the table; 1 if a bar is not met."""
    taking_part = [one for one in contestants if one.name not in chosen.without]
    for requirements in {
        one.requirements for one in taking_part if one.script and one.role != "node"
    }:
        environment.python(requirements)
    if any(one.role == "node" for one in taking_part) and environment.node() is None:
        print("THERE IS NO NODE: what runs on it is left out", file=sys.stderr)
        taking_part = [one for one in taking_part if one.role != "node"]
    failures: list[str] = []
    efforts: list[tuple[str, str, list[float]]] = []
    outcomes: list[Outcome] = []
    for contest in chosen.only or CONTESTS:
        own = [one for one in taking_part if contest in one.contests]
        held = [
            hold(one, chosen.rounds)
            for one in _contests(contest, own, url, chosen, failures, efforts)
        ]
        outcomes += map(_without_failed, held)
    print(table(outcomes))
    _print_efforts(efforts)
    for failure in failures:
        print(f"\nleft out: {failure}")
    return 0 if all(outcome.met for outcome in outcomes) else 1


def _contests(
    contest: str,
    contestants: list[Contestant],
    url: str,
    chosen: argparse.Namespace,
    failures: list[str],
    efforts: list[tuple[str, str, list[float]]],
) -> list[Contest]:
    ours = next(one.name for one in contestants if one.role == "ours")
    wanted = _BARS[contest]
    bars = [Bar(one.name, wanted[one.role]) for one in contestants if one.role in wanted]
    count: int = chosen.messages // 20 if contest == "send-one" else chosen.messages

    def figures(one: Contestant) -> list[float]:
        """A contestant that fails twice is no reason to lose all others, unless it is ours."""
        for again in (True, False):
            try:
                return one.run(contest, url, count)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                if one.role in ("ours", "variant"):
                    raise
                print(f"  {one.name} FAILED: {error}", file=sys.stderr)
                if not again:
                    failures.append(f"{one.name} in {contest}, as it failed")
        return [math.nan, math.nan]

    def rate(one: Contestant) -> Callable[[], float]:
        used: list[float] = []
        efforts.append((_TITLES[contest], one.name, used))

        def turn() -> float:
            rate, *cpu = figures(one)
            used.extend(figure for figure in cpu if not math.isnan(figure))
            return rate

        return turn

    if contest != "latency":
        turns = {one.name: rate(one) for one in contestants}
        return [Contest(_TITLES[contest], ours, turns, bars)]

    kept: dict[str, list[float]] = {one.name: [] for one in contestants}

    def median(one: Contestant) -> Callable[[], float]:
        def turn() -> float:
            p50, p99 = figures(one)
            kept[one.name].append(p99)
            return p50

        return turn

    def tail(one: Contestant) -> Callable[[], float]:
        return lambda: kept[one.name].pop(0)  # of the same run

    middle = Contest(
        "latency, p50", ours, {one.name: median(one) for one in contestants}, bars, " ms", True
    )
    end = {one.name: tail(one) for one in contestants}
    return [middle, replace(middle, name="latency, p99", contestants=end)]


def _print_efforts(efforts: list[tuple[str, str, list[float]]]) -> None:
    """CPU time is less at the mercy of other programs than rates are. Of the process alone: a
    contestant with processes of its own takes more."""
    known = [(what, name, used) for what, name, used in efforts if used]
    if known:
        print("\nCPU time of the process for a message, the median:\n")
    for what, name, used in known:
        print(f"- {what}, {name}: {statistics.median(used):.1f} µs")


def _without_failed(outcome: Outcome) -> Outcome:
    failed = {name for name, rates in outcome.rates.items() if any(map(math.isnan, rates))}
    contest = replace(
        outcome.contest,
        contestants={k: v for k, v in outcome.contest.contestants.items() if k not in failed},
        bars=[bar for bar in outcome.contest.bars if bar.against not in failed],
    )
    return Outcome(contest, {k: v for k, v in outcome.rates.items() if k not in failed})
