"""The CPU time of a process and everything it has started: Java, and the workers of Spark.

On a machine that others use, it tells more than the time on the clock.
"""

from __future__ import annotations

import os
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int | None = None) -> float:
    """The CPU time so far of a process, of this one by default, and its descendants."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended just now
        number = int(entry.name)
        ticks[number] = sum(map(int, fields[11:15]))  # its own, and that of children that ended
        children.setdefault(int(fields[1]), []).append(number)
    total, waiting = 0, [pid or os.getpid()]
    while waiting:
        number = waiting.pop()
        total += ticks.get(number, 0)
        waiting.extend(children.get(number, ()))
    return total * _TICK
