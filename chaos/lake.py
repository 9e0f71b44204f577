"""F27 for the lake: an ingest that is killed again and again ends with every row exactly once.

    python -m chaos.lake [--envelopes 200000] [--kills 10] [--seed 1]

A journal is generated, some of its segments a second time under another name. Processes ingest it
and are killed with SIGKILL at random moments, the driver alone or with all its children; this one
finishes it. Then the tables are read by Spark and by pyarrow, and counted against the journal.
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

from benchmarks.journal_generator import generate

from matador.observe.journal.records import SentRecord, decode_record
from matador.observe.journal.segments import finished
from matador.spark import Lake, spark_session
from matador.spark.runtime.arrow import parquet
from matador.spark.runtime.executors import run_tasks

_READY = "ready"


@dataclass(frozen=True, slots=True)
class Counts:
    """What a reader found in a lake."""

    events: int
    distinct_events: int
    deliveries: int
    distinct_deliveries: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class Played:
    """How a run went: what the journal has, what each reader found, when the kills came."""

    envelopes: int
    deliveries: int
    by_spark: Counts
    by_pyarrow: Counts
    same_ids: bool
    killed_after: tuple[float, ...]

    @property
    def exact(self) -> bool:
        """Is everything there, once?"""
        wanted = Counts(
            self.envelopes, self.envelopes, self.deliveries, self.deliveries, quarantined=0
        )
        return self.same_ids and self.by_spark == self.by_pyarrow == wanted


def play(folder: Path, *, envelopes: int, kills: int, batches: int, seed: int = 1) -> Played:
    """Ingest ``envelopes`` in about so many ``batches``, and kill it so many times."""
    chance = random.Random(seed)
    journal, lake = folder / "journal", folder / "lake"
    size = max(envelopes * 900 // batches, 1)  # bytes of an envelope and its deliveries
    sent, deliveries = generate(journal, envelopes, seed=seed, segment=size)
    for path in list(finished(journal))[::5]:
        shutil.copy(path, journal / f"copy-of-{path.name}")
    killed: list[float] = []
    patience, visible = 1.0, 0
    while len(killed) < kills:
        after = _ingest(journal, lake, size, chance.uniform(0, patience), chance.random() < 0.5)
        if after is None:
            break  # it was quicker
        killed.append(after)
        before, visible = visible, len(list(lake.glob("events/batch_id=*")))
        # About one batch between two kills, however slow the machine is.
        patience *= 2 if visible == before else 0.7 if visible > before + 2 else 1
        print(f"  killed {after:.2f} s after it began; {visible} batches are visible", flush=True)
    Lake(lake, spark=spark_session("local[2]")).ingest(journal, batch_size=size)
    with_pyarrow, ids = _by_pyarrow(lake)
    return Played(
        sent, deliveries, _by_spark(lake), with_pyarrow, ids == _sent_ids(journal), tuple(killed)
    )


def _ingest(
    journal: Path, lake: Path, size: int, patience: float, with_children: bool
) -> float | None:
    """Ingest in a process of its own; when it was killed after it began, None if it ended."""
    command = [sys.executable, "-m", "chaos.lake", "--ingest", journal, lake, str(size)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            raise RuntimeError(f"the ingest did not start: exit code {process.wait()}")
        began = time.monotonic()
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            if with_children:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            return time.monotonic() - began
        if code != 0:
            raise RuntimeError(f"the ingest failed: exit code {code}")
        return None


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


def _by_pyarrow(path: Path) -> tuple[Counts, set[str]]:
    ids = parquet.read_table(path / "events", columns=["id"]).column(0).to_pylist()
    table = parquet.read_table(path / "deliveries", columns=["id", "attempt"])
    pairs = list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
    quarantined = [parquet.read_metadata(one).num_rows for one in path.glob("quarantine/*/*")]
    counts = Counts(len(ids), len(set(ids)), len(pairs), len(set(pairs)), sum(quarantined))
    return counts, set(ids)


def main() -> int:
    """Play it; 0 if every row is there exactly once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envelopes", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ingest", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ingest:
        journal, lake, size = given.ingest
        spark = spark_session("local[2]")
        run_tasks(spark, _warm_up, 2)  # so that moments are spread over the work, not over this
        print(_READY, flush=True)
        Lake(lake, spark=spark).ingest(journal, batch_size=int(size))
        return 0
    with tempfile.TemporaryDirectory(prefix="matador-lake-") as folder:
        played = play(
            Path(folder),
            envelopes=given.envelopes,
            kills=given.kills,
            batches=given.batches,
            seed=given.seed,
        )
    print(f"{len(played.killed_after)} kills; the journal has {played.envelopes:,} envelopes")
    print(f"and {played.deliveries:,} deliveries, some of them twice")
    print(f"Spark found   {played.by_spark}")
    print(f"pyarrow found {played.by_pyarrow}")
    print("every row is there exactly once" if played.exact else "NOT EXACT")
    return 0 if played.exact and len(played.killed_after) == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
