"""F27 for the lake: an ingest that is killed again and again ends with every row exactly once.

    python -m chaos.lake [--envelopes 200000] [--kills 10] [--seed 1] [--without-java]

A journal is generated, some of its segments a second time under another name. Processes ingest it,
compact the tables now and then, and are killed with SIGKILL inside commits: a process says when it
begins and ends a commit, and is killed a random moment after it has begun one that was chosen by
dice, of an ingest and of a compaction in turn. The moment is within what commits of that kind have
taken so far. This process counts the kills that fell between the two lines, and goes on until half
of ``--kills`` fell inside commits of ingests, and half inside those of compactions. Two processes
then finish the journal at the same time. What Spark, Polars and pyarrow find in the tables is
compared with the journal.

``--without-java``: the processes do the work of Spark's tasks themselves. They start in a tenth of
the time, and commit the same.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
from benchmarks.journal_generator import generate

from matador.observe.journal.records import SentRecord, decode_record
from matador.observe.journal.segments import finished
from matador.spark import Lake, spark_session
from matador.spark.runtime.executors import run_tasks
from matador.spark.tables import ingest
from matador.spark.tables.delta import DeltaTable

_READY = "ready"
_BEGUN, _ENDED = "begun", "ended"
_KINDS: tuple[str, ...] = ("ingest", "compaction")


@dataclass(frozen=True, slots=True)
class Counts:
    """What a reader found in a lake."""

    events: int
    distinct_events: int
    deliveries: int
    distinct_deliveries: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Where a process was killed, and whether the commit had neither ended nor failed."""

    kind: str
    table: str
    inside: bool


@dataclass(frozen=True, slots=True)
class Played:
    """How a run went: what the journal has, what each reader found, where the kills fell."""

    envelopes: int
    deliveries: int
    by_spark: Counts
    by_polars: Counts
    by_pyarrow: Counts
    same_ids: bool
    kills: tuple[Kill, ...]

    def inside(self, kind: str) -> int:
        """How many kills fell inside commits of that kind."""
        return _inside(self.kills, kind)

    @property
    def exact(self) -> bool:
        """Is everything there, once?"""
        wanted = Counts(
            self.envelopes, self.envelopes, self.deliveries, self.deliveries, quarantined=0
        )
        found = (self.by_spark, self.by_polars, self.by_pyarrow)
        return self.same_ids and all(one == wanted for one in found)


def _inside(kills: Sequence[Kill], kind: str) -> int:
    return sum(kill.inside for kill in kills if kill.kind == kind)


def play(
    folder: Path, *, envelopes: int, kills: int, batches: int, seed: int = 1, java: bool = True
) -> Played:
    """Ingest ``envelopes`` in about so many ``batches``, until ``kills`` fell inside commits."""
    chance = random.Random(seed)
    journal, lake = folder / "journal", folder / "lake"
    size = max(envelopes * 900 // batches, 1)  # bytes of an envelope and its deliveries
    sent, deliveries = generate(journal, envelopes, seed=seed, segment=size)
    for path in list(finished(journal))[::5]:
        shutil.copy(path, journal / f"copy-of-{path.name}")
    command = [sys.executable, "-m", "chaos.lake", "--ingest", journal, lake, str(size)]
    if not java:
        command.append("--without-java")
    killer = _Killer(command, chance)
    killed: list[Kill] = []
    while wanted := [kind for kind in _KINDS if 2 * _inside(killed, kind) < kills]:
        kill = killer.kill_inside(wanted[len(killed) % len(wanted)])
        if kill is None:
            break  # the journal is at its end
        killed.append(kill)
        print(f"  {kill}", flush=True)
    _finish_twice(command)
    with_pyarrow, ids = _by_pyarrow(lake)
    return Played(
        sent,
        deliveries,
        _by_spark(lake),
        _by_polars(lake),
        with_pyarrow,
        ids == _sent_ids(journal),
        tuple(killed),
    )


class _Killer:
    """Starts ingests in processes of their own, and kills them inside commits."""

    def __init__(self, command: Sequence[str | Path], chance: random.Random) -> None:
        self._command = command
        self._chance = chance
        self._taken = dict[str, float].fromkeys(
            _KINDS, 0.02
        )  # seconds of the last commit of that kind

    def kill_inside(self, kind: str) -> Kill | None:
        """Ingest, and be killed in a commit of that kind; None if the ingest came to its end."""
        with subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            if process.stdout.readline().strip() != _READY:
                raise RuntimeError(f"the ingest did not start: exit code {process.wait()}")
            left = self._chance.randrange(2, 6)
            begun = 0.0
            for line in process.stdout:
                what, where, table = line.split()
                if what != kind:
                    continue
                if where == _ENDED:
                    self._taken[kind] = time.monotonic() - begun
                    continue
                begun = time.monotonic()
                left -= 1
                if left:
                    continue
                time.sleep(self._chance.uniform(0, self._taken[kind]))
                if self._chance.random() < 0.5:
                    os.killpg(process.pid, signal.SIGKILL)  # with Java and its workers
                else:
                    process.kill()
                return Kill(kind, table, inside=not process.stdout.readline())
            code = process.wait()
            if code != 0:
                raise RuntimeError(f"the ingest failed: exit code {code}")
            return None


def _finish_twice(command: Sequence[str | Path]) -> None:
    """Ingest what is left in two processes at the same time."""
    both = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        for _ in range(2)
    ]
    codes = [process.wait() for process in both]
    if any(codes):
        raise RuntimeError(f"an ingest beside another failed: exit codes {codes}")


