"""Segments that an executor cannot read: they wait, everybody is told, and all others come in."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.inline import InlineLake
from tests.spark.journal_files import delivery, files, rows, segment, sent

from matador.errors import ClusterError, ConfigurationError
from matador.spark.runtime.journal_lines import Split, read_blocks
from matador.spark.tables import ingest, ingest_tasks
from matador.spark.tables.ingest import IngestProgress, IngestResult


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InlineLake:
    return InlineLake(tmp_path / "lake", monkeypatch)


class Blind:
    """Executors that do not see some segments, or not the whole of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unseen: set[str] = set()
        self.from_byte = 0
        self.error: OSError = PermissionError(errno.EACCES, "Permission denied")
        self.looked: list[str] = []
        monkeypatch.setattr(ingest_tasks, "read_blocks", self._read)

    def _read(self, split: Split) -> Iterator[bytes]:
        self.looked.append(split.name)
        if split.name in self.unseen and split.start >= self.from_byte:
            raise self.error
        yield from read_blocks(split)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> Blind:
    return Blind(monkeypatch)


class Impatient(threading.Event):
    """Stops a follower after so many looks, whatever it has found."""

    looks = 300

    def wait(self, timeout: float | None = None) -> bool:
        self.looks -= 1
        return self.looks == 0 or super().wait(timeout)


def ids(lake: InlineLake) -> list[str]:
    return sorted(row["id"] for row in rows(lake.layout.root, "events"))


