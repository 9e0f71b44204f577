"""Compaction and retention: the same rows in fewer files; old rows gone, and gone for good."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.journal_files import NOW, delivery, files, rows, segment, sent

from matador.errors import ConfigurationError
from matador.spark import Lake
from matador.spark.tables.maintenance import ExpireResult

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
    assert len(files(lake.path, "events")) == 4
    return lake


def ids(lake: Lake) -> list[str]:
    found = sorted(row["id"] for row in rows(lake.path, "events"))
    assert found == sorted(row.id for row in lake.events().select("id").collect())
    return found


def contents(lake: Lake) -> list[str]:
    """All rows, whatever file they are in."""
    return sorted(map(str, rows(lake.path, "deliveries") + rows(lake.path, "events")))


def test_compaction_keeps_every_row_in_fewer_files(lake: Lake, journal: Path) -> None:
    before = contents(lake)

    result = lake.compact()

    assert result.files_before - result.files_after >= 6
    assert contents(lake) == before
    assert len(files(lake.path, "events")) == len(files(lake.path, "deliveries")) == 1
    assert len(ids(lake)) == 8
    again = lake.compact()
    assert again.files_before == again.files_after == result.files_after
    shutil.copy(journal / "s0.jsonl", journal / "again.jsonl")
    assert lake.ingest(journal).duplicates == 3


def test_compaction_stops_at_the_size_that_is_wanted(lake: Lake) -> None:
    one = files(lake.path, "events")[0]

    lake.compact(target_size=round(2.5 * one.stat().st_size))

    assert len(files(lake.path, "events")) == 2
    with pytest.raises(ConfigurationError, match="target_size"):
        lake.compact(target_size=0)


def test_a_reader_goes_on_with_the_version_it_has(lake: Lake) -> None:
    frame = lake.events()
    lake.compact()
    lake.expire(CUT)
    lake.vacuum()

    assert frame.count() == 8
    assert lake.events().count() == 6


def test_a_vacuum_deletes_what_no_version_needs(lake: Lake) -> None:
    nobodys = lake.path / "events" / "date=2025-11-15" / "part-killed.parquet"
    nobodys.write_bytes(b"PAR1")
    long_ago = time.time() - 8 * 86_400
    os.utime(nobodys, (long_ago, long_ago))
    lake.compact()
    on_disk = len(list(lake.path.glob("events/*/*.parquet")))

    assert lake.vacuum().files == 1
    assert not nobodys.exists()
    assert len(list(lake.path.glob("events/*/*.parquet"))) == on_disk - 1, "too young to go"
    with pytest.raises(ConfigurationError, match="at least 1:00:00"):
        lake.vacuum(timedelta(minutes=1))


def test_what_would_expire_is_counted(lake: Lake) -> None:
    assert lake.expire(CUT, dry_run=True) == ExpireResult(events=2, deliveries=2, quarantine=0)
    assert lake.expire(timedelta(0), dry_run=True) == ExpireResult(8, 4, 0)
    assert len(ids(lake)) == 8


def test_nothing_is_older_than_a_year_of_three_digits(lake: Lake) -> None:
    long_ago = datetime(657, 1, 1, tzinfo=UTC)
    assert lake.expire(long_ago, dry_run=True) == ExpireResult(0, 0, 0)
    assert lake.expire(long_ago) == ExpireResult(0, 0, 0)
    assert len(ids(lake)) == 8


def test_what_is_old_goes_and_does_not_come_back(lake: Lake, journal: Path) -> None:
    assert lake.expire(CUT) == ExpireResult(events=2, deliveries=2, quarantine=0)

    kept = sorted(sent(number).id for number in (2, 3, 100, 101, 102, 103))
    assert ids(lake) == kept
    assert lake.expire(CUT) == ExpireResult(0, 0, 0)
    assert lake.expire(CUT - timedelta(days=1)) == ExpireResult(0, 0, 0)
    shutil.copy(journal / "s0.jsonl", journal / "again.jsonl")
    assert lake.ingest(journal).events == 0
    segment(journal, "late", [sent(900), delivery(900)])  # never seen, and too old to be kept
    result = lake.ingest(journal)
    assert (result.events, result.deliveries, result.expired) == (0, 0, 2)
    assert ids(lake) == kept


def test_quarantined_lines_without_a_time_are_as_old_as_their_row(
    lake: Lake, journal: Path
) -> None:
    segment(journal, "bad", b"not a record\n")
    lake.ingest(journal)

    assert lake.expire(timedelta(days=1)).quarantine == 0
    assert lake.expire(timedelta(days=-1)).quarantine == 1
    with pytest.raises(ConfigurationError, match="time zone"):
        lake.expire(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
