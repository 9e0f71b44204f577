"""Follows a journal while other processes write it: reads the records added since the last call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from matador.observe.journal.records import Record, decode_record
from matador.observe.journal.segments import OPEN_PREFIX, SUFFIX, end_of_last_line, open_segment

_READ = 1 << 20
_LONGEST_LINE = 64 << 20


class JournalFollower:
    """Reads the records of a folder as they are written. Open segments are read, too.

    A record that is not durable yet may be returned and then lost in a power failure. Used by one
    thread.

    Args:
        folder: of the journal. It need not exist yet.
        from_start: begin with what is there already.

    Example:
        >>> follower = JournalFollower(Path("journal"))
        >>> while True:
        ...     for record in follower.read():
        ...         print(record)
        ...     time.sleep(0.2)
    """

    def __init__(self, folder: Path, *, from_start: bool = False) -> None:
        self._folder = folder
        self._read_to: dict[str, int] = {}
        self.unreadable = 0
        if not from_start:
            for name, path in self._segments():
                self._read_to[name] = _end(path)

    def read(self) -> list[Record]:
        """The records that are new, in the order in which they were recorded.

        Lines that are not records are counted in ``unreadable`` and left out.
        """
        found: list[Record] = []
        present: dict[str, int] = {}
        for name, path in self._segments():
            start = present[name] = self._read_to.get(name, 0)
            lines, present[name] = _lines(path, start)
            for line in lines:
                try:
                    found.append(decode_record(line))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    self.unreadable += 1
        self._read_to = present
        return sorted(found, key=lambda record: record.recorded_at)

    def _segments(self) -> Iterator[tuple[str, Path]]:
        """The segments by their final names."""
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208 - only names are needed
        except FileNotFoundError:
            return
        seen: set[str] = set()
        # A segment may be renamed between two scans: the finished one counts.
        for file in sorted(names, key=lambda one: one.startswith(OPEN_PREFIX)):
            name = file.removeprefix(OPEN_PREFIX)
            if name.endswith(SUFFIX) and not name.startswith(".") and name not in seen:
                seen.add(name)
                yield name, self._folder / file


def _end(path: Path) -> int:
    try:
        file = open_segment(path)
    except OSError:
        return 0
    try:
        return end_of_last_line(file)
    finally:
        os.close(file)


def _lines(path: Path, start: int) -> tuple[list[bytes], int]:
    """The complete lines behind a position, and the position behind them."""
    try:
        file = open_segment(path)
    except OSError:  # it is being renamed, or is not a segment: the next scan shows which
        return [], start
    try:
        size = os.fstat(file).st_size
        if size < start:  # the writer removed a line that it could not complete
            return [], size
        block = b""
        length = _READ
        while start < size:
            with contextlib.suppress(OSError):
                block = os.pread(file, length, start)
            end = block.rfind(b"\n") + 1
            if end:
                return block[: end - 1].split(b"\n"), start + end
            if len(block) < length or length >= _LONGEST_LINE:
                break  # the line is not complete yet, or is not a record
            length *= 2
        return [], start
    finally:
        os.close(file)
