"""The keys of rows: two rows with the same key are the same row.

A key has 128 bits, as two columns of numbers. The key of an event is its id: UUIDs are used
digit by digit, other ids are hashed. The key of a delivery is its id, its attempt and its start
time: a redriven message starts again with attempt 1. The key of a row in quarantine is a hash of
its record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from matador.spark.runtime.arrow import Table, compute, pa

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


def _text_keys(texts: Sequence[bytes]) -> Keys:
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
    keys[:, ~uuids] = _text_keys([one.encode("utf-8", "surrogatepass") for one in others])
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


def fingerprint(record: bytes) -> str:
    """A hash of a record, as text."""
    return hashlib.blake2b(record, digest_size=16).hexdigest()


def fingerprint_keys(fingerprints: Sequence[str]) -> Keys:
    """The keys of rows in quarantine."""
    digests = bytes.fromhex("".join(fingerprints))
    return np.ascontiguousarray(np.frombuffer(digests, ">u8").reshape(-1, 2).T.astype(np.uint64))


EVENT = "event"
"""The ``way`` of events."""

KEY_COLUMNS: dict[str, list[str]] = {
    "events": ["id", "way", "subscriber", "created_at", "replay_id"],
    "deliveries": ["id", "way", "subscriber", "attempt", "started_at"],
    "quarantine": ["fingerprint"],
}
"""The columns that make the key of a row, by table."""


def identity(way: str, subscriber: str, id: str, created_at: int | None = None) -> str:
    """The unique identity of a message: its id, if it is an event.

    Other ids are unique in their queue only. A job's id may be used again once the job is gone, so
    the time it was added at tells the two apart; not for the jobs of a replay, which have ids of
    their own, whenever they are added.
    """
    if way == EVENT:
        return id
    parts = [way, subscriber, id]
    return "\x1f".join(parts if created_at is None else [*parts, str(created_at)])


def keys_of_rows(table: str, rows: Table) -> Keys:
    """The keys of rows of a table, by their ``KEY_COLUMNS``."""
    ids: list[str] = rows.column(KEY_COLUMNS[table][0]).to_pylist()
    if table == "quarantine":
        return fingerprint_keys(ids)
    ways: list[str] = rows.column("way").to_pylist()
    if any(way != EVENT for way in ways):
        subscribers: list[str] = rows.column("subscriber").to_pylist()
        created: list[int | None] = [None] * len(ids)
        if table == "events":
            times = rows.column("created_at").cast(pa.int64())
            is_replay = rows.column("replay_id").is_valid()
            created = compute.if_else(is_replay, pa.scalar(None, pa.int64()), times).to_pylist()
        ids = list(map(identity, ways, subscribers, ids, created))
    if table == "events":
        return event_keys(ids)
    attempts = rows.column("attempt").cast(pa.int64()).to_numpy()
    started = rows.column("started_at").cast(pa.int64()).to_numpy()
    return delivery_keys(ids, attempts, started)
