"""The files of a lake: on the disk before anybody relies on them, and right after any crash."""

from __future__ import annotations

import errno
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
from deltalake import DeltaTable as Foreign
from deltalake.exceptions import DeltaError
from tests.observe.disk_spy import DiskSpy
from tests.spark.inline import InlineLake
from tests.spark.journal_files import NOW, delivery, files, rows, segment, sent

from matador.errors import StorageLockedError
from matador.spark.replay.ledger import Chunk, Ledger, ReplayPlan
from matador.spark.tables import dedup_index
from matador.spark.tables.dedup_index import KeyIndex, save_run
from matador.spark.tables.delta import CommitConflictError, DeltaTable
from matador.spark.tables.ingest import IngestResult
from matador.storage import FolderStorage
from matador.storage.files import move, remove, sync_tree, write_json

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
    """What the tables hold, a row a text, whatever file it is in."""
    return {
        table: sorted(str({**row, "quarantined_at": None}) for row in rows(lake.layout.root, table))
        for table in ("events", "deliveries", "quarantine")
    }


# -- on the disk first ---------------------------------------------------------------------------


def noting_commits(spy: DiskSpy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the spy note commits: those of delta-rs when the log is synced after them."""
    sync, link = FolderStorage.sync, os.link

    def noted(self: FolderStorage, *names: str) -> None:
        spy.steps.append(("commit", Path(self.root).name))
        sync(self, *names)

    def linked(hidden: Path, entry: Path) -> None:
        spy.steps.append(("commit", entry.parent.parent.name))
        link(hidden, entry)

    monkeypatch.setattr(FolderStorage, "sync", noted)
    monkeypatch.setattr(os, "link", linked)


def test_files_are_on_the_disk_before_they_are_committed_and_the_log_before_it_is_told(
    tmp_path: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(tmp_path / "journal", "a", [sent(1), sent(1), delivery(1)])
    lake.ingest(tmp_path)  # makes the tables
    spy = DiskSpy(monkeypatch)
    noting_commits(spy, monkeypatch)

    lake.ingest(tmp_path / "journal")

    steps = spy.steps
    for table in ("events", "deliveries"):
        (part,) = files(lake.layout.root, table)
        committed = steps.index(("commit", table))
        written = steps.index(("fsync", part.name))
        assert written < committed
        assert steps[written + 1] == ("fsync", part.parent.name), "its name, too"
        before, after = steps[committed - 1], steps[committed + 1 : committed + 3]
        assert (before[0], before[1][:8]) == ("fsync", "_commit_"), "the whole entry"
        assert [what for what, _ in after] == ["unlink", "fsync"]
        assert after[1] == ("fsync", "_delta_log")
    done = steps.index(("commit", "_segments"))
    assert done > steps.index(("commit", "events"))
    assert done > steps.index(("commit", "deliveries"))


def test_a_merged_file_is_on_the_disk_before_it_is_committed(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    spy = DiskSpy(monkeypatch)
    noting_commits(spy, monkeypatch)

    lake.compact()
    lake.expire(CUT)

    for table in ("events", "deliveries"):
        (file,) = files(lake.layout.root, table)
        assert spy.at("fsync", file.name) < max(
            at for at, one in enumerate(spy.steps) if one == ("commit", table)
        )


def test_a_replay_is_fixed_once_its_rows_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(FolderStorage(str(tmp_path / "_ledger")), "r1")
    with ledger.held():
        ledger.rows.write("chunk-0.parquet", b"")
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
    with Ledger(FolderStorage(str(tmp_path)), "r1").held():
        with Ledger(FolderStorage(str(tmp_path)), "r2").held():
            pass
        second = Ledger(FolderStorage(str(tmp_path)), "r1").held()
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
    save_run(tmp_path / "1-1.npy", np.zeros((2, 3), np.uint64))
    (synced, name), *rest = spy.steps
    assert (synced, name[:9]) == ("fsync", ".1-1.npy-")
    assert rest == [("replace", "1-1.npy"), ("fsync", tmp_path.name)]


def test_everything_is_its_owners_alone(journal: Path, lake: InlineLake) -> None:
    lake.ingest(journal, batch_size=1)
    lake.compact()
    assert stat.S_IMODE(lake.layout.root.stat().st_mode) == 0o700
    for path in lake.layout.root.rglob("*.parquet"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_commit_that_a_power_failure_has_cut_short_is_set_aside(
    journal: Path, lake: InlineLake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.ingest(journal)
    last = max((lake.layout.root / "events" / "_delta_log").glob("*.json"))
    for content in (last.read_bytes()[:100], last.read_bytes()[:-20]):
        next_one = last.with_name(f"{int(last.stem) + 1:020d}.json")
        next_one.write_bytes(content)
        caplog.clear()
        assert len(lake.layout.table("events").open().read()) == 4
        assert "is incomplete, and is set aside" in caplog.text
        assert not next_one.exists()


def test_a_log_that_is_broken_in_the_middle_is_not_touched(journal: Path, lake: InlineLake) -> None:
    lake.ingest(journal, batch_size=1)
    entries = sorted((lake.layout.root / "events" / "_delta_log").glob("*.json"))
    entries[1].write_bytes(entries[1].read_bytes()[:100])
    with pytest.raises(DeltaError):
        lake.layout.table("events").open()
    assert sorted((lake.layout.root / "events" / "_delta_log").glob("*.json")) == entries


def test_an_error_that_is_no_conflict_is_not_tried_again(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal)
    table = lake.layout.table("events").open()

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def create_write_transaction(self, *given: object, **options: object) -> None:
            raise DeltaError("No space left on device")

    inner = table._snapshot()
    table._table = Full()
    with pytest.raises(DeltaError, match="No space"):
        table.commit(same_rows=True)

    def full(hidden: Path, entry: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space"):
        table.commit()
    assert not [*(lake.layout.root / "events" / "_delta_log").glob("*.tmp")]


# -- ended at any moment -------------------------------------------------------------------------


# A process that ends closes its files; this one only pretends to.
ends_without_closing = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class _Ended(BaseException):
    """The process ended here."""


class Crash:
    """Ends the process at the step of that number: before or after a file, a run or a commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self._left = number
        for owner, name in (
            (FolderStorage, "create"),
            (FolderStorage, "finish"),
            (FolderStorage, "sync"),
            (DeltaTable, "commit"),
            (os, "link"),
            (dedup_index, "save_run"),
            (dedup_index, "left_overs"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            self._step()
            found = call(*given, **options)
            self._step()
            return found

        return counted

    def _step(self) -> None:
        if self._left == 0:
            raise _Ended
        self._left -= 1


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
    """Do something in lakes of their own, ended at each of its steps and then done again.

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


@ends_without_closing
def test_an_ingest_that_ends_at_any_step_is_carried_on(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = InlineLake(tmp_path / "whole", monkeypatch)
    whole.ingest(journal)
    wanted = contents(whole)
    assert [len(found) for found in wanted.values()] == [4, 3, 1]

    def check(lake: InlineLake) -> None:
        assert contents(lake) == wanted
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
    assert steps > 40


@ends_without_closing
def test_a_compaction_that_ends_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, list[str]] = {}

    def prepare(lake: InlineLake) -> None:
        lake.ingest(journal, batch_size=1)
        wanted.update(contents(lake))

    def check(lake: InlineLake) -> None:
        assert contents(lake) == wanted
        assert len(files(lake.layout.root, "events")) == 1
        assert lake.ingest(journal) == IngestResult()
        (journal / "again.jsonl").write_bytes((journal / "a.jsonl").read_bytes())
        assert lake.ingest(journal).duplicates == 3
        (journal / "again.jsonl").unlink()

    assert crashes(tmp_path, monkeypatch, prepare, InlineLake.compact, check) > 10


@ends_without_closing
def test_an_expiry_that_ends_at_any_step_is_done_by_the_next(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(lake: InlineLake) -> None:
        found = contents(lake)
        assert [len(found[table]) for table in ("events", "deliveries", "quarantine")] == [3, 1, 1]

    def expire(lake: InlineLake) -> None:
        lake.expire(CUT)

    def prepare(lake: InlineLake) -> None:
        lake.ingest(journal, batch_size=1)

    assert crashes(tmp_path, monkeypatch, prepare, expire, check) > 10


# -- two at the same time ------------------------------------------------------------------------


class Meanwhile:
    """Does something else just before the first commit to a table: as another process would."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, table: str, act: Callable[[], object]
    ) -> None:
        self.conflicts = 0
        commit = DeltaTable.commit
        done = False

        def late(table_: DeltaTable, *given: Any, **options: Any) -> int:
            nonlocal done
            if table_.name == table and not done:
                done = True
                act()
            try:
                return commit(table_, *given, **options)
            except CommitConflictError:
                self.conflicts += 1
                raise

        monkeypatch.setattr(DeltaTable, "commit", late)


@pytest.mark.parametrize("table", ["events", "deliveries", "quarantine", "_segments"])
def test_two_ingests_of_the_same_journal_end_exact(
    journal: Path, lake: InlineLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    meanwhile = Meanwhile(monkeypatch, table, lambda: lake.ingest(journal, batch_size=1))

    lake.ingest(journal)

    assert meanwhile.conflicts
    assert [len(found) for found in contents(lake).values()] == [4, 3, 1]
    assert lake.ingest(journal) == IngestResult()


def test_an_ingest_beside_a_compaction(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    segment(journal, "e", [sent(5, recorded_at=LATER), sent(2, recorded_at=LATER)])
    meanwhile = Meanwhile(monkeypatch, "events", lake.compact)
    assert lake.ingest(journal).events == 1
    assert meanwhile.conflicts == 1
    assert len(contents(lake)["events"]) == 5


def test_a_compaction_beside_an_ingest_and_another_compaction(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    segment(journal, "e", [sent(5, recorded_at=LATER)])
    with monkeypatch.context() as patched:
        meanwhile = Meanwhile(patched, "events", lambda: lake.ingest(journal))
        lake.compact()
        assert meanwhile.conflicts == 1
    assert len(files(lake.layout.root, "events")) == 2
    before = contents(lake)
    with monkeypatch.context() as patched:
        Meanwhile(patched, "events", lake.compact)
        lake.compact()
    assert contents(lake) == before
    assert len(files(lake.layout.root, "events")) == 1


def test_what_another_program_deletes_does_not_come_back(journal: Path, lake: InlineLake) -> None:
    """With the rules of Delta tables: its files are replaced, or have rows taken out of them."""
    lake.ingest(journal)
    gone = sent(2, recorded_at=LATER).id
    root = lake.layout.root
    deleted = Foreign(root / "events").delete(f"id = '{gone}'")
    assert deleted["num_deleted_rows"] == 1
    kept = [row["id"] for row in rows(root, "events")]
    segment(journal, "e", [sent(2, recorded_at=LATER), sent(5, recorded_at=LATER)])
    assert lake.ingest(journal).events == 1, "what was deleted does not come back"
    wanted = sorted([*kept, sent(5).id])
    assert sorted(row["id"] for row in rows(root, "events")) == wanted
    lake.compact()
    assert sorted(row["id"] for row in rows(root, "events")) == wanted
    assert lake.expire(CUT).events == 1
    assert lake.ingest(journal) == IngestResult()


def test_rows_that_expire_while_they_are_ingested_do_not_come_in(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile = Meanwhile(monkeypatch, "events", lambda: lake.expire(CUT))
    result = lake.ingest(journal)
    assert meanwhile.conflicts == 1
    assert (result.events, result.expired) == (3, 3)
    assert [len(found) for found in contents(lake).values()] == [3, 1, 1]


def test_an_expiry_beside_an_ingest(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal)
    segment(journal, "e", [sent(50), sent(51, recorded_at=LATER)])
    meanwhile = Meanwhile(monkeypatch, "events", lambda: lake.ingest(journal))
    assert lake.expire(CUT).events == 2
    assert meanwhile.conflicts == 1
    assert len(contents(lake)["events"]) == 4


# -- the index is a cache ------------------------------------------------------------------------


def test_an_index_that_is_gone_is_made_again(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(journal, batch_size=1)
    lake.compact()
    shutil.copy(journal / "a.jsonl", journal / "again.jsonl")
    shutil.rmtree(lake.layout.root / "_index")
    assert lake.ingest(journal).duplicates == 3
    shutil.rmtree(lake.layout.root / "_index")
    for entry in (lake.layout.root / "events" / "_delta_log").glob("*[1-4].json"):
        entry.rename(entry.with_suffix(".kept"))  # as a checkpoint and time would

    def gone(self: DeltaTable, after: int) -> None:
        return None

    monkeypatch.setattr(DeltaTable, "changes", gone)
    table = lake.layout.table("deliveries").open()
    index = KeyIndex(lake.layout.index("deliveries"), table)
    index.catch_up()
    keys = dedup_index.merged([dedup_index.keys_in(table, one) for one in table.files()])
    assert index.repeated(keys).all()
    assert keys.shape[1] == 3


def test_an_index_that_another_process_merges_at_the_moment_misses_nothing(
    tmp_path: Path, journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listing has neither the runs that are merged, nor the merged one."""
    lake.ingest(journal, batch_size=1)
    before = contents(lake)
    segment(tmp_path / "again", "x", [sent(3, recorded_at=LATER), sent(4, recorded_at=LATER)])
    runs_of, looks = dedup_index.runs_of, 0

    def broken_at_first(folder: Path) -> list[dedup_index.Run]:
        nonlocal looks
        looks += 1
        return runs_of(folder)[: 1 if looks <= 5 else None]

    monkeypatch.setattr(dedup_index, "runs_of", broken_at_first)
    result = lake.ingest(tmp_path / "again")

    assert looks > 5
    assert (result.events, result.duplicates) == (0, 2)
    assert contents(lake) == before


def test_another_lake_in_the_same_place_has_another_index(tmp_path: Path, lake: InlineLake) -> None:
    segment(tmp_path / "journal", "a", [sent(1)])
    lake.ingest(tmp_path / "journal")
    for name in ("events", "_segments"):  # but not the index
        shutil.rmtree(lake.layout.root / name)
    assert lake.ingest(tmp_path / "journal").events == 1


def test_runs_of_the_index_stay_few(tmp_path: Path, lake: InlineLake) -> None:
    for number in range(70):
        segment(tmp_path / "journal", f"s{number:02}", [sent(number)])
    lake.ingest(tmp_path / "journal", batch_size=1)
    (folder,) = (lake.layout.root / "_index" / "events").iterdir()
    assert len(list(folder.iterdir())) < 20
    for number in range(70):
        segment(tmp_path / "journal", f"again{number}", [sent(number)])
    assert lake.ingest(tmp_path / "journal").duplicates == 70
