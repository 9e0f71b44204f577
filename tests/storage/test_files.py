"""Files and folders that are replaced, moved, removed and locked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matador.errors import StorageLockedError
from matador.storage.files import (
    groups,
    locked,
    locked_folder,
    move,
    private_file,
    private_folder,
    read_json,
    remove,
    replace_file,
    sync_tree,
    write_json,
)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inodes of files and folders that were made durable."""
    inodes, fsync = set[int](), os.fsync

    def note(file: int) -> None:
        inodes.add(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", note)
    return inodes


def test_json_is_replaced_durably_and_is_none_where_there_is_none(
    tmp_path: Path, synced: set[int]
) -> None:
    path = tmp_path / "a.json"
    assert read_json(path, dict[str, int]) is None
    for number in (1, 2):
        synced.clear()
        write_json(path, {"a": number})
        assert read_json(path, dict[str, int]) == {"a": number}
        assert {path.stat().st_ino, tmp_path.stat().st_ino} <= synced
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_what_a_crash_left_behind_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".a.new").write_bytes(b"a longer text that was cut off")
    replace_file(tmp_path / "a", b"short")
    assert (tmp_path / "a").read_bytes() == b"short"


def test_only_the_owner_reads_files_and_folders(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a/b")
    assert folder == tmp_path / "a/b"
    assert private_folder(folder) == folder
    with private_file(folder / "file") as file:
        file.write(b"x")
    modes = [one.stat().st_mode & 0o777 for one in (folder.parent, folder, folder / "file")]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize(
    ("sizes", "grouped"),
    [
        ([], []),
        ([5, 5], [[5, 5]]),
        ([5, 6], [[5], [6]]),
        ([11, 1], [[11], [1]]),
        ([1, 11, 1], [[1], [11], [1]]),
        ([4, 4, 4, 4, 4], [[4, 4], [4, 4], [4]]),
    ],
)
def test_groups_are_as_large_as_they_may_be(sizes: list[int], grouped: list[list[int]]) -> None:
    assert list(groups(sizes, int, 10)) == grouped


def test_a_move_replaces_what_is_there_and_is_done_once(tmp_path: Path, synced: set[int]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    move(source, target)
    assert tmp_path.stat().st_ino in synced
    move(source, target)
    assert (target / "file").read_text() == "source"
    assert [one.name for one in tmp_path.iterdir()] == ["target"]


def test_a_file_or_a_folder_is_removed_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "folder/below").mkdir(parents=True)
    (tmp_path / ".removed-folder").mkdir()  # an earlier run was killed
    (tmp_path / "file").touch()
    for name in ("folder", "file", "nothing"):
        remove(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_everything_below_a_folder_becomes_durable(tmp_path: Path, synced: set[int]) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").touch()
    sync_tree(tmp_path)
    everything = {one.stat().st_ino for one in (tmp_path, *tmp_path.rglob("*"))}
    assert everything <= synced


def test_a_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "lake/state"
    with locked_folder(folder):
        refused = pytest.raises(StorageLockedError, match=f"writing to {tmp_path / 'lake'};")
        with refused, locked(folder / "lock"):
            pass
    with locked_folder(folder):
        pass
    assert (folder / "lock").stat().st_mode & 0o777 == 0o600
