"""How far a stream of a journal has come: which segments of which writer it has seen.

Segments do not appear in the order of their names: several processes write, each at its own pace,
and one that was killed leaves a segment to be recovered later. Those of one writer are numbered, so
what was seen is a few ranges a writer, however many segments there were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_NAME = re.compile(r"\d{8}T\d{6}-(?P<writer>.+)-(?P<number>\d{6,})\.jsonl")


class Seen:
    """The segments that were seen. Frozen; written as JSON into Spark's checkpoint."""

    __slots__ = ("_writers",)

    def __init__(self, writers: dict[str, Ranges] | None = None) -> None:
        self._writers = writers or {}

    @classmethod
    def from_offset(cls, offset: dict[str, Any]) -> Self:
        """What an offset says."""
        return cls(
            {
                writer: tuple((first, last) for first, last in ranges)
                for writer, ranges in offset.items()
            }
        )

    def as_offset(self) -> dict[str, Any]:
        """As Spark keeps it. The same segments give the same text."""
        return {
            writer: [list(one) for one in ranges]
            for writer, ranges in sorted(self._writers.items())
        }

    def __contains__(self, segment: Path) -> bool:
        writer, number = _parts(segment)
        return any(first <= number <= last for first, last in self._writers.get(writer, ()))

    def new(self, segments: Iterable[Path]) -> list[Path]:
        """Those that were not seen."""
        return [segment for segment in segments if segment not in self]

    def between(self, segments: Iterable[Path], end: Seen) -> list[Path]:
        """Those that were seen at the end and not here."""
        return [segment for segment in segments if segment in end and segment not in self]

    def plus(self, segments: Iterable[Path]) -> Seen:
        """With some more."""
        writers = dict(self._writers)
        for segment in segments:
            writer, number = _parts(segment)
            writers[writer] = _with(writers.get(writer, ()), number)
        return Seen(writers)

    def without_gone(self, segments: Sequence[Path]) -> Seen:
        """Without writers of whom nothing is left, so that an offset does not grow for ever.

        An empty folder proves nothing: it may not be mounted.
        """
        if not segments:
            return self
        there = {_parts(segment)[0] for segment in segments}
        return Seen({writer: seen for writer, seen in self._writers.items() if writer in there})


def _parts(segment: Path) -> tuple[str, int]:
    """Writer and number; a file of another name is a writer of its own with one segment."""
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
