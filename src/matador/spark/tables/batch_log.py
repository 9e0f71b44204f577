"""The log of ingested batches.

A batch is *planned* (its segments are fixed), then *staged* (all its files are written, none is
visible yet), then *done*. Each step replaces one small file. After a crash, a planned batch is
redone from the same segments, and a staged one only has its files moved into place. So no reader
ever sees a row twice, and no finished work is lost even if the segments are gone by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from matador.spark.runtime.files import private_folder, write_json

_MOST_PROBLEMS = 20  # reasons that are reported; all rows are in quarantine
_FOLD = 64  # batches kept one by one; of older ones only the segments are kept


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """A segment when it was planned. A file of the same name that has changed is a new segment."""

    name: str
    size: int
    modified: int


class ProblemCount(msgspec.Struct, frozen=True):
    """How many rows are in quarantine for one reason."""

    kind: str
    event_key: str | None
    reason: str
    count: int


def most_frequent(problems: Iterable[ProblemCount]) -> list[ProblemCount]:
    """The most frequent reasons, each with the sum of its counts."""
    counts: Counter[tuple[str, str | None, str]] = Counter()
    for one in problems:
        counts[one.kind, one.event_key, one.reason] += one.count
    return [ProblemCount(*reason, count) for reason, count in counts.most_common(_MOST_PROBLEMS)]


class BatchCounts(msgspec.Struct, frozen=True):
    """The counts of a batch: lines read, rows by table, duplicate rows.

    ``dropped``: records that the journal reports as lost.
    """

    records: int
    rows: dict[str, int]
    repeated: int
    dropped: int
    problems: list[ProblemCount]


class IngestBatch(msgspec.Struct, frozen=True):
    """One batch of an ingest. Once staged, ``staging`` is the name of the folder of its files."""

    number: int
    state: Literal["planned", "staged", "done"]
    folder: str
    segments: tuple[SegmentRef, ...]
    staging: str | None = None
    counts: BatchCounts | None = msgspec.field(default=None, name="tally")


class _Folded(msgspec.Struct, frozen=True):
    number: int
    segments: tuple[SegmentRef, ...]


class BatchLog:
    """Reads and writes the log. For the process that holds the lock of the lake."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        private_folder(folder)
        self._seen: dict[str, SegmentRef] = {}
        self._numbers: list[int] = []
        self.unfinished: IngestBatch | None = None
        self._last = -1
        self._load()

    def new_segments(self, segments: Iterable[SegmentRef]) -> list[SegmentRef]:
        """The segments that no batch has read."""
        return [one for one in segments if self._seen.get(one.name) != one]

    def plan(self, folder: str, segments: Iterable[SegmentRef]) -> IngestBatch:
        """Start the next batch."""
        batch = IngestBatch(self._last + 1, "planned", folder, tuple(segments))
        self._put(batch)
        self._last = batch.number
        self._numbers.append(batch.number)
        self._remember(batch.segments)
        self.unfinished = batch
        return batch

    def staged(self, batch: IngestBatch, staging: str, counts: BatchCounts) -> IngestBatch:
        """Note that all files of a batch are written."""
        return self._put(
            msgspec.structs.replace(batch, state="staged", staging=staging, counts=counts)
        )

    def without(self, batch: IngestBatch, unread: Collection[str]) -> IngestBatch | None:
        """Take unreadable segments out of a planned batch: they count as new again.

        Returns None, and forgets the batch, if nothing is left of it.
        """
        for name in unread:
            self._seen.pop(name, None)
        left = tuple(one for one in batch.segments if one.name not in unread)
        if left:
            return msgspec.structs.replace(batch, segments=left)
        self._path(batch.number).unlink()
        self._numbers.remove(batch.number)
        self._last = batch.number - 1
        self.unfinished = None
        return None

    def done(self, batch: IngestBatch) -> None:
        """Note that all files of a batch are in place."""
        self._put(msgspec.structs.replace(batch, state="done"))
        self.unfinished = None
        if len(self._numbers) >= 2 * _FOLD:
            self._fold()

    def _put(self, batch: IngestBatch) -> IngestBatch:
        write_json(self._path(batch.number), batch)
        return batch

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:09d}.json"

    def _remember(self, segments: Iterable[SegmentRef]) -> None:
        for segment in segments:
            self._seen[segment.name] = segment

    def _load(self) -> None:
        for path in sorted(self._folder.glob("folded-*.json")):
            folded = msgspec.json.decode(path.read_bytes(), type=_Folded)
            self._remember(folded.segments)
            self._last = folded.number
        for path in sorted(self._folder.glob("[0-9]*.json")):
            batch = msgspec.json.decode(path.read_bytes(), type=IngestBatch)
            if batch.number <= self._last:
                path.unlink()  # folded, but the process ended before it was removed
                continue
            self._remember(batch.segments)
            self._numbers.append(batch.number)
            self._last = batch.number
            if batch.state != "done":
                self.unfinished = batch

    def _fold(self) -> None:
        last = self._numbers[-_FOLD]
        kept = self._numbers[-_FOLD + 1 :]
        recent: set[SegmentRef] = set()
        for number in kept:
            batch = msgspec.json.decode(self._path(number).read_bytes(), type=IngestBatch)
            recent.update(batch.segments)
        older = tuple(one for one in self._seen.values() if one not in recent)
        path = self._folder / f"folded-{last:09d}.json"
        write_json(path, _Folded(last, older))
        for number in self._numbers[: -_FOLD + 1]:
            self._path(number).unlink(missing_ok=True)
        for stale in self._folder.glob("folded-*.json"):
            if stale != path:
                stale.unlink()
        self._numbers = kept


def last_done(folder: Path) -> int:
    """The last batch whose files are all in place, or -1; safe to call during an ingest."""
    latest = max(folder.glob("[0-9]*.json"), default=None)
    if latest is None:
        return -1
    batch = msgspec.json.decode(latest.read_bytes(), type=IngestBatch)
    return batch.number if batch.state == "done" else batch.number - 1
