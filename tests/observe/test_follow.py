"""Following a journal: every record once, also across renames, and odd files harm nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matador.observe.journal import follow
from matador.observe.journal.follow import JournalFollower
from matador.observe.journal.records import DroppedRecord, encode_record
from matador.observe.journal.segments import OPEN_PREFIX, Segment


def line(number: int) -> bytes:
    return encode_record(DroppedRecord(number, "full", number, "w")) + b"\n"


def numbers(follower: JournalFollower) -> list[int]:
    return [one.count for one in follower.read() if isinstance(one, DroppedRecord)]


def test_records_are_seen_while_a_segment_is_open_and_once(tmp_path: Path) -> None:
    old = Segment(tmp_path, "old", 1)
    old.append(line(1))
    follower = JournalFollower(tmp_path)
    assert numbers(follower) == []
    old.append(line(2))
    assert numbers(follower) == [2]
    old.append(line(3))
    old.finish()
    new = Segment(tmp_path, "new", 1)
    new.append(line(5) + line(4))
    assert numbers(follower) == [3, 4, 5]
    new.finish()
    assert numbers(follower) == []
    assert numbers(JournalFollower(tmp_path, from_start=True)) == [1, 2, 3, 4, 5]


def test_half_a_line_is_not_read_and_a_long_one_is(tmp_path: Path) -> None:
    follower = JournalFollower(tmp_path / "later")
    assert numbers(follower) == []
    (tmp_path / "later").mkdir()
    path = tmp_path / "later" / f"{OPEN_PREFIX}a.jsonl"
    whole = encode_record(DroppedRecord(7, "x" * 3_000_000, 7, "w")) + b"\n"
    path.write_bytes(whole[:2_000_000])
    assert numbers(follower) == []
    path.write_bytes(whole)
    assert numbers(follower) == [7]


def test_a_line_that_was_taken_back_does_no_harm(tmp_path: Path) -> None:
    follower = JournalFollower(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(1) + line(2))
    assert numbers(follower) == [1, 2]
    path.write_bytes(line(1))
    assert numbers(follower) == []
    path.write_bytes(line(1) + line(3))
    assert numbers(follower) == [3]


def test_odd_files_and_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "target.txt")
    (tmp_path / "target.txt").write_bytes(line(9))
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "a.jsonl").write_bytes(
        b"not json\n" + b"[" * 100_000 + b"\n\xff\xfe\n{}\n" + line(1) + b'{"kind": "new"}\n'
    )
    follower = JournalFollower(tmp_path, from_start=True)
    assert numbers(follower) == [1]
    assert follower.unreadable == 5


def test_records_are_in_the_order_in_which_they_were_recorded(tmp_path: Path) -> None:
    follower = JournalFollower(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(line(3) + line(1))
    (tmp_path / "b.jsonl").write_bytes(line(2))
    (tmp_path / "c.txt").write_bytes(line(4))
    (tmp_path / ".hidden.jsonl").write_bytes(line(5))
    assert numbers(follower) == [1, 2, 3]


def test_what_is_there_already_is_left_out_up_to_its_last_whole_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line(1) + line(2)[:-5])
    (tmp_path / "pipe.jsonl").mkdir()
    follower = JournalFollower(tmp_path)
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(line(2)[-5:] + line(3))
    assert numbers(follower) == [2, 3]
    assert follower.unreadable == 0


def test_a_segment_that_is_gone_and_comes_again_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(1))
    follower = JournalFollower(tmp_path)
    path.unlink()
    assert numbers(follower) == []
    path.write_bytes(line(1) + line(2))
    assert numbers(follower) == [1, 2]


def test_a_segment_that_is_renamed_between_two_looks_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line(1) + line(2))
    (tmp_path / f"{OPEN_PREFIX}a.jsonl").write_bytes(line(1))
    assert numbers(JournalFollower(tmp_path, from_start=True)) == [1, 2]


def test_a_line_that_is_too_long_is_not_read_any_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_READ", 64)
    monkeypatch.setattr(follow, "_LONGEST_LINE", 256)
    follower = JournalFollower(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b"x" * 255 + b"\n" + line(1))
    (tmp_path / "b.jsonl").write_bytes(b"x" * 256 + b"\n" + line(2))
    assert numbers(follower) == []
    assert follower.unreadable == 1
    assert numbers(follower) == [1]
    assert numbers(follower) == []
