"""The index of a table: the keys of all rows it ever had, in a few sorted files.

A batch adds a run of its own, and every few runs are merged into one, so that looking up a key
takes a handful of binary searches however large the lake is. A run is named after the batches it
covers; one that lies within another is a left-over of a merge that was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from matador.spark.files import private_file, private_folder, sync_file, sync_folder
from matador.spark.keys import Keys

_FAN = 8
_KEY_SIZE = 16
_LARGEST = 16 * 1024 * 1024  # keys of a merged run: what a merge holds in memory


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """A sorted file of keys of the batches ``first`` to ``last``."""

    first: int
    last: int
    path: Path

    @property
    def size(self) -> int:
        """How many keys, more or less."""
        return self.path.stat().st_size // _KEY_SIZE

    def load(self) -> Keys:
        """The keys, mapped into memory."""
        return np.load(self.path, mmap_mode="r")


def run_name(first: int, last: int) -> str:
    """The file name of a run."""
    return f"{first:09d}-{last:09d}.npy"


def runs_of(folder: Path) -> list[Run]:
    """The runs of an index, in the order of their batches."""
    found: list[Run] = []
    for path in folder.glob("*-*.npy"):
        first, last = path.stem.split("-")
        found.append(Run(int(first), int(last), path))
    # The widest first among those that begin together; what lies within the last one kept goes.
    kept: list[Run] = []
    for run in sorted(found, key=lambda run: (run.first, -run.last)):
        if not kept or run.last > kept[-1].last:
            kept.append(run)
    return kept


def left_overs(folder: Path) -> list[Path]:
    """Files of runs that have been merged into others."""
    used = {run.path for run in runs_of(folder)}
    return [path for path in folder.glob("*-*.npy") if path not in used]


def known(runs: Sequence[Run], keys: Keys) -> npt.NDArray[np.bool_]:
    """Which of some keys, sorted, are in one of the runs?"""
    found = np.zeros(keys.shape[1], np.bool_)
    wanted_high, wanted_low = _halves(keys)
    for run in runs:
        high, low = _halves(run.load())
        places = np.searchsorted(high, wanted_high)
        # Two keys may share a first half: go on while it is the same.
        candidates = np.flatnonzero(places < len(high))
        while len(candidates):
            at = places[candidates]
            same = high[at] == wanted_high[candidates]
            candidates, at = candidates[same], at[same]
            found[candidates[low[at] == wanted_low[candidates]]] = True
            places[candidates] += 1
            candidates = candidates[places[candidates] < len(high)]
    return found


def _halves(keys: Keys) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    return keys[0], keys[1]


def sorted_order(keys: Keys) -> npt.NDArray[np.int64]:
    """The order that sorts keys; equal ones stay in the order they have."""
    high, low = _halves(keys)
    order = np.argsort(high, kind="stable")  # by half of a key; quick where runs are merged
    same = np.flatnonzero(high[order[1:]] == high[order[:-1]])
    if (low[order[same]] == low[order[same + 1]]).all():
        return order
    return np.lexsort((low, high))


def save_run(path: Path, keys: Keys) -> None:
    """Write sorted keys, durably."""
    private_folder(path.parent)
    with private_file(path) as file:
        np.save(file, keys)
    sync_file(path)
    sync_folder(path.parent)


def to_merge(runs: Sequence[Run]) -> Sequence[Run]:
    """The latest runs if they are many and of about one size, else none.

    A run that was merged waits for others of its size: a key is moved once for each power of
    ``_FAN`` that the lake grows by.
    """
    chosen: list[Run] = []
    total = 0
    for run in reversed(runs):
        size = run.size
        total += size
        if total > _LARGEST or (chosen and 2 * size > _FAN * max(one.size for one in chosen)):
            break
        chosen.insert(0, run)
    return chosen if len(chosen) >= _FAN else []


def merged(runs: Sequence[Run]) -> Keys:
    """The keys of several runs as one."""
    keys = np.concatenate([run.load() for run in runs], axis=1)
    return keys[:, sorted_order(keys)]
