"""Ranges of offsets: how much of a log is read at once, and by how many tasks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from matador.model.log import LogRange

K = TypeVar("K", bound=Hashable)

_SMALLEST = 20_000  # messages for which a client of its own is worth while


def limited(left: Mapping[K, tuple[int, int]], most: int | None) -> dict[K, int]:
    """The ends of what may be read at once: ``most`` messages, shared out by what is left."""
    total = sum(end - start for start, end in left.values())
    if most is None or total <= most:
        return {number: end for number, (_, end) in left.items()}
    ends: dict[K, int] = {}
    shared = 0  # of the sizes so far: what is rounded off goes to the next
    given = 0
    for number, (start, end) in left.items():
        shared += end - start
        share = shared * most // total - given
        given += share
        ends[number] = start + share
    return ends


def range_tasks(ranges: Sequence[LogRange], tasks: int) -> list[list[LogRange]]:
    """Ranges by task: large ones are cut, small ones share a task.

    No task has two ranges of one partition.
    """
    total = sum(one.size for one in ranges)
    most = max(_SMALLEST, -(-total // tasks))
    made: list[list[LogRange]] = []
    small: list[_Shared] = []
    for one in ranges:
        begin = one.start
        while one.end - begin >= most:
            made.append([LogRange(one.partition, begin, begin + most)])
            begin += most
        rest = LogRange(one.partition, begin, one.end)
        if not rest.size:
            continue
        fitting = next((shared for shared in small if shared.size + rest.size <= most), None)
        if fitting is None:
            fitting = _Shared([])
            small.append(fitting)
        fitting.ranges.append(rest)
    return made + [one.ranges for one in small]


@dataclass(frozen=True, slots=True)
class _Shared:
    ranges: list[LogRange]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.ranges)
