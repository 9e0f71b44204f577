"""Segments: processes that meet in a folder, links, torn lines, what is on the disk when."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.observe.disk_spy import DiskSpy

from matador.observe.journal import segments
from matador.observe.journal.segments import (
    Segment,
    finished,
    make_folder,
    open_segment,
    recover,
    writer_name,
)

LINE = b'{"a":1}\n'


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in finished(folder)]


def open_files(folder: Path) -> list[Path]:
    """The files in a folder that this process has open; other threads may close theirs."""
    found: list[Path] = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(link.readlink())
    return [path for path in found if path.is_relative_to(folder)]


def before_the_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen right before the next lock is taken."""
    lock = fcntl.flock

    def late(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        act()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)


# -- two processes meet --------------------------------------------------------------------------


def test_a_new_segment_that_is_taken_for_an_abandoned_one_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_lock(monkeypatch, lambda: recover(tmp_path))
    segment = Segment(tmp_path, "w", 1)  # made, found by recover() and removed, made again
    segment.append(LINE)
    segment.sync()
    assert recover(tmp_path) == [], "its writer lives"
    segment.finish()
    assert contents(tmp_path) == [LINE]


def test_a_segment_that_is_finished_while_it_is_recovered_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment(tmp_path, "w", 1)
    segment.append(LINE)
    before_the_lock(monkeypatch, segment.finish)
    assert recover(tmp_path) == []
    assert contents(tmp_path) == [LINE]


def test_two_that_recover_at_once_recover_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Segment(tmp_path, "w", 1)
    left.append(LINE)
    os.close(left._file)
    found: list[Path] = []
    before_the_lock(monkeypatch, lambda: found.extend(recover(tmp_path)))
    assert recover(tmp_path) == []
    assert len(found) == 1
    assert contents(tmp_path) == [LINE]


def test_another_file_under_the_name_of_an_open_segment_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Segment(tmp_path, "w", 1)
    os.close(left._file)

    def replaced() -> None:
        (tmp_path / "other").write_bytes(LINE)
        (tmp_path / "other").rename(left._path)

    before_the_lock(monkeypatch, replaced)
    assert recover(tmp_path) == []  # it is empty, and not what has that name by now
    assert left._path.read_bytes() == LINE


def test_a_lock_that_cannot_be_had_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(OSError, match="no locks"):
        Segment(tmp_path, "w", 1)
    assert open_files(tmp_path) == []


# -- links, pipes, folders -----------------------------------------------------------------------


def test_links_are_neither_read_nor_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, secret = tmp_path / "journal", tmp_path / "secret"
    folder.mkdir()
    secret.write_bytes(LINE + b"half a line")
    (folder / "a.jsonl").symlink_to(secret)
    (folder / ".open-b.jsonl").symlink_to(secret)
    (folder / "c.jsonl").mkdir()
    (folder / ".open-d.jsonl").mkdir()
    os.mkfifo(folder / "e.jsonl")
    os.mkfifo(folder / ".open-f.jsonl")
    left = Segment(folder, "z", 1)  # behind all of them
    left.append(LINE)
    os.close(left._file)

    (recovered,) = recover(folder)

    assert list(finished(folder)) == [recovered]
    assert secret.read_bytes() == LINE + b"half a line"
    for name in (".open-b", ".open-d", ".open-f"):
        assert f"{name}.jsonl; it is left in place" in caplog.text
        assert os.path.lexists(folder / f"{name}.jsonl")
    for name in ("a", "c", "e"):
        with pytest.raises(OSError, match=f"{name}.jsonl"):
            open_segment(folder / f"{name}.jsonl")


def test_a_folder_that_is_not_there_has_no_segments(tmp_path: Path) -> None:
    assert list(finished(tmp_path / "nowhere")) == []
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        list(finished(tmp_path / "file"))


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "deep" / "journal")
    segment = Segment(tmp_path / "deep" / "journal", writer_name(), 1)
    segment.append(LINE)
    path = segment.finish()
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# -- a disk that is full -------------------------------------------------------------------------


