"""The data pipeline: journals into a lake, against bare Spark on the same segments.

    script/benchmark pipeline [--rounds 3] [--envelopes 200000] [--against COMMIT]
                              [--batches 1000] [--rows 10000000] [--only CONTEST]

- The same journal into a lake, and into plain Parquet by Spark alone.
- The same journal into a lake by this version and by that of another commit, in processes side by
  side. Both sync the disk.
- Ten small batches more into a lake of a thousand batches, and into one of ten.
- 100,000 rows more into a lake of ten million, and into an empty one.
- The data source and replays, see ``pipeline_source``.

Prints a Markdown table of ratios, and exits with 1 if a bar is not met. What others do on the
machine is in the time on the clock; the lines "by CPU time" count only what the contestants, Java
and its workers have used.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import pipeline_source
from benchmarks.batches import add as fill_batches
from benchmarks.cpu_time import cpu_seconds
from benchmarks.ingest_process import ROOT, IngestProcess, ingest_process, sources_of
from benchmarks.journal_generator import SCHEMA, generate
from benchmarks.large_lake import fill
from benchmarks.rounds import Bar, Outcome, Turn, hold_both, table
from matador.model.schema import Schema
from matador.spark import Lake, spark_session

_FIELDS = """
    kind string, id string, event_key string, subscriber string, queue string, transport string,
    created_at bigint, importance string, data string, recorded_at bigint, before string,
    scheduled_for bigint, correlation_id string, metadata string, replay_id string, source string,
    attempt int, outcome string, started_at bigint, duration_ms double, wait_ms double,
    since_created_ms double, worker string, deliveries int, ran boolean, error_type string,
    error string, reason string, dead_letter_kind string
"""
_SEGMENT = 8 * 1024 * 1024
_SMALL = 100  # envelopes of a small batch
_SMALL_SEGMENT = 100 * 1024  # bytes, at most
_MORE = 10  # small batches that are added
_CONTESTS = ("ingest", "against", "batches", "rows", "source")
_SAME = 0.833  # the rate that is 1.2 times the cost


class Bench:
    """A session, a folder, and the journals made so far."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder / "ingest"
        self._journals: dict[tuple[int, int, int], tuple[Path, int]] = {}
        self._lakes = 0

    def journal(self, envelopes: int, seed: int = 1, segment: int = _SEGMENT) -> tuple[Path, int]:
        """A journal of so many envelopes, and how many records it has."""
        which = envelopes, seed, segment
        if which not in self._journals:
            path = self._folder / f"journal-{envelopes}-{seed}-{segment}"
            records = sum(generate(path, envelopes, seed=seed, segment=segment))
            self._journals[which] = path, records
        return self._journals[which]

    def new_folder(self) -> Path:
        """A name for a lake."""
        self._lakes += 1
        return self._folder / f"lake-{self._lakes}"

    def lake(self, path: Path, schema: Schema | None = None) -> Lake:
        """The lake in a folder."""
        return Lake(path, schema=schema, spark=self._spark)

    def ingest(self, envelopes: int, schema: Schema | None) -> Turn:
        """Ours: decoded, validated, deduplicated, exactly once, durable."""
        path, records = self.journal(envelopes)

        def turn() -> tuple[float, float]:
            lake = self.lake(self.new_folder(), schema)
            rates = self._add(lake, path, records)
            shutil.rmtree(lake.path)
            return rates

        return turn

    def bare(self, envelopes: int) -> Turn:
        """One pass of Spark alone: all columns as they are, a folder for each kind of record."""
        path, records = self.journal(envelopes)
        target = self._folder / "bare"

        def turn() -> tuple[float, float]:
            began, cpu = time.perf_counter(), cpu_seconds()
            frame = self._spark.read.schema(_FIELDS).json(str(path))
            frame.write.partitionBy("kind").parquet(str(target))
            seconds, used = time.perf_counter() - began, cpu_seconds() - cpu
            shutil.rmtree(target)
            return records / seconds, records / used

        return turn

    def batches_more(self, present: int) -> Turn:
        """Some small batches more, into a lake of so many.

        A large one grows on, so that every tenth turn has a checkpoint of the log, as it is. A
        small one is a new copy every time.
        """
        full = self.new_folder()
        before, _ = self.journal(present * _SMALL, segment=_SMALL_SEGMENT)
        fill_batches(full, before)
        seeds = iter(range(1000, 2000))
        grows = present > _MORE

        def turn() -> tuple[float, float]:
            more, records = self.journal(_MORE * _SMALL, next(seeds), _SMALL_SEGMENT)
            lake = self.lake(full if grows else self.new_folder())
            if not grows:
                shutil.copytree(full, lake.path)
            rates = self._add(lake, more, records, batch_size=_SMALL_SEGMENT + 10_000)
            if not grows:
                shutil.rmtree(lake.path)
            return rates

        return turn

    def rows_more(self, envelopes: int, present: int) -> Turn:
        """A journal more, into a lake of so many rows: another one every time."""
        full = self.new_folder()
        if present:
            self.lake(full).ingest(self.journal(50_000)[0])
            fill(self._spark, full, present)
        seeds = iter(range(100, 1000))

        def turn() -> tuple[float, float]:
            path, records = self.journal(envelopes, next(seeds))
            lake = self.lake(full if present else self.new_folder())
            rates = self._add(lake, path, records)
            if not present:
                shutil.rmtree(lake.path)
            return rates

        return turn

    def _add(
        self, lake: Lake, path: Path, records: int, batch_size: int = 512 * 1024 * 1024
    ) -> tuple[float, float]:
        began, cpu = time.perf_counter(), cpu_seconds()
        result = lake.ingest(path, batch_size=batch_size)
        seconds, used = time.perf_counter() - began, cpu_seconds() - cpu
        assert result.records == records == result.events + result.deliveries, result
        return records / seconds, records / used