def _telling_commits() -> None:
    """Have this process say when it begins and ends a commit."""
    commit = DeltaTable.commit

    def telling(self: DeltaTable, *given: Any, **options: Any) -> int:
        kind = "compaction" if options.get("same_rows") else "ingest"
        print(kind, _BEGUN, self.name, flush=True)
        version = commit(self, *given, **options)
        print(kind, _ENDED, self.name, flush=True)
        return version

    DeltaTable.commit = telling


def _work_here() -> None:
    """Have this process do the work of Spark's tasks itself."""

    def run_here(spark: object, work: Callable[[int], bytes], count: int) -> list[bytes]:
        return [work(number) for number in range(count)]

    def two(spark: object) -> int:
        return 2

    for name, module in list(sys.modules.items()):
        if name.startswith("matador.spark") and hasattr(module, "run_tasks"):
            module.run_tasks = run_here  # pyright: ignore[reportAttributeAccessIssue]
    ingest.parallelism = two


def _warm_up(number: int) -> bytes:
    return str(number).encode()


def _sent_ids(journal: Path) -> set[str]:
    found: set[str] = set()
    for path in finished(journal):
        for line in path.read_bytes().splitlines():
            record = decode_record(line)
            if isinstance(record, SentRecord):
                found.add(record.id)
    return found


def _by_spark(path: Path) -> Counts:
    lake = Lake(path, spark=spark_session("local[2]"))
    deliveries = lake.deliveries()
    return Counts(
        lake.events().count(),
        lake.events().select("id").distinct().count(),
        deliveries.count(),
        deliveries.select("id", "attempt").distinct().count(),
        lake.quarantine().count(),
    )


def _by_polars(path: Path) -> Counts:
    events = polars.scan_delta(path / "events").select("id").collect()
    deliveries = polars.scan_delta(path / "deliveries").select("id", "attempt").collect()
    quarantined = polars.scan_delta(path / "quarantine").select("kind").collect()
    return Counts(
        events.height,
        events.n_unique(),
        deliveries.height,
        deliveries.n_unique(),
        quarantined.height,
    )


def _by_pyarrow(path: Path) -> tuple[Counts, set[str]]:
    layout = Lake(path).layout
    ids = layout.table("events").open().read(["id"]).column(0).to_pylist()
    table = layout.table("deliveries").open().read(["id", "attempt"])
    pairs = list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
    quarantined = len(layout.table("quarantine").open().read(["kind"]))
    return Counts(len(ids), len(set(ids)), len(pairs), len(set(pairs)), quarantined), set(ids)


def _ingest(journal: str, lake: str, size: str, *, java: bool) -> None:
    """What a process that may be killed does."""
    spark: Any = None
    if java:
        spark = spark_session("local[2]")
        run_tasks(spark, _warm_up, 2)  # so that moments are spread over the work, not over this
    else:
        _work_here()
        spark = "none"  # which nobody uses then
    print(_READY, flush=True)
    _telling_commits()
    target = Lake(lake, spark=spark)
    done = 0

    def compact_now_and_then(_: object) -> None:
        nonlocal done
        done += 1
        if done % 3 == 0:
            target.compact()

    target.ingest(journal, batch_size=int(size), progress=compact_now_and_then)


def _play_kafka(envelopes: int, kills: int, seed: int) -> int:
    from chaos import lake_kafka  # it needs the extra of Kafka

    script = Path(__file__).parents[1] / "script" / "brokers"
    url = subprocess.run([script, "url", "kafka"], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="matador-lake-") as folder:
        played = lake_kafka.play(
            Path(folder), url.stdout.strip(), envelopes=envelopes, kills=kills, seed=seed
        )
    print(f"{played.kills} kills, {played.inside} of them inside a commit")
    print(f"{played.sent:,} envelopes and {played.foreign} foreign records were sent; with retries")
    print(f"the topic has {played.records:,} records")
    print(f"Polars and pyarrow found {played.by_polars}, {played.by_pyarrow} (rows, distinct)")
    print(f"and {played.quarantined} rows in quarantine")
    print("every event is there exactly once" if played.exact else "NOT EXACT")
    return 0 if played.exact else 1


def main() -> int:
    """Play it; 0 if every row is there exactly once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envelopes", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-java", action="store_true")
    parser.add_argument("--kafka", action="store_true", help="ingest from Kafka; see lake_kafka.py")
    parser.add_argument("--ingest", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kafka:
        return _play_kafka(given.envelopes, given.kills, given.seed)
    if given.ingest:
        _ingest(*given.ingest, java=not given.without_java)
        return 0
    with tempfile.TemporaryDirectory(prefix="matador-lake-") as folder:
        played = play(
            Path(folder),
            envelopes=given.envelopes,
            kills=given.kills,
            batches=given.batches,
            seed=given.seed,
            java=not given.without_java,
        )
    inside = [played.inside(kind) for kind in _KINDS]
    print(
        f"{len(played.kills)} kills, {inside[0]} of them inside commits of ingests and "
        f"{inside[1]} inside those of compactions"
    )
    print(f"the journal has {played.envelopes:,} envelopes and {played.deliveries:,} deliveries,")
    print("some of them twice")
    print(f"Spark found   {played.by_spark}")
    print(f"Polars found  {played.by_polars}")
    print(f"pyarrow found {played.by_pyarrow}")
    print("every row is there exactly once" if played.exact else "NOT EXACT")
    return 0 if played.exact and sum(inside) >= given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
