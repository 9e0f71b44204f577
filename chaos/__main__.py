"""``./chaos/run TRANSPORT [scenario ...]``: plays scenarios, prints the five numbers of each."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from chaos.arena import Arena
from chaos.catalogue import Played, Scenario, play
from chaos.job_run import job_run
from chaos.long_run import long_run
from chaos.progress import Progress
from chaos.scenarios import CATALOGUE

LONG = "long"
JOBS = "jobs"
_SCALE = 3
_RESTARTS = {"sqlite": 0}  # no server, nothing to restart


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line."""

    transport: str
    names: Sequence[str]
    messages: int
    jobs: int
    kills: int
    job_kills: int
    restarts: int
    seed: int
    keep: bool


def main() -> int:
    """Play what was asked for; 0 if all held, 1 if something did not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="chaos/run",
        description="Kills, freezes and starves processes, and counts what was lost.",
        epilog="Without scenarios: the long run, the run of jobs, then all of them. "
        "`long`, `jobs`: these runs alone.",
    )
    parser.add_argument("transport", help="sqlite, rabbitmq, redis, bullmq or sqs")
    parser.add_argument("scenario", nargs="*", help="such as F4, F6-timeout, long or jobs")
    parser.add_argument("--messages", type=int, default=200_000, help="of the long run")
    parser.add_argument("--jobs", type=int, default=5000, help="of the run of jobs")
    parser.add_argument(
        "--kills",
        type=int,
        help="of workers: 50 in the long run, or 20 with restarts; 20 in the run of jobs",
    )
    parser.add_argument(
        "--restarts", type=int, help="of the broker in the long run: 5, where it is a server"
    )
    parser.add_argument("--seed", type=int, default=1, help="of all that is random")
    parser.add_argument("--list", action="store_true", help="say which scenarios there are")
    parser.add_argument("--keep", action="store_true", help="keep the logs of what held, too")
    given = parser.parse_args()
    if given.list:
        print(f"{LONG:11} many messages, workers and publishers killed all the while: none lost")
        print(f"{JOBS:11} many jobs, workers killed in the middle of them: each ends once")
        for scenario in CATALOGUE.all():
            print(f"{scenario.name:11} {scenario.holds}")
        return 0
    restarts = given.restarts if given.restarts is not None else _RESTARTS.get(given.transport, 5)
    options = Options(
        transport=given.transport,
        names=given.scenario,
        messages=given.messages,
        jobs=given.jobs,
        kills=given.kills if given.kills is not None else 20 if restarts else 50,
        job_kills=given.kills if given.kills is not None else 20,
        restarts=restarts,
        seed=given.seed,
        keep=given.keep,
    )
    try:
        scenarios = list(_chosen(options))
    except LookupError as error:
        parser.error(str(error.args[0]))
    # So that a run that is told to end takes its processes and its mounts with it.
    signal.signal(signal.SIGTERM, _end)
    return _play_all(scenarios, options)


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _chosen(options: Options) -> Iterator[Scenario]:
    long = Scenario(
        LONG,
        f"{options.messages:,} messages, {options.kills} workers killed, "
        f"{options.restarts} restarts of the broker: none lost",
        lambda arena: _play_long_run(arena, options),
    )
    jobs = Scenario(
        JOBS,
        f"{options.jobs:,} jobs, {options.job_kills} workers killed in the middle of them: "
        f"each is done or failed, none lost",
        lambda arena: _play_job_run(arena, options),
    )
    own = {LONG: long, JOBS: jobs}
    if not options.names:
        yield from own.values()
        yield from CATALOGUE.all()
    for name in options.names:
        yield from [own[name]] if name in own else CATALOGUE.find(name)


def _play_long_run(arena: Arena, options: Options) -> str:
    progress = Progress()
    try:
        return long_run(
            arena,
            progress,
            messages=options.messages,
            kills=options.kills,
            restarts=options.restarts,
        )
    finally:
        progress.finish()


def _play_job_run(arena: Arena, options: Options) -> str:
    progress = Progress()
    try:
        return job_run(arena, progress, jobs=options.jobs, kills=options.job_kills)
    finally:
        progress.finish()


def _play_all(scenarios: Sequence[Scenario], options: Options) -> int:
    folder = Path(tempfile.mkdtemp(prefix="matador-chaos-"))
    results: list[Played] = []
    for scenario in scenarios:
        print(f"== {scenario.name}: {scenario.holds}")
        own = folder / scenario.name
        played = play(scenario, options.transport, own, scale=_SCALE, seed=options.seed)
        results.append(played)
        _report(played, own)
        if played.result != "FAILED" and not options.keep:
            shutil.rmtree(own)
    _print_table(results, options)
    failed = any(played.result == "FAILED" for played in results)
    if options.keep or failed:
        print(f"\nthe logs are in {folder}")
    else:
        folder.rmdir()
    return 1 if failed else 0


def _report(played: Played, folder: Path) -> None:
    verdict = played.verdict
    print(f"   {played.result} in {played.seconds:.1f} s: {played.seen}")
    if verdict is not None:
        print(f"   {verdict}")
    if played.result == "FAILED":
        print(f"   see {folder}")
    sys.stdout.flush()


def _print_table(results: Sequence[Played], options: Options) -> None:
    print(f"\n== {options.transport}, seed {options.seed}\n")
    print("| scenario | result | lost | duplicated | unexpected | reordered | stuck | seconds |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for played in results:
        verdict = played.verdict
        five = (
            ["–"] * 5
            if verdict is None
            else [
                verdict.lost,
                verdict.duplicated,
                verdict.unexpected,
                verdict.reordered,
                verdict.stuck,
            ]
        )
        cells = [played.scenario.name, played.result, *five, f"{played.seconds:.1f}"]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    sys.exit(main())
