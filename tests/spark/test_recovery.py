"""An ingest that ended at any step is carried on by the next one: nothing twice, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.lake import play
from pyspark.sql import SparkSession
from tests.spark.journal_files import delivery, rows, segment, sent

from matador.spark import Lake
from matador.spark.runtime.files import move
from matador.spark.runtime.journal_lines import splits_of
from matador.spark.tables.batch_log import BatchLog, IngestBatch, SegmentRef
from matador.spark.tables.ingest import IngestResult
from matador.spark.tables.staging import stage


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    segment(folder, "a", [sent(1), sent(2), delivery(1)])
    return folder


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake", spark=spark)


def planned(lake: Lake, journal: Path) -> tuple[BatchLog, IngestBatch]:
    """The state of a process that was killed right after it planned a batch."""
    lake.layout.make()
    log = BatchLog(lake.layout.checkpoints / "ingest")
    found = (journal / "a.jsonl").stat()
    return log, log.plan(str(journal), [SegmentRef("a.jsonl", found.st_size, found.st_mtime_ns)])


def staged(lake: Lake, journal: Path) -> tuple[BatchLog, IngestBatch]:
    """The same, right after all files were written, and before one was moved into place."""
    log, batch = planned(lake, journal)
    folder = lake.layout.staging / "0-before"
    folder.mkdir()
    path = journal / "a.jsonl"
    splits = list(splits_of(path, path.stat().st_size, 1 << 20))
    counts, unread = stage(lake.spark, lake.layout, folder, batch.number, splits, None)
    assert unread == {}
    return log, log.staged(batch, "0-before", counts)


def assert_complete(lake: Lake) -> None:
    assert sorted(row["id"] for row in rows(lake.path, "events")) == [sent(1).id, sent(2).id]
    assert len(rows(lake.path, "deliveries")) == 1
    assert lake.events().count() == 2
    assert list(lake.layout.staging.iterdir()) == []


def test_a_planned_batch_is_done_again(journal: Path, lake: Lake) -> None:
    planned(lake, journal)
    (lake.layout.staging / "0-half" / "parts" / "events").mkdir(parents=True)
    (lake.layout.staging / "0-half" / "parts" / "events" / "part-0.parquet").write_bytes(b"PAR1")

    assert lake.ingest(journal) == IngestResult(segments=1, records=3, events=2, deliveries=1)
    assert_complete(lake)


def test_a_staged_batch_is_put_in_place_even_if_its_segments_are_gone(
    journal: Path, lake: Lake
) -> None:
    staged(lake, journal)
    assert rows(lake.path, "events") == []  # nothing is visible yet
    (journal / "a.jsonl").unlink()

    assert lake.ingest(journal) == IngestResult(segments=1, records=3, events=2, deliveries=1)
    assert_complete(lake)


def test_a_batch_that_was_put_in_place_by_half_gets_its_other_half(
    journal: Path, lake: Lake
) -> None:
    staged(lake, journal)
    move(lake.layout.staging / "0-before" / "events", lake.layout.batch("events", 0))

    lake.ingest(journal)

    assert_complete(lake)


def test_keys_of_the_resumed_batch_are_known_to_later_ones(journal: Path, lake: Lake) -> None:
    staged(lake, journal)
    segment(journal, "b", [sent(1), sent(2), delivery(1), sent(3)])

    result = lake.ingest(journal)

    assert (result.events, result.deliveries, result.duplicates) == (3, 1, 3)


def test_the_log_is_folded_and_forgets_nothing(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    every = [SegmentRef(f"{number}.jsonl", 1, 1) for number in range(300)]
    for one in every:
        batch = log.plan("journal", [one])
        log.done(batch)

    assert len(list(tmp_path.iterdir())) < 150
    again = BatchLog(tmp_path)
    assert again.new_segments(every) == []
    assert again.unfinished is None
    changed = SegmentRef("7.jsonl", 2, 2)
    assert again.new_segments([changed]) == [changed]
    assert again.plan("journal", [changed]).number == 300


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_random_moments_every_row_is_there_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = play(tmp_path, envelopes=1000, kills=2, batches=6)

    assert played.exact, played
    assert played.killed_after, "it was quicker than the first kill"
