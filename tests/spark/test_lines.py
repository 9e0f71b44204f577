"""Segments are cut into ranges of bytes: every line is read once, wherever the cuts are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.spark.runtime.journal_lines import Split, read_blocks, splits_of


def read(path: Path, size: int, block: int, longest: int = 1 << 20) -> list[bytes]:
    """All lines, read split by split."""
    found: list[bytes] = []
    for split in splits_of(path, path.stat().st_size, size):
        for piece in read_blocks(split, block=block, longest=longest):
            found.extend(piece.split(b"\n"))
    return [line for line in found if line]


@given(
    st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b" ")), max_size=30),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 20),
)
def test_every_line_is_read_once_wherever_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ended: bool,
    size: int,
    block: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ended else b""))

    assert read(path, size, block) == [line for line in lines if line]


def test_of_a_line_that_is_too_long_only_the_beginning_is_held(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"first\n" + b"x" * 1000 + b"\nlast\n")

    assert read(path, 5000, block=10, longest=50) == [b"first", b"x" * 51, b"last"]
    assert read(path, 100, block=10, longest=50) == [b"first", b"x" * 51, b"last"]
    for length in range(45, 60):  # also where the line ends within what is read at once
        path.write_bytes(b"first\n" + b"x" * length + b"\nlast\n")
        assert read(path, 5000, 40, 50) == [b"first", b"x" * min(length, 51), b"last"]


def test_an_empty_segment_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()

    assert list(splits_of(path, 0, 10)) == []


def test_a_segment_that_is_shorter_than_it_was_is_not_taken_for_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    path.write_bytes(b"first\n")

    assert list(read_blocks(Split(str(path), 0, 6))) == [b"first"]
    with pytest.raises(OSError, match="6 bytes here instead of 7"):
        list(read_blocks(Split(str(path), 0, 7)))
