"""F27 for the lake: an ingest that is killed again and again ends with every row exactly once.

    python -m chaos.lake [--envelopes 200000] [--kills 10] [--seed 1]

A journal is generated, some of its segments a second time under another name. Processes ingest it,
compact the tables now and then, and are killed with SIGKILL inside commits: a process says when it
begins and ends a commit, and is killed a random moment after it has begun one that was chosen by
dice, of an ingest and of a compaction in turn. This process counts the kills that fell between the
two lines. It finishes the journal, and compares what Spark, Polars and pyarrow find in the tables
with the journal.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
from benchmarks.journal_generator import generate

from matador.observe.journal.records import SentRecord, decode_record
from matador.observe.journal.segments import finished
from matador.spark import Lake, spark_session
from matador.spark.runtime.executors import run_tasks
from matador.spark.tables.delta import DeltaTable

_READY = "ready"
_BEGUN, _ENDED = "begun", "ended"
_LONGEST = 0.06  # seconds after the begin of a commit; it takes about 0.04


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

    @property
    def inside(self) -> int:
        """How many kills fell inside a commit."""
        return sum(kill.inside for kill in self.kills)

    @property
    def exact(self) -> bool:
        """Is everything there, once?"""
        wanted = Counts(
            self.envelopes, self.envelopes, self.deliveries, self.deliveries, quarantined=0
        )
        found = (self.by_spark, self.by_polars, self.by_pyarrow)
        return self.same_ids and all(one == wanted for one in found)


def play(folder: Path, *, envelopes: int, kills: int, batches: int, seed: int = 1) -> Played:
    """Ingest ``envelopes`` in about so many ``batches``, until ``kills`` fell inside commits."""
    chance = random.Random(seed)
    journal, lake = folder / "journal", folder / "lake"
    size = max(envelopes * 900 // batches, 1)  # bytes of an envelope and its deliveries
    sent, deliveries = generate(journal, envelopes, seed=seed, segment=size)
    for path in list(finished(journal))[::5]:
        shutil.copy(path, journal / f"copy-of-{path.name}")
    killed: list[Kill] = []
    while sum(kill.inside for kill in killed) < kills:
        kind = ("ingest", "compaction")[len(killed) % 2]
        kill = _killed(journal, lake, size, kind, chance)
        if kill is None:
            break  # the journal is at its end
        killed.append(kill)
        print(f"  {kill}", flush=True)
    Lake(lake, spark=spark_session("local[2]")).ingest(journal, batch_size=size)
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


def _killed(journal: Path, lake: Path, size: int, kind: str, chance: random.Random) -> Kill | None:
    """Ingest in a process of its own, and kill it in a commit of that kind; None if it ended."""
    command = [sys.executable, "-m", "chaos.lake", "--ingest", journal, lake, str(size)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            raise RuntimeError(f"the ingest did not start: exit code {process.wait()}")
        left = chance.randrange(1, 5)
        for line in process.stdout:
            what, begun, table = line.split()
            if begun != _BEGUN or what != kind:
                continue
            left -= 1
            if left:
                continue
            time.sleep(chance.uniform(0, _LONGEST))
            if chance.random() < 0.5:
                os.killpg(process.pid, signal.SIGKILL)  # with Java and its workers
            else:
                process.kill()
            return Kill(kind, table, inside=not process.stdout.readline())
        code = process.wait()
        if code != 0:
            raise RuntimeError(f"the ingest failed: exit code {code}")
        return None


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


def main() -> int:
    """Play it; 0 if every row is there exactly once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envelopes", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ingest", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ingest:
        journal, lake, size = given.ingest
        spark = spark_session("local[2]")
        run_tasks(spark, _warm_up, 2)  # so that moments are spread over the work, not over this
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
        return 0
    with tempfile.TemporaryDirectory(prefix="matador-lake-") as folder:
        played = play(
            Path(folder),
            envelopes=given.envelopes,
            kills=given.kills,
            batches=given.batches,
            seed=given.seed,
        )
    print(f"{len(played.kills)} kills, {played.inside} of them inside a commit")
    print(f"the journal has {played.envelopes:,} envelopes and {played.deliveries:,} deliveries,")
    print("some of them twice")
    print(f"Spark found   {played.by_spark}")
    print(f"Polars found  {played.by_polars}")
    print(f"pyarrow found {played.by_pyarrow}")
    print("every row is there exactly once" if played.exact else "NOT EXACT")
    return 0 if played.exact and played.inside >= given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
