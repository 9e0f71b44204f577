"""The files of a lake: on the disk before anybody relies on them, and right after any crash."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.observe.disk_spy import DiskSpy
from tests.spark.inline import InlineLake
from tests.spark.journal_files import NOW, delivery, rows, segment, sent

from matador.errors import StorageLockedError
from matador.observe.journal.records import DroppedRecord, encode_record
from matador.spark.replay.ledger import Chunk, Ledger, ReplayPlan
from matador.spark.runtime.arrow import parquet
from matador.spark.runtime.files import locked, move, remove, sync_tree, write_json
from matador.spark.tables import batch_log, maintenance
from matador.spark.tables.batch_log import BatchLog, SegmentRef, last_done
from matador.spark.tables.dedup_index import runs_of, save_run
from matador.spark.tables.ingest import IngestResult
from matador.spark.tables.layout import Layout
from matador.spark.tables.maintenance import finish_interrupted

CUT = datetime.fromtimestamp(NOW / 1_000_000, UTC) + timedelta(seconds=10)
LATER = NOW + 20_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three segments; rows of the first are old, one of them is in two segments."""
    folder = tmp_path / "journal"
    segment(folder, "a", [sent(1), sent(2, recorded_at=LATER), delivery(1)])
    segment(folder, "b", [sent(2, recorded_at=LATER), sent(3, recorded_at=LATER), delivery(2)])
    segment(folder, "c", [sent(4, recorded_at=LATER), delivery(4, recorded_at=LATER)])
    (folder / "d.jsonl").write_bytes(b"not a record\n")
    return folder


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InlineLake:
    return InlineLake(tmp_path / "lake", monkeypatch)


def contents(lake: InlineLake) -> dict[str, list[str]]:
    """What the tables hold, a row a text, whatever batch it is in."""
    return {
        table: sorted(str({**row, "batch_id": None}) for row in rows(lake.layout.root, table))
        for table in ("events", "deliveries", "quarantine")
    }


# -- on the disk first ---------------------------------------------------------------------------


