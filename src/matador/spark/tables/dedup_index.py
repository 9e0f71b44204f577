"""The index that finds duplicate rows: the keys of all rows a table ever had, in sorted files.

A key has 128 bits, as two columns of numbers. The key of an event is its id: UUIDs are used
digit by digit, other ids are hashed. The key of a delivery is its id, its attempt and its start
time: a redriven message starts again with attempt 1.

Each batch adds a file, called a run, and every few runs are merged into one: a look-up takes a
handful of binary searches however large the lake is. A run is named after its batches; one that
lies within another is a leftover of an interrupted merge.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from matador.spark.runtime.files import private_file, private_folder, sync

Keys: TypeAlias = npt.NDArray[np.uint64]
"""An array of shape (2, n): the halves of n keys."""

_looks_like_uuid = re.compile("[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}").fullmatch
_UUID = 36
_DASHES = (8, 13, 18, 23)
_DIGITS = np.array([place for place in range(_UUID) if place not in _DASHES])
_NO_DIGIT = 255
_VALUES = np.full(256, _NO_DIGIT, np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _VALUES[_digit] = _value


def event_keys(ids: Sequence[str]) -> Keys:
    """The keys of events."""
    return _mixed(_numbers(ids))


def delivery_keys(
    ids: Sequence[str], attempts: npt.NDArray[np.int64], started: npt.NDArray[np.int64]
) -> Keys:
    """The keys of deliveries; ``started`` in microseconds."""
    keys = _mixed(_numbers(ids))
    keys[0] ^= _scrambled(attempts.view(np.uint64) + np.uint64(1))
    keys[1] ^= _scrambled(started.view(np.uint64))
    return _mixed(keys)


def text_keys(texts: Sequence[bytes]) -> Keys:
    """The keys of any texts, by a hash without collisions in practice."""
    digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    return np.ascontiguousarray(np.frombuffer(digests, ">u8").reshape(-1, 2).T.astype(np.uint64))


def _numbers(ids: Sequence[str]) -> Keys:
    keys = _from_uuids(ids)
    if keys is not None:
        return keys
    # Each id by itself: its key must not depend on the other ids.
    keys = np.empty((2, len(ids)), np.uint64)
    uuids = np.array([_looks_like_uuid(one) is not None for one in ids], np.bool_)
    digits = _from_uuids([one for one, is_uuid in zip(ids, uuids, strict=True) if is_uuid])
    assert digits is not None
    keys[:, uuids] = digits
    others = [one for one, is_uuid in zip(ids, uuids, strict=True) if not is_uuid]
    keys[:, ~uuids] = text_keys([one.encode("utf-8", "surrogatepass") for one in others])
    return keys


def _from_uuids(ids: Sequence[str]) -> Keys | None:
    """The digits of UUIDs as numbers; None if an id is not a UUID in the form of ``str(uuid)``."""
    text = "".join(ids)
    if len(text) != _UUID * len(ids) or not text.isascii():
        return None
    characters = np.frombuffer(text.encode(), np.uint8).reshape(-1, _UUID)
    if not (characters[:, _DASHES] == ord("-")).all():
        return None
    digits = _VALUES[characters[:, _DIGITS]]
    if (digits == _NO_DIGIT).any():
        return None
    octets = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    return np.ascontiguousarray(octets.view(">u8").T.astype(np.uint64))


def _mixed(keys: Keys) -> Keys:
    """Spread keys evenly, without collisions: a Feistel network is reversible."""
    left, right = keys
    right = right ^ _scrambled(left)
    left = left ^ _scrambled(right)
    return np.stack([left, right])


def _scrambled(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


_FAN = 8
_KEY_SIZE = 16
_LARGEST = 16 * 1024 * 1024  # keys of a merged run, which a merge holds in memory


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """A sorted file of keys of the batches ``first`` to ``last``."""

    first: int
    last: int
    path: Path

    @property
    def size(self) -> int:
        """About how many keys there are."""
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
    # Of runs that begin together the widest comes first; those within the last one are dropped.
    kept: list[Run] = []
    for run in sorted(found, key=lambda run: (run.first, -run.last)):
        if not kept or run.last > kept[-1].last:
            kept.append(run)
    return kept


def left_overs(folder: Path) -> list[Path]:
    """The files of runs that were merged into others."""
    used = {run.path for run in runs_of(folder)}
    return [path for path in folder.glob("*-*.npy") if path not in used]


def known(runs: Sequence[Run], keys: Keys) -> npt.NDArray[np.bool_]:
    """Which of some sorted keys are in one of the runs."""
    found = np.zeros(keys.shape[1], np.bool_)
    wanted_high, wanted_low = _halves(keys)
    for run in runs:
        high, low = _halves(run.load())
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
    """Write sorted keys, durably."""
    private_folder(path.parent)
    with private_file(path) as file:
        np.save(file, keys)
    sync(path)
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


def merged(runs: Sequence[Run]) -> Keys:
    """The keys of several runs as one."""
    keys = np.concatenate([run.load() for run in runs], axis=1)
    return keys[:, sorted_order(keys)]
