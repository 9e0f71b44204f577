"""Spoils messages by the thousand and watches what a target, or a whole transport, makes of them.

    script/fuzz                                   100,000 messages against the codecs, then as many
                                                  raw entries for each transport whose broker runs
    script/fuzz --count 1000000 --seed 7
    script/fuzz --target tests.fuzz.targets:codecs
    script/fuzz --raw sqlite --raw rabbitmq       raw entries alone

Prints how often each outcome was seen, and exits with 1 if anything was raised that should not be.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

from tests.fuzz import raw
from tests.fuzz.corpus import CORPUS, Sample
from tests.fuzz.mutations import mutate
from tests.fuzz.targets import Target

SHOWN = 5
CODECS = "tests.fuzz.targets:codecs"


@dataclass
class Failure:
    """A message on which the target raised something nobody should ever see."""

    number: int
    sample: Sample
    mutations: list[str]
    error: Exception


@dataclass
class Report:
    """What a run has seen."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    mutations: Counter[str] = field(default_factory=Counter[str])
    failures: list[Failure] = field(default_factory=list[Failure])


def run(target: Target, *, count: int, seed: int) -> Report:
    """Tries ``count`` spoiled messages. The same seed gives the same messages."""
    report = Report()
    with target() as try_one:
        for number in range(count):
            # A generator of its own for each: a failure is repeated by its number alone.
            random = Random(f"{seed}/{number}")
            sample, names = mutate(random.choice(CORPUS), random)
            report.mutations.update(names)
            try:
                outcome = try_one(sample)
            except Exception as error:
                outcome = f"FAILED: {type(error).__name__}"
                report.failures.append(Failure(number, sample, names, error))
            report.outcomes[outcome] += 1
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="script/fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=100_000, help="messages to try")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other messages")
    parser.add_argument("--target", help=f"module:function, {CODECS} by default")
    parser.add_argument(
        "--raw", action="append", choices=raw.TRANSPORTS, help="odd entries for a transport"
    )
    options = parser.parse_args(arguments)
    count, seed = options.count, options.seed
    outcome = 0
    if options.target is not None or options.raw is None:
        outcome |= spoil(options.target or CODECS, count=count, seed=seed)
    if options.target is None or options.raw is not None:
        logging.disable(logging.CRITICAL)  # a line for every message is of no use here
        try:
            names = options.raw or list(raw.TRANSPORTS)
            outcome |= raw.run_all(names, count=count, seed=seed, all_of_them=bool(options.raw))
        finally:
            logging.disable(logging.NOTSET)
    return outcome


def spoil(where: str, *, count: int, seed: int) -> int:
    """Aim at a target, and print what came of it."""
    module, _, name = where.partition(":")
    target: Target = getattr(importlib.import_module(module), name)
    started = perf_counter()
    report = run(target, count=count, seed=seed)
    elapsed = perf_counter() - started

    for title, counts in (("mutations", report.mutations), ("outcomes", report.outcomes)):
        print(f"{title}:")
        for name, times in counts.most_common():
            print(f"  {times:>9,}  {name}")
    for failure in report.failures[:SHOWN]:
        print(f"\nmessage {failure.number} of seed {seed}: {', '.join(failure.mutations)}")
        print(f"  codec {failure.sample.codec}, body {failure.sample.body[:300]!r}")
        print(f"  headers {str(failure.sample.headers)[:300]}")
        traceback.print_exception(failure.error, file=sys.stdout)
    print(f"\n{count:,} messages in {elapsed:.1f} s, {len(report.failures):,} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
