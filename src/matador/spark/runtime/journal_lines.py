"""Reads lines of journal segments by byte range, whatever they contain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from matador.observe.journal.segments import open_segment

BLOCK = 4 * 1024 * 1024
LONGEST = 64 * 1024 * 1024
"""Of a longer line, only the beginning is kept in memory."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a segment: the lines that begin in ``[start, end)``."""

    path: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The name of the segment."""
        return Path(self.path).name


def splits_of(path: Path, size: int, most: int) -> Iterator[Split]:
    """Cut a segment into parts of at most ``most`` bytes."""
    for start in range(0, size, most):
        yield Split(str(path), start, min(start + most, size))


def read_blocks(split: Split, *, block: int = BLOCK, longest: int = LONGEST) -> Iterator[bytes]:
    """Yields blocks of whole lines of a split, without the last line end.

    A line longer than ``longest`` is a block of its own, cut to ``longest + 1`` bytes.

    Raises:
        OSError: the segment is gone, unreadable or incomplete.
    """
    with os.fdopen(open_segment(split.path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size < split.end:  # segments never change: this machine sees an old state
            raise OSError(f"{size:,} bytes here instead of {split.end:,}: {split.path}")
        position = _first_line(file, split.start)
        rest = b""
        while position < split.end or rest:
            found = file.read(block)
            if not found:
                break
            # The line that crosses the end of the split belongs to it; the next one does not.
            last = -1
            if position + len(found) >= split.end:
                last = found.find(b"\n", max(0, split.end - 1 - position))
            if last >= 0:
                rest += found[:last]
                break
            cut = found.rfind(b"\n") + 1
            if cut:
                yield rest + found[: cut - 1]
                rest = found[cut:]
            else:
                rest += found
            position += len(found)
            if len(rest) > longest:
                yield rest[: longest + 1]
                rest = b""
                position = _skip_line(file, block)
                file.seek(position)
        if rest:
            yield rest


def _first_line(file: BinaryIO, start: int) -> int:
    """The position of the first line that begins at or after ``start``."""
    if start == 0:
        return 0
    file.seek(start - 1)
    position = _skip_line(file, 1 << 16)
    file.seek(position)
    return position


def _skip_line(file: BinaryIO, block: int) -> int:
    """The position after the next line end; the end of the file if there is none."""
    while found := file.read(block):
        end = found.find(b"\n")
        if end >= 0:
            return file.tell() - len(found) + end + 1
    return file.tell()