def test_a_batch_is_on_the_disk_before_it_is_staged_and_in_place_before_it_is_done(
    tmp_path: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(tmp_path / "journal", "a", [sent(1), sent(1), delivery(1)])
    lake.layout.make()
    spy = DiskSpy(monkeypatch)

    lake.ingest(tmp_path / "journal")

    steps = spy.steps
    log = "000000000.json"
    planned, staged, done = (at for at, one in enumerate(steps) if one == ("replace", log))
    for at in (planned, staged, done):
        assert steps[at - 1] == ("fsync", f".{log}.new")
        assert steps[at + 1] == ("fsync", "ingest")
    (part,) = (path.name for path in lake.layout.batch("events", 0).iterdir())
    before = steps[planned:staged]
    assert before.index(("fsync", f".{part}.{os.getpid()}")) < before.index(("replace", part))
    run = "000000000-000000000.npy"
    moved = before.index(("rename", part))
    for name in ("events", "deliveries", "index", "_staging"):
        assert ("fsync", name) in before[moved:], name
    assert before.count(("fsync", run)) == 2  # of two tables
    after = steps[staged:done]
    assert after.count(("rename", run)) == after.count(("rename", "batch_id=0")) == 2
    for table in ("events", "deliveries"):
        assert after.count(("fsync", table)) == 2, "the index and the table have new names"
    for at, step in enumerate(after):
        if step[0] == "rename":
            assert after[at + 1][0] == "fsync"


def test_a_merged_file_is_on_the_disk_before_the_others_go(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    spy = DiskSpy(monkeypatch)

    lake.compact()

    steps = spy.steps
    decided, over = spy.at("replace", "swaps.json"), spy.at("unlink", "swaps.json")
    for table in ("events", "deliveries"):
        (name,) = (path.name for path in lake.layout.table(table).glob("*/*.parquet"))
        written = spy.at("fsync", name)
        assert written < decided
        assert steps[written + 1][1].startswith(f".{table}-"), "its folder, too"
        into = max(at for at, one in enumerate(steps[:over]) if one == ("fsync", table))
        assert steps[into - 1][0] == "rename"
    assert ("fsync", "_staging") in steps[:decided]
    gone = [at for at, (what, name) in enumerate(steps) if what == "unlink" and "parquet" in name]
    assert min(gone) > over


def test_what_expires_is_gone_from_the_disk(
    tmp_path: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(tmp_path / "journal", "a", [sent(1), sent(2, recorded_at=LATER)])
    lake.ingest(tmp_path / "journal")
    (path,) = lake.layout.batch("events", 0).iterdir()
    left_over = path.with_name(f".{path.name}.999")  # of a process that was killed
    left_over.touch()
    with path.open("rb") as held:
        spy = DiskSpy(monkeypatch)
        assert lake.expire(CUT).events == 1
        assert parquet.read_table(held).num_rows == 2, "a reader goes on with what it has opened"
    assert not left_over.exists()
    kept = datetime.fromtimestamp(LATER / 1_000_000, UTC)
    assert lake.expire(kept).events == 0, "what was recorded at that time is not older"
    at = spy.at("replace", path.name)
    assert spy.steps[at - 2][1].startswith(f".{path.name}")
    assert spy.steps[at + 1] == ("fsync", "batch_id=0")
    assert lake.expire(CUT + timedelta(days=1)).events == 1
    assert spy.steps[spy.at("unlink", path.name) + 1] == ("fsync", "batch_id=0")
    assert lake.layout.batches("events") == []


def test_a_replay_is_fixed_once_its_rows_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "_ledger", "r1")
    with ledger.held():
        ledger.rows.mkdir()
        (ledger.rows / "chunk-0.parquet").touch()
        spy = DiskSpy(monkeypatch)
        ledger.fix(ReplayPlan("replay", {}, ("chunk-0.parquet",), ()))
        fixed = spy.at("replace", "plan.json")
        assert spy.at("fsync", "chunk-0.parquet") < spy.at("fsync", "rows") < fixed
        assert ledger.chunk("chunk-0.parquet") is None
        ledger.note("chunk-0.parquet", Chunk(sent=3))
        done = spy.at("replace", "chunk-0.parquet.json")
        assert spy.steps[done - 1 : done + 2 : 2] == [
            ("fsync", ".chunk-0.parquet.json.new"),
            ("fsync", "done"),
        ]


def test_one_process_at_a_time_sends_a_replay(tmp_path: Path) -> None:
    with Ledger(tmp_path, "r1").held():
        with Ledger(tmp_path, "r2").held():
            pass
        second = Ledger(tmp_path, "r1").held()
        with pytest.raises(StorageLockedError, match="replay r1 is already running"):
            second.__enter__()


def test_small_promises_about_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = DiskSpy(monkeypatch)
    write_json(tmp_path / "a.json", [1])
    assert spy.steps == [
        ("fsync", ".a.json.new"),
        ("replace", "a.json"),
        ("fsync", tmp_path.name),
    ]
    spy.steps.clear()
    (tmp_path / "folder").mkdir()
    move(tmp_path / "a.json", tmp_path / "folder" / "b.json")
    assert spy.steps == [("rename", "b.json"), ("fsync", "folder")]
    move(tmp_path / "a.json", tmp_path / "folder" / "b.json")  # done already
    assert (tmp_path / "folder" / "b.json").read_bytes() == b"[1]"
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "left-over").touch()
    move(tmp_path / "new", tmp_path / "old")  # in the place of what a run that was killed has left
    assert list((tmp_path / "old").iterdir()) == []
    (tmp_path / "old").rmdir()
    spy.steps.clear()
    sync_tree(tmp_path)
    assert sorted(spy.steps) == [
        ("fsync", "b.json"),
        ("fsync", "folder"),
        ("fsync", tmp_path.name),
    ]
    spy.steps.clear()
    remove(tmp_path / "folder")
    assert spy.steps[0] == ("rename", ".removed-folder"), "no reader finds a part of it"
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_the_index_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = DiskSpy(monkeypatch)
    save_run(tmp_path / "index" / "1-1.npy", np.zeros((2, 3), np.uint64))
    assert spy.steps == [("fsync", "1-1.npy"), ("fsync", "index")]


def test_everything_is_its_owners_alone(journal: Path, lake: InlineLake) -> None:
    lake.ingest(journal, batch_size=1)
    lake.expire(CUT)
    lake.compact()
    (lake.layout.root / "theirs").touch(0o644)
    for path in (lake.layout.root, *lake.layout.root.rglob("*")):
        wanted = 0o644 if path.name == "theirs" else 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


# -- ended at any moment -------------------------------------------------------------------------


class _Ended(BaseException):
    """The process ended here."""


class Crash:
    """Ends the process before the file operation of that number; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
        self.seen = 0
        for name in ("rename", "replace", "unlink", "mkdir", "rmdir"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name), number))

    def _counted(self, call: Callable[..., Any], number: int | None) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            if self.seen == number:
                raise _Ended
            self.seen += 1
            return call(*given, **options)

        return counted


def _quick(file: int) -> None:
    """What ends here is a process: the machine goes on, and need not wait for its disk."""


def crashes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[InlineLake], object],
    act: Callable[[InlineLake], object],
    check: Callable[[InlineLake], object],
    then: Callable[[InlineLake], object] | None = None,
) -> int:
    """Do something in lakes of their own, ended before each of its steps and then done again.

    ``then``: what is done after the end, instead.
    """
    monkeypatch.setattr(os, "fsync", _quick)
    prepared = InlineLake(tmp_path / "prepared", monkeypatch)
    prepare(prepared)
    number = 0
    while True:
        lake = InlineLake(tmp_path / f"lake-{number}", monkeypatch)
        shutil.copytree(prepared.layout.root, lake.layout.root)
        with monkeypatch.context() as patched:
            Crash(patched, number)
            try:
                act(lake)
            except _Ended:
                ended = True
            else:
                ended = False
        (then or act)(lake)
        check(lake)
        if not ended:
            return number
        number += 1


def test_an_ingest_that_ends_at_any_step_is_carried_on(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = InlineLake(tmp_path / "whole", monkeypatch)
    whole.ingest(journal)
    wanted = contents(whole)
    assert [len(found) for found in wanted.values()] == [4, 3, 1]

    def check(lake: InlineLake) -> None:
        assert contents(lake) == wanted
        assert list(lake.layout.staging.iterdir()) == []
        assert lake.ingest(journal) == IngestResult()

    stopped = threading.Event()
    stopped.set()  # after the first batch
    steps = crashes(
        tmp_path,
        monkeypatch,
        lambda lake: lake.ingest(journal, batch_size=1, stop=stopped),
        lambda lake: lake.ingest(journal),
        check,
    )
    assert steps > 20


def test_a_compaction_that_ends_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, list[str]] = {}

    def prepare(lake: InlineLake) -> None:
        lake.ingest(journal, batch_size=1)
        wanted.update(contents(lake))

    def check(lake: InlineLake) -> None:
        finish_interrupted(lake.layout)
        assert contents(lake) == wanted
        assert lake.layout.batches("events") == [2]
        assert not lake.layout.pending_replacements.exists()
        assert lake.ingest(journal) == IngestResult()
        assert list(lake.layout.staging.iterdir()) == []

    assert crashes(tmp_path, monkeypatch, prepare, InlineLake.compact, check) > 20


def test_an_ingest_after_a_compaction_that_ended_anywhere_loses_nothing(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, list[str]] = {}

    def prepare(lake: InlineLake) -> None:
        lake.ingest(journal, batch_size=1)
        wanted.update(contents(lake))

    def ingest(lake: InlineLake) -> None:
        lake.ingest(journal)

    def check(lake: InlineLake) -> None:
        assert contents(lake) == wanted
        assert list(lake.layout.staging.iterdir()) == []

    assert crashes(tmp_path, monkeypatch, prepare, InlineLake.compact, check, then=ingest) > 20


def test_an_expiry_that_ends_at_any_step_is_done_by_the_next(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(lake: InlineLake) -> None:
        found = contents(lake)
        assert [len(found[table]) for table in ("events", "deliveries", "quarantine")] == [3, 1, 1]
        assert lake.layout.batches("deliveries") == [2]
        assert not any(lake.layout.root.glob("*/batch_id=*/.*"))

    def expire(lake: InlineLake) -> None:
        lake.expire(CUT)

    def prepare(lake: InlineLake) -> None:
        lake.ingest(journal, batch_size=1)

    assert crashes(tmp_path, monkeypatch, prepare, expire, check) > 5


def test_rows_that_expire_while_a_swap_is_pending_do_not_come_back_with_it(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    with monkeypatch.context() as patched:
        # Ended when all was decided, and nothing done.
        patched.setattr(maintenance, "finish_replacements", _undone_if_pending)
        with pytest.raises(_Ended):
            lake.compact()
    assert lake.layout.pending_replacements.exists()
    assert lake.expire(CUT).events == 1
    finish_interrupted(lake.layout)
    assert len(contents(lake)["events"]) == 3


def test_a_reader_leaves_a_swap_alone_that_somebody_is_at(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "replace_batches", _undone)
        with pytest.raises(_Ended):
            lake.compact()
    write_json(lake.layout.pending_replacements, {"folder": "compaction-x", "swaps": []})
    with locked(lake.layout.lock):
        finish_interrupted(lake.layout)
        assert lake.layout.pending_replacements.exists()
    finish_interrupted(lake.layout)
    assert not lake.layout.pending_replacements.exists()


def _undone_if_pending(layout: Layout) -> None:
    if layout.pending_replacements.exists():
        raise _Ended


def _undone(*_: object) -> None:
    raise _Ended


def test_maintenance_that_fails_leaves_the_lake_as_it_was(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    before = contents(lake)
    (broken,) = lake.layout.batch("events", 2).iterdir()
    whole = broken.read_bytes()
    broken.write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match="magic bytes"):
        lake.compact()
    assert not lake.layout.pending_replacements.exists()
    assert lake.layout.batches("events") == [0, 1, 2]
    with pytest.raises(ValueError, match="magic bytes"):
        lake.expire(CUT)
    broken.write_bytes(whole)
    assert len(contents(lake)["events"]) == len(before["events"]) - 1, "the old one of another file"
    lake.compact()
    assert lake.layout.batches("events") == [2]
    lake.expire(CUT)
    assert len(contents(lake)["events"]) == 3


def test_one_at_a_time_looks_after_a_lake(journal: Path, lake: InlineLake) -> None:
    lake.ingest(journal)
    with locked(lake.layout.lock):
        for act in (lake.compact, lambda: lake.expire(CUT), lambda: lake.ingest(journal)):
            with pytest.raises(StorageLockedError, match="another process"):
                act()


# -- what is logged, and what is known ------------------------------------------------------------


def test_an_ingest_says_what_it_did(
    tmp_path: Path, lake: InlineLake, caplog: pytest.LogCaptureFixture
) -> None:
    lost = encode_record(DroppedRecord(5, "disk full", NOW, "w"))
    segment(tmp_path / "journal", "a", b"not a record\n" + lost + b"\n")
    with caplog.at_level(logging.INFO, "matador.lake"):
        lake.ingest(tmp_path / "journal")
    assert "batch 0: IngestResult(segments=1, records=2, " in caplog.text
    assert "1 × malformed-record in quarantine: not a record" in caplog.text
    assert "the journal lost 5 records" in caplog.text


def test_a_log_that_ended_in_the_middle_of_folding_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", _quick)
    monkeypatch.setattr(batch_log, "_FOLD", 8)
    every = [SegmentRef(f"{number}.jsonl", 1, 1) for number in range(16)]
    log = BatchLog(tmp_path / "prepared")
    for one in every[:-1]:
        log.done(log.plan("journal", [one]))
    log.plan("journal", [every[-1]])
    for number in range(200):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "prepared", folder)
        log = BatchLog(folder)
        batch = log.unfinished
        assert batch is not None
        with monkeypatch.context() as patched:
            Crash(patched, number)
            try:
                log.done(batch)
                ended = False
            except _Ended:
                ended = True
        again = BatchLog(folder)
        assert again.new_segments(every) == []
        if again.unfinished is not None:
            again.done(again.unfinished)
        assert again.plan("journal", []).number == 16
        if not ended:
            assert number > 8
            return
    raise AssertionError("it never came to its end")


def test_readers_know_which_batch_is_in_place(tmp_path: Path) -> None:
    assert last_done(tmp_path) == -1
    log = BatchLog(tmp_path)
    batch = log.plan("journal", [])
    assert last_done(tmp_path) == -1
    log.done(batch)
    assert last_done(tmp_path) == 0
    log.plan("journal", [])
    assert last_done(tmp_path) == 0


def test_runs_of_the_index_are_merged_as_batches_come(tmp_path: Path, lake: InlineLake) -> None:
    for number in range(10):
        segment(tmp_path / "journal", f"s{number}", [sent(number)])
    lake.ingest(tmp_path / "journal", batch_size=1)
    runs = runs_of(lake.layout.index("events"))
    assert [(run.first, run.last) for run in runs] == [(0, 7), (8, 8), (9, 9)]
    assert len(list(lake.layout.index("events").iterdir())) == 3
    for number in range(10):
        segment(tmp_path / "journal", f"again{number}", [sent(number)])
    assert lake.ingest(tmp_path / "journal").duplicates == 10
