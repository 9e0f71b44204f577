"""Reads lines of journal segments by byte range, whatever they contain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from matador.observe.journal.segments import open_segment
from matador.storage import Storage

BLOCK = 4 * 1024 * 1024
LONGEST = 64 * 1024 * 1024
"""Of a longer line, only the beginning is kept in memory."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a segment: the lines that begin in ``[start, end)``.

    ``path`` is a local one, or the name in a ``journal`` that is in an object store.
    """

    path: str
    start: int
    end: int
    journal: Storage | None = None

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

    Of a line longer than ``longest`` only ``longest + 1`` bytes are kept.

    Raises:
        OSError: the segment is gone, unreadable or incomplete.
    """
    with _opened(split) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size < split.end:  # segments never change, so this machine sees a stale state
            raise OSError(f"{size:,} bytes here instead of {split.end:,}: {split.path}")
        if split.start:
            file.seek(split.start - 1)
            _skip_line(file)  # it belongs to the split before
        while (left := split.end - file.tell()) > 0 and (found := file.read(min(block, left))):
            if not found.endswith(b"\n"):  # the line that crosses the end belongs to this split
                found += file.readline(longest + 1)
                last = found.rfind(b"\n", 0, -1) + 1
                if len(found) - last > longest + 1:
                    if not found.endswith(b"\n"):
                        _skip_line(file)
                    found = found[: last + longest + 1]
            yield found.removesuffix(b"\n")


def _opened(split: Split) -> BinaryIO:
    if split.journal is not None:
        return split.journal.reader(split.path)
    return os.fdopen(open_segment(split.path), "rb")


def _skip_line(file: BinaryIO) -> None:
    while (part := file.readline(1 << 16)) and not part.endswith(b"\n"):
        pass
