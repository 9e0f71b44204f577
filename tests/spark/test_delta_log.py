"""Commits that are written without delta-rs: others see them, and they see those of others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars
import pytest
from deltalake import DeltaTable as Foreign
from tests.spark.inline import InlineLake
from tests.spark.journal_files import segment, sent

from matador.spark.runtime.arrow import pa
from matador.spark.tables import delta
from matador.spark.tables.delta import CommitConflictError, DataFile, DeltaTable
from matador.spark.tables.delta_log import LogTail, open_log
from matador.spark.tables.ingest import IngestResult
from matador.spark.tables.parquet_writer import FileWriter
from matador.storage import FolderStorage

COLUMNS = pa.schema([("number", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> FolderStorage:
    return FolderStorage(str(tmp_path))


def numbers(lake: FolderStorage) -> DeltaTable:
    return DeltaTable(lake, "numbers", COLUMNS, partitioned=False).open()


def file_of(table: DeltaTable, number: int) -> DataFile:
    writer = FileWriter(table.storage, COLUMNS, None)
    writer.write(pa.table({"number": [number]}))
    return writer.close()


def read(table: DeltaTable) -> list[int]:
    return sorted(table.read().column("number").to_pylist())


def log_of(table: DeltaTable) -> Path:
    return Path(table.storage.root) / "_delta_log"


def test_every_reader_sees_what_is_appended(lake: FolderStorage) -> None:
    table = numbers(lake)
    for number in range(3):
        assert table.commit([file_of(table, number)], (), {"me": number}) == number + 1
    assert read(table) == [0, 1, 2]
    foreign = Foreign(table.storage.root)
    assert foreign.version() == 3
    assert foreign.transaction_version("me") == 2
    assert foreign.history(1)[0]["operation"] == "WRITE"
    assert sorted(polars.read_delta(table.storage.root)["number"]) == [0, 1, 2]


def test_what_delta_rs_has_committed_is_seen_and_carried_on(lake: FolderStorage) -> None:
    table, other = numbers(lake), numbers(lake)
    table.commit([file_of(table, 1)], (), {"me": 1})
    other.refresh()
    first = other.files()
    other.commit([file_of(other, 1)], first, {"me": 7}, same_rows=True)  # by delta-rs
    assert table.version == 1
    table.refresh()
    assert (table.version, table.transaction("me")) == (2, 7)
    assert table.commit([file_of(table, 2)]) == 3
    assert read(table) == read(other.refresh()) == [1, 2]
    assert other.transaction("me") == 7


def test_of_two_writers_of_a_version_one_is_refused_and_nothing_of_it_is_there(
    lake: FolderStorage,
) -> None:
    table, other = numbers(lake), numbers(lake)
    table.commit([file_of(table, 1)])
    with pytest.raises(CommitConflictError):
        other.commit([file_of(other, 2)])
    assert (read(other), other.version) == ([1], 1), "it has looked again"
    assert other.commit([file_of(other, 2)]) == 2
    assert sorted(path.suffix for path in log_of(table).iterdir()) == [".json"] * 3


def test_the_files_are_those_of_the_version_that_was_read(lake: FolderStorage) -> None:
    table, other = numbers(lake), numbers(lake)
    table.commit([file_of(table, 1)])
    other.refresh()
    table.commit([file_of(table, 2)])
    table.commit([file_of(table, 3)])
    assert (other.version, read(other)) == (1, [1])
    assert (other.refresh().version, read(other)) == (3, [1, 2, 3])


def test_other_columns_are_noticed(lake: FolderStorage) -> None:
    table, other = numbers(lake), numbers(lake)
    table.commit([file_of(table, 1)])
    Foreign(table.storage.root).alter.set_table_properties({"delta.checkpointInterval": "5"})
    other.refresh()
    assert other.version == 2
    for number in range(3):
        other.commit([file_of(other, number)])
    assert (log_of(table) / f"{5:020d}.checkpoint.parquet").exists(), "as the table says"


def test_a_table_with_rules_for_writers_is_left_to_delta_rs(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = numbers(lake)
    Foreign(table.storage.root).alter.add_constraint({"small": "number < 10"})
    table.refresh()

    def refused(*given: Any) -> bool:
        raise AssertionError("not without delta-rs")

    monkeypatch.setattr(delta, "write_entry", refused)
    assert table.commit([file_of(table, 1)]) == table.version


def test_an_entry_that_is_gone_is_not_written_again(lake: FolderStorage) -> None:
    """An object that has slept until its part of the log was deleted must not go on from there."""
    sleeper, table = numbers(lake), numbers(lake)
    for number in range(3):
        table.commit([file_of(table, number)])
    Foreign(table.storage.root).create_checkpoint()
    for version in range(3):
        (log_of(table) / f"{version:020d}.json").unlink()
    with pytest.raises(CommitConflictError):
        sleeper.commit([file_of(sleeper, 9)])
    assert sleeper.version == 3
    sleeper.commit([file_of(sleeper, 9)])
    assert read(table.refresh()) == [0, 1, 2, 9]


def test_a_table_is_opened_and_appended_to_without_delta_rs(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = numbers(lake)
    Foreign(table.storage.root).alter.set_table_properties({"delta.checkpointInterval": "7"})
    table.refresh()
    for number in range(9):
        table.commit([file_of(table, number)], (), {f"app-{number % 2}": number})
    assert (log_of(table) / f"{7:020d}.checkpoint.parquet").exists()
    foreign = Foreign(table.storage.root)

    with monkeypatch.context() as patched:

        def refused(*given: Any, **options: Any) -> None:
            raise AssertionError("not by delta-rs")

        patched.setattr(delta, "_delta", refused)
        again = numbers(lake)
        assert again.exists()
        assert (again.version, again.id) == (foreign.version(), str(foreign.metadata().id))
        for name in ("app-0", "app-1", "nobody"):  # before and after the checkpoint, and never
            assert again.transaction(name) == foreign.transaction_version(name)
        assert again.commit([file_of(again, 9)], (), {"app-1": 9}) == foreign.version() + 1
    assert read(again) == read(table.refresh()) == [*range(10)]


def test_a_log_that_is_not_understood_is_left_to_delta_rs(lake: FolderStorage) -> None:
    table = numbers(lake)
    for number in range(3):
        table.commit([file_of(table, number)])
    assert open_log(table.storage) is not None
    hint = log_of(table) / "_last_checkpoint"
    for text in ('{"version": 2, "parts": 3}', '{"version": 2}', "{", '{"size": 3}'):
        hint.write_text(text)
        assert open_log(table.storage) is None, text
    Foreign(table.storage.root).create_checkpoint()
    assert open_log(table.storage) is not None
    (checkpoint,) = log_of(table).glob("*.checkpoint.parquet")
    whole = checkpoint.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:4] + bytes(len(whole) - 12) + whole[-8:]):
        checkpoint.write_bytes(damaged)
        assert open_log(table.storage) is None, "the machine lost its power"
    checkpoint.unlink()
    hint.unlink()
    (log_of(table) / f"{4:020d}.json").write_text("")
    assert open_log(table.storage) is None
    assert open_log(lake) is None, "no table"


def test_a_log_without_its_last_entry_is_followed_by_delta_rs(lake: FolderStorage) -> None:
    table = numbers(lake)
    for number in range(3):
        table.commit([file_of(table, number)])
    Foreign(table.storage.root).create_checkpoint()
    for path in log_of(table).glob("*.json"):
        path.unlink()
    assert not LogTail(table.storage, 3).is_last_there()
    again = numbers(lake)
    assert (again.version, read(again)) == (3, [0, 1, 2])
    assert (again.refresh().version, read(again)) == (3, [0, 1, 2])


def test_a_hundred_commits_have_a_checkpoint(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
    table = numbers(lake)
    file = file_of(table, 1)
    for number in range(100):
        table.commit([file], (), {"me": number})
    last = json.loads((log_of(table) / "_last_checkpoint").read_bytes())
    assert last["version"] == 100
    for path in log_of(table).glob("*.json"):
        if int(path.stem) < 100:
            path.unlink()
    found = numbers(lake)
    assert (found.version, found.transaction("me"), read(found)) == (100, 99, [1])


def test_a_commit_counts_although_its_checkpoint_fails(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delta, "_CHECKPOINT", 1)

    def full(self: FolderStorage, *names: str) -> None:
        raise OSError("No space left on device")

    table = numbers(lake)
    monkeypatch.setattr(FolderStorage, "sync", full)
    assert table.commit([file_of(table, 1)]) == 1
    assert "has no checkpoint at 1: No space left on device" in caplog.text
    assert read(table) == [1]


def test_which_segments_are_done_is_kept_in_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
    monkeypatch.setattr("matador.spark.tables.ingest._MOST_FILES", 5)
    lake = InlineLake(tmp_path / "lake", monkeypatch)
    journal = tmp_path / "journal"
    for number in range(8):
        segment(journal, f"{number}", [sent(number)])
    assert lake.ingest(journal, batch_size=1).segments == 8
    done = lake.layout.segments()
    assert len(done.open().files()) == 3, "six in one file, and two more"
    monkeypatch.setattr("matador.spark.tables.ingest._MOST_FILES", 2)
    assert lake.ingest(journal) == IngestResult()
    assert len(done.refresh().files()) == 1
    segment(journal, "8", [sent(8)])
    assert lake.ingest(journal).segments == 1
    done.refresh().vacuum(0)
    assert lake.ingest(journal) == IngestResult()
