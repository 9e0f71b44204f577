"""Compaction and retention: the same rows in fewer files; old rows gone, and gone for good."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.journal_files import NOW, delivery, rows, segment, sent

from matador.errors import ConfigurationError
from matador.spark import Lake
from matador.spark.runtime.files import locked, write_json
from matador.spark.tables.maintenance import CompactResult, ExpireResult, Replacement, compact

CUT = datetime.fromtimestamp(NOW / 1_000_000, UTC) + timedelta(seconds=10)
LATER = NOW + 20_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession, journal: Path) -> Lake:
    """Four batches, one segment each."""
    lake = Lake(tmp_path / "lake", spark=spark)
    for number in range(4):
        moment = NOW if number < 2 else LATER
        segment(
            journal,
            f"s{number}",
            [
                sent(number, recorded_at=moment),
                sent(100 + number, recorded_at=LATER),
                delivery(number, recorded_at=moment),
            ],
        )
    lake.ingest(journal, batch_size=1)
    assert lake.layout.batches("events") == [0, 1, 2, 3]
    return lake


def ids(lake: Lake) -> list[str]:
    found = sorted(row["id"] for row in rows(lake.path, "events"))
    assert found == sorted(row.id for row in lake.events().select("id").collect())
    return found


def contents(lake: Lake) -> list[dict[str, Any]]:
    """All rows but for the number of their batch."""
    found = rows(lake.path, "deliveries") + rows(lake.path, "events")
    return [{**row, "batch_id": None} for row in found]


def test_compaction_keeps_every_row_in_fewer_files(lake: Lake, journal: Path) -> None:
    before = contents(lake)

    assert lake.compact() == CompactResult(files_before=8, files_after=2)

    assert contents(lake) == before
    assert lake.layout.batches("events") == lake.layout.batches("deliveries") == [3]
    assert len(ids(lake)) == 8
    assert lake.compact() == CompactResult(files_before=2, files_after=2)
    shutil.copy(journal / "s0.jsonl", journal / "again.jsonl")
    assert lake.ingest(journal).duplicates == 3
    assert lake.layout.batches("events") == [3]


def test_compaction_stops_at_the_size_that_is_wanted(lake: Lake) -> None:
    (one,) = lake.layout.batch("events", 0).iterdir()

    lake.compact(target_size=round(2.5 * one.stat().st_size))

    assert lake.layout.batches("events") == [1, 3]
    with pytest.raises(ConfigurationError, match="target_size"):
        lake.compact(target_size=0)


def test_compaction_waits_for_the_aggregates(lake: Lake) -> None:
    with locked(lake.layout.checkpoints / "aggregates.lock"):  # another process updates them
        lake.compact()
    assert lake.layout.batches("events") == [0, 1, 2, 3]

    compact(lake.spark, lake.layout, through=1)

    assert lake.layout.batches("events") == [1, 2, 3]


def test_an_interrupted_compaction_is_carried_on_by_a_reader(lake: Lake) -> None:
    layout = lake.layout
    before = ids(lake)
    folder = layout.staging / "compaction-x"
    merged = folder / "events-1"
    merged.mkdir(parents=True)
    for number in (0, 1):
        for path in layout.batch("events", number).iterdir():
            shutil.copy(path, merged)
    write_json(
        layout.pending_replacements,
        {"folder": folder.name, "swaps": [Replacement("events", (0, 1))]},
    )
    (folder / "old").mkdir()
    layout.batch("events", 0).rename(folder / "old" / "events-0")  # killed here

    assert lake.events().count() == 8
    assert ids(lake) == before
    assert layout.batches("events") == [1, 2, 3]
    assert not layout.pending_replacements.exists()
    assert not folder.exists()


def test_what_is_old_goes_and_does_not_come_back(lake: Lake, journal: Path) -> None:
    assert lake.expire(CUT) == ExpireResult(events=2, deliveries=2, quarantine=0)

    kept = sorted(sent(number).id for number in (2, 3, 100, 101, 102, 103))
    assert ids(lake) == kept
    assert lake.layout.batches("deliveries") == [2, 3]
    assert lake.expire(CUT) == ExpireResult(0, 0, 0)
    shutil.copy(journal / "s0.jsonl", journal / "again.jsonl")
    assert lake.ingest(journal).events == 0
    assert ids(lake) == kept


def test_quarantined_lines_without_a_time_are_as_old_as_their_file(
    lake: Lake, journal: Path
) -> None:
    segment(journal, "bad", b"not a record\n")
    lake.ingest(journal)

    assert lake.expire(timedelta(days=1)).quarantine == 0
    assert lake.expire(timedelta(days=-1)).quarantine == 1
    with pytest.raises(ConfigurationError, match="time zone"):
        lake.expire(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
