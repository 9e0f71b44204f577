"""The offset of a stream over a journal: which segments it has read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_NAME = re.compile(r"\d{8}T\d{6}-(?P<writer>.+)-(?P<number>\d{6,})\.jsonl")


class Seen:
    """The segments that a stream has read. Immutable; Spark stores it as JSON in its checkpoint.

    Segments do not appear in the order of their names: several processes write, each at its own
    pace, and a killed one leaves a segment to be recovered later. Those of one writer are numbered,
    so a few ranges for each writer are enough, however many segments there are.
    """

    __slots__ = ("_writers",)

    def __init__(self, writers: dict[str, Ranges] | None = None) -> None:
        self._writers = writers or {}

    @classmethod
    def from_offset(cls, offset: dict[str, Any]) -> Self:
        return cls({writer: tuple(map(tuple, ranges)) for writer, ranges in offset.items()})

    def as_offset(self) -> dict[str, Any]:
        """As Spark stores it. The same segments give the same text."""
        writers = sorted(self._writers.items())
        return {writer: [list(one) for one in ranges] for writer, ranges in writers}

    def __contains__(self, segment: Path) -> bool:
        writer, number = _parts(segment)
        return any(first <= number <= last for first, last in self._writers.get(writer, ()))

    def new(self, segments: Iterable[Path]) -> list[Path]:
        """The segments that were not read."""
        return [segment for segment in segments if segment not in self]

    def plus(self, segments: Iterable[Path]) -> Seen:
        """These and more segments."""
        writers = dict(self._writers)
        for segment in segments:
            writer, number = _parts(segment)
            writers[writer] = _with(writers.get(writer, ()), number)
        return Seen(writers)

    def without_gone(self, segments: Sequence[Path]) -> Seen:
        """Without writers that have no segments left, so that an offset does not grow for ever.

        An empty folder proves nothing: it may not be mounted.
        """
        if not segments:
            return self
        there = {_parts(segment)[0] for segment in segments}
        return Seen({writer: seen for writer, seen in self._writers.items() if writer in there})


def _parts(segment: Path) -> tuple[str, int]:
    """Writer and number; a file with another name counts as a writer with one segment."""
    found = _NAME.fullmatch(segment.name)
    return (found["writer"], int(found["number"])) if found else (segment.name, 0)


def _with(ranges: Ranges, number: int) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, last in sorted((*ranges, (number, number))):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)