def ingest_contest(bench: Bench, envelopes: int, rounds: int) -> list[Outcome]:
    """Journal to events and deliveries."""
    bare = "spark.read.json, write.parquet"
    turns = {
        "lake.ingest": bench.ingest(envelopes, None),
        "lake.ingest, payloads validated": bench.ingest(envelopes, SCHEMA),
        bare: bench.bare(envelopes),
    }
    name = f"journal to tables, {envelopes:,} envelopes"
    return hold_both(name, "lake.ingest", turns, [Bar(bare, 0.6)], rounds)


def commit_contest(
    bench: Bench, folder: Path, envelopes: int, commit: str, rounds: int
) -> list[Outcome]:
    """This version and another one, in two processes."""
    journal, _ = bench.journal(envelopes)
    with ExitStack() as stack:
        other_sources = stack.enter_context(sources_of(commit, folder / "other-commit"))

        def turn(sources: Path, name: str) -> Turn:
            process: IngestProcess = stack.enter_context(
                ingest_process(sources, journal, folder / name)
            )
            return process.ingest

        other = f"lake.ingest at {commit[:9]}"
        turns = {
            "lake.ingest": turn(ROOT / "src", "lake-of-ours"),
            other: turn(other_sources, "lake-of-other"),
        }
        name = f"beside another version, {envelopes:,} envelopes"
        return hold_both(name, "lake.ingest", turns, [Bar(other, 0.8)], rounds)


def batches_contest(bench: Bench, batches: int, rounds: int) -> list[Outcome]:
    """A batch costs the same, however many there were before."""
    many, few = f"into a lake of {batches:,} batches", f"into a lake of {_MORE}"
    turns = {many: bench.batches_more(batches), few: bench.batches_more(_MORE)}
    name = f"{_MORE} batches of {_SMALL} envelopes more"
    return hold_both(name, many, turns, [Bar(few, _SAME)], rounds)


def rows_contest(bench: Bench, rows: int, rounds: int) -> list[Outcome]:
    """A row costs the same in a large lake."""
    large, empty = f"into a lake of {rows:,} rows", "into an empty lake"
    turns = {large: bench.rows_more(50_000, rows), empty: bench.rows_more(50_000, 0)}
    return hold_both("100,000 rows more", large, turns, [Bar(empty, _SAME)], rounds)


def main() -> int:
    """Hold the contests; 0 if every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envelopes", type=int, default=200_000)
    parser.add_argument("--against", metavar="COMMIT", help="another version, to compare with")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument(
        "--only", action="append", choices=_CONTESTS, help="hold this contest; repeatable"
    )
    given = parser.parse_args()
    if "against" in (given.only or ()) and not given.against:
        parser.error("--only against needs --against COMMIT")
    wanted = given.only or [one for one in _CONTESTS if one != "against" or given.against]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as name:
        folder = Path(name)
        spark = spark_session(config={"spark.driver.memory": "2g"})
        bench = Bench(spark, folder)
        bench.ingest(2_000, SCHEMA)()  # Java and the workers are warm for everybody
        bench.bare(2_000)()
        if "ingest" in wanted:
            outcomes += ingest_contest(bench, given.envelopes, given.rounds)
        if "against" in wanted:
            outcomes += commit_contest(bench, folder, given.envelopes, given.against, given.rounds)
        if "batches" in wanted:
            outcomes += batches_contest(bench, given.batches, given.rounds)
        if "rows" in wanted:
            outcomes += rows_contest(bench, given.rows, given.rounds)
        if "source" in wanted:
            outcomes += pipeline_source.hold_all(spark, folder, given.envelopes // 2, given.rounds)
        spark.stop()
    print(table(outcomes))
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