def test_it_waits_and_all_others_come_in(
    journal: Path, lake: InlineLake, blind: Blind, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate("abc"):
        segment(journal, name, [sent(number), delivery(number)])
    blind.unseen = {"b.jsonl"}

    with pytest.raises(ClusterError) as caught:
        lake.ingest(journal)

    said = str(caught.value)
    assert said.startswith(f"1 segment of {journal} could not be read by the executors")
    assert f"b.jsonl ({os.uname().nodename}: Permission denied)" in said
    assert "cannot be read by the executors, and waits" in caplog.text
    assert ids(lake) == [sent(0).id, sent(2).id]
    blind.unseen = set()
    assert lake.ingest(journal) == IngestResult(segments=1, records=2, events=1, deliveries=1)
    assert ids(lake) == [sent(number).id for number in range(3)]
    assert lake.ingest(journal) == IngestResult()


def test_where_no_executor_sees_the_journal_nothing_counts_as_done(
    journal: Path, lake: InlineLake, blind: Blind
) -> None:
    for number in range(20):
        segment(journal, f"s{number:02}", [sent(number * 100 + one) for one in range(100)])
        blind.unseen.add(f"s{number:02}.jsonl")
    blind.error = FileNotFoundError(errno.ENOENT, "No such file or directory")

    for _ in range(2):
        with pytest.raises(ClusterError, match=r"20 segments .* and 15 more"):
            lake.ingest(journal, batch_size=1)
        assert ids(lake) == []

    blind.unseen = set()
    result = lake.ingest(journal, batch_size=1)
    assert (result.segments, result.events) == (20, 2000)


def test_small_segments_that_share_a_task_do_not_share_a_fate(
    journal: Path, lake: InlineLake, blind: Blind
) -> None:
    for number in range(400):
        segment(journal, f"s{number:03}", [sent(number)])
    blind.unseen = {"s007.jsonl"}

    with pytest.raises(ClusterError, match=r"1 segment of .*s007"):
        lake.ingest(journal)

    assert len(ids(lake)) == 399
    assert len(files(lake.layout.root, "events")) == 1
    blind.unseen = set()
    assert lake.ingest(journal).events == 1


def test_of_a_segment_that_one_executor_sees_and_another_does_not_nothing_is_taken(
    journal: Path, lake: InlineLake, blind: Blind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_SMALLEST_SPLIT", 200)
    whole = segment(journal, "a", [sent(number) for number in range(10)])
    segment(journal, "b", [sent(100)])
    blind.unseen, blind.from_byte = {"a.jsonl"}, whole.stat().st_size // 2

    with pytest.raises(ClusterError):
        lake.ingest(journal)

    assert ids(lake) == [sent(100).id]
    blind.unseen = set()
    assert lake.ingest(journal) == IngestResult(segments=1, records=10, events=10)


def test_an_executor_that_sees_less_of_a_segment_does_not_take_that_for_all(
    journal: Path, tmp_path: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment(journal, "a", [sent(1), sent(2)])
    stale = segment(tmp_path / "stale", "a", [sent(1)])

    def elsewhere(split: Split) -> Iterator[bytes]:
        return read_blocks(Split(str(stale), split.start, split.end))

    with monkeypatch.context() as patched:
        patched.setattr(ingest_tasks, "read_blocks", elsewhere)
        with pytest.raises(ClusterError, match=f"bytes here instead of {path.stat().st_size:,}"):
            lake.ingest(journal)
    assert ids(lake) == []
    assert lake.ingest(journal).events == 2


def test_what_is_gone_for_everybody_is_told_and_is_no_error(
    journal: Path, lake: InlineLake, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [segment(journal, name, [sent(number)]) for number, name in enumerate("ab")]
    kept = paths[1].read_bytes()

    def tidy(_: IngestProgress) -> None:
        paths[1].unlink(True)

    result = lake.ingest(journal, batch_size=1, progress=tidy)

    assert (result.segments, result.events) == (1, 1)
    assert f"{paths[1]} was removed before it was ingested" in caplog.text
    paths[1].write_bytes(kept)  # it was only moved
    assert lake.ingest(journal).events == 1


def test_following_tries_again_after_a_while_and_goes_on_meanwhile(
    journal: Path,
    lake: InlineLake,
    blind: Blind,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    segment(journal, "a", [sent(1)])
    segment(journal, "b", [sent(2)])
    blind.unseen = {"a.jsonl"}
    stop = Impatient()

    def progress(now: IngestProgress) -> None:
        if now.result.events == 1:
            segment(journal, "c", [sent(3)])
        elif now.result.events == 2:
            assert blind.looked.count("a.jsonl") == 1, "not at every look"
            blind.unseen = set()
            monkeypatch.setattr(ingest, "_TRY_AGAIN", 0)
            monkeypatch.setattr(ingest.time, "monotonic", lambda: 1e18)
        else:
            stop.set()

    result = lake.ingest(journal, follow=True, stop=stop, interval=0.01, progress=progress)
    assert result.events == 3
    assert caplog.text.count("and waits") == 1


def test_a_follower_that_is_stopped_says_what_still_waits(
    journal: Path, lake: InlineLake, blind: Blind
) -> None:
    segment(journal, "a", [sent(1)])
    segment(journal, "b", [sent(2)])
    blind.unseen = {"a.jsonl"}
    stop = threading.Event()

    def end(_: IngestProgress) -> None:
        stop.set()

    with pytest.raises(ClusterError, match=r"a\.jsonl"):
        lake.ingest(journal, follow=True, stop=stop, progress=end)


def test_a_lake_that_cannot_be_written_is_not_the_fault_of_a_segment(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(journal, "a", [sent(1)])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(ingest_tasks.Parts, "add", full)
        with pytest.raises(OSError, match="no space"):
            lake.ingest(journal)
    assert ids(lake) == []
    assert lake.ingest(journal).events == 1


def test_links_pipes_and_folders_are_not_ingested(
    journal: Path, tmp_path: Path, lake: InlineLake
) -> None:
    elsewhere = segment(tmp_path / "private", "theirs", [sent(1)])
    segment(journal, "a", [sent(2)])
    (journal / "b.jsonl").symlink_to(elsewhere)
    (journal / "c.jsonl").mkdir()
    os.mkfifo(journal / "d.jsonl")
    assert lake.ingest(journal) == IngestResult(segments=1, records=1, events=1)


def test_a_segment_that_became_a_link_is_not_followed(
    journal: Path, tmp_path: Path, lake: InlineLake
) -> None:
    paths = [segment(journal, name, [sent(number)]) for number, name in enumerate("ab")]
    elsewhere = segment(tmp_path / "private", "theirs", [sent(9)])

    def swap(_: IngestProgress) -> None:
        paths[1].unlink(True)
        paths[1].symlink_to(elsewhere)

    with pytest.raises(ClusterError, match=r"b\.jsonl"):
        lake.ingest(journal, batch_size=1, progress=swap)
    assert ids(lake) == [sent(0).id]
    assert lake.ingest(journal) == IngestResult()


def test_a_journal_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(journal, "a", [sent(1)])

    def refused(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(journal))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ConfigurationError, match=r"cannot list the journal: .*Permission denied"):
        lake.ingest(journal)