class FullDisk:
    """Takes so many bytes, and then none; truncates only if it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, *, cuts: bool = True) -> None:
        self.room = room
        self.cuts = cuts
        write, truncate = os.write, os.ftruncate

        def full(file: int, data: bytes) -> int:
            if self.room <= 0:
                raise OSError(errno.ENOSPC, "no space")
            written = write(file, bytes(data[: self.room]))
            self.room -= written
            return written

        def cut(file: int, size: int) -> None:
            if not self.cuts:
                raise OSError(errno.EIO, "no luck")
            truncate(file, size)

        monkeypatch.setattr(os, "write", full)
        monkeypatch.setattr(os, "ftruncate", cut)


@pytest.mark.parametrize("cuts", [True, False], ids=["cut-at-once", "cut-later"])
def test_an_append_that_fails_leaves_no_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: bool
) -> None:
    segment = Segment(tmp_path, "w", 1)
    segment.append(LINE)
    disk = FullDisk(monkeypatch, 3, cuts=cuts)
    with pytest.raises(OSError, match="no space"):
        segment.append(b'{"lost":1}\n')
    assert segment.size == len(LINE)
    assert (segment._path.read_bytes() == LINE) is cuts
    disk.room, disk.cuts = 1000, True
    segment.append(b'{"b":2}\n')
    segment.finish()
    assert contents(tmp_path) == [LINE + b'{"b":2}\n']


def test_a_torn_line_never_appears_even_if_it_cannot_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment(tmp_path, "w", 1)
    segment.append(LINE)
    disk = FullDisk(monkeypatch, 3, cuts=False)
    with pytest.raises(OSError, match="no space"):
        segment.append(b'{"lost":1}\n')
    disk.room = 1000
    with pytest.raises(OSError, match="no luck"):
        segment.append(b'{"b":2}\n')
    with pytest.raises(OSError, match="no luck"):
        segment.finish()
    assert contents(tmp_path) == []
    disk.cuts = True
    recover(tmp_path)
    assert contents(tmp_path) == [LINE]


def test_a_write_that_takes_a_part_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def some(file: int, data: bytes) -> int:
        return write(file, bytes(data[:5]))

    monkeypatch.setattr(os, "write", some)
    segment = Segment(tmp_path, "w", 1)
    segment.append(LINE * 3)
    segment.finish()
    assert contents(tmp_path) == [LINE * 3]


# -- what is on the disk when --------------------------------------------------------------------


def test_a_segment_is_on_the_disk_before_it_appears_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment(tmp_path, "w", 1)
    segment.append(LINE)
    spy = DiskSpy(monkeypatch)
    path = segment.finish()
    assert path is not None
    assert spy.steps == [
        ("fsync", f".open-{path.name}"),
        ("rename", path.name),
        ("fsync", tmp_path.name),
    ]


def test_a_sync_makes_the_segment_and_its_name_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment(tmp_path, "w", 1)
    spy = DiskSpy(monkeypatch)
    name = segment._path.name
    segment.append(LINE)
    segment.sync()
    assert spy.steps == [("fsync", name), ("fsync", tmp_path.name)]
    segment.append(LINE)
    segment.sync()
    assert spy.steps[2:] == [("fsync", name)], "the name is on the disk already"


def test_what_is_recovered_is_on_the_disk_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = Segment(tmp_path, "w", 1)
    left.append(LINE)
    os.close(left._file)
    spy = DiskSpy(monkeypatch)
    (path,) = recover(tmp_path)
    assert spy.steps == [
        ("fsync", f".open-{path.name}"),
        ("rename", path.name),
        ("fsync", tmp_path.name),
    ]
    assert f"recovered an abandoned segment: {path}" in caplog.text


def test_the_last_whole_line_is_found_wherever_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_READ", 4)
    for number, text in enumerate((b"ab\ncd\nef", b"abcdefghij\nklmnopqrst", b"abc\n", b"abcd\n")):
        left = Segment(tmp_path, "w", number)
        os.write(left._file, text)
        os.close(left._file)
        (path,) = recover(tmp_path)
        assert path.read_bytes() == text[: text.rindex(b"\n") + 1]
