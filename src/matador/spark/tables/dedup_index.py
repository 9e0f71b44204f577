"""The index that finds duplicate rows: the keys of the rows of a table, in sorted files.

Every commit adds a file, called a run, and every few runs are merged into one: a look-up takes a
handful of binary searches however large the table is. A run is named after the versions of the
table whose new rows it has; one that lies within another is a leftover of a merge.

The index is a cache. Missing keys are read from the files of the table, so a process that was
killed between a commit and the index, another writer, or a deleted index do no harm. Runs of the
same versions have the same keys: several processes may write them concurrently.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from matador.spark.runtime.arrow import parquet
from matador.spark.tables.delta import DataFile, DeltaTable
from matador.spark.tables.keys import KEY_COLUMNS, Keys, keys_of_rows
from matador.storage.files import private_file, private_folder, sync

_FAN = 8
_KEY_SIZE = 16
_LARGEST = 16 * 1024 * 1024  # keys of a merged run, which a merge holds in memory
_MOST_ENTRIES = 200  # of the log; beyond, all files of the table are read instead


class KeyIndex:
    """The index of one table. Follows the version that the table object has read."""

    def __init__(self, folder: Path, table: DeltaTable) -> None:
        # Another table in the same place, made after this one was deleted, has other keys.
        self._folder = private_folder(folder / table.id)
        self._table = table
        self._loaded: dict[Path, Keys] = {}
        self._runs: list[tuple[Run, Keys]] = []
        self._load()

    @property
    def _through(self) -> int:
        return self._runs[-1][0].last if self._runs else 0

    def catch_up(self) -> None:
        """Include the rows that other processes have committed.

        While another process merges runs, some of them may be missing in the folder. What they
        have is read from the table then, until nothing is missing.
        """
        version = self._table.version
        while self._through < version:
            behind = version - self._through
            changes = self._table.changes(self._through) if behind <= _MOST_ENTRIES else None
            if changes is not None:
                files, first = [*changes.added, *changes.rewritten], self._through + 1
            else:
                files, first = self._table.files(), 1
            self._save(first, version, merged([keys_in(self._table, one) for one in files]))

    def repeated(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of some sorted keys are in the table."""
        return known([loaded for _, loaded in self._runs], keys)

    def add(self, version: int, keys: Keys) -> None:
        """Include the sorted keys of a version that was just committed."""
        if self._through == version - 1:  # else they are read from the table, with those before
            self._save(version, version, keys)

    def _save(self, first: int, last: int, keys: Keys) -> None:
        save_run(self._folder / run_name(first, last), keys)
        self._load()
        while runs := to_merge([run for run, _ in self._runs]):
            whole = self._folder / run_name(runs[0].first, runs[-1].last)
            save_run(whole, merged([self._loaded[run.path] for run in runs]))
            self._load()
        for path in left_overs(self._folder):
            path.unlink(missing_ok=True)

    def _load(self) -> None:
        while True:
            with contextlib.suppress(FileNotFoundError):  # merged by another process just now
                runs = runs_of(self._folder)
                self._loaded = {
                    run.path: self._loaded[run.path] if run.path in self._loaded else run.load()
                    for run in runs
                }
                self._runs = [(run, self._loaded[run.path]) for run in runs]
                return


def keys_in(table: DeltaTable, file: DataFile) -> Keys:
    """The keys of the rows of a file, in their order."""
    with table.storage.reader(file.path) as source:
        rows = parquet.ParquetFile(source).read(columns=KEY_COLUMNS[table.name])
    return keys_of_rows(table.name, rows)


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """A sorted file of the keys that the versions ``first`` to ``last`` have added."""

    first: int
    last: int
    path: Path
    size: int
    """How many keys there are, roughly."""

    def load(self) -> Keys:
        """The keys, mapped into memory."""
        return np.load(self.path, mmap_mode="r")


def run_name(first: int, last: int) -> str:
    """The file name of a run."""
    return f"{first:09d}-{last:09d}.npy"


def runs_of(folder: Path) -> list[Run]:
    """The runs of an index without a gap from the first version on, in order."""
    found: list[Run] = []
    for path in folder.glob("*-*.npy"):
        first, last = path.stem.split("-")
        with contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size // _KEY_SIZE
            found.append(Run(int(first), int(last), path, size))
    # Of runs that begin together the widest comes first; those within the last one are dropped.
    kept: list[Run] = []
    for run in sorted(found, key=lambda run: (run.first, -run.last)):
        end = kept[-1].last if kept else 0
        if run.last > end:
            if run.first != end + 1:
                break  # the rest is read from the table again
            kept.append(run)
    return kept


def left_overs(folder: Path) -> list[Path]:
    """The files of runs that were merged into others."""
    used = {run.path for run in runs_of(folder)}
    return [path for path in folder.glob("*-*.npy") if path not in used]


def known(runs: Sequence[Keys], keys: Keys) -> npt.NDArray[np.bool_]:
    """Which of some sorted keys are in one of the runs."""
    found = np.zeros(keys.shape[1], np.bool_)
    wanted_high, wanted_low = _halves(keys)
    for run in runs:
        high, low = _halves(run)
        places = np.searchsorted(high, wanted_high)
        # Several keys may share a first half: continue while it is the same.
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
    """The order that sorts keys; equal ones keep their order."""
    high, low = _halves(keys)
    order = np.argsort(high, kind="stable")  # by half of a key; fast for merged runs
    same = np.flatnonzero(high[order[1:]] == high[order[:-1]])
    if (low[order[same]] == low[order[same + 1]]).all():
        return order
    return np.lexsort((low, high))


def save_run(path: Path, keys: Keys) -> None:
    """Write sorted keys, durably, and as a whole."""
    hidden = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    with private_file(hidden) as file:
        np.save(file, keys)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    sync(path.parent)


def to_merge(runs: Sequence[Run]) -> Sequence[Run]:
    """The latest runs, if there are many of about the same size; else none.

    A merged run waits for others of its size: a key is moved once each time the lake grows by the
    factor ``_FAN``.
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


def merged(runs: Sequence[Keys]) -> Keys:
    """The keys of several runs as one."""
    if not runs:
        return np.empty((2, 0), np.uint64)
    keys = np.concatenate(runs, axis=1)
    return keys[:, sorted_order(keys)]
