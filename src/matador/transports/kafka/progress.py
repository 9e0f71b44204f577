"""How far a partition was handled, in what Kafka stores with a commit: an offset and a text.

The offset is that of the first message that is not finished. The text says which of those behind it
are finished, which are in somebody's hands and how often each was delivered. So a worker that takes
over repeats only what was in flight, and a message that kills every worker is counted.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode, b85decode, b85encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

_LONGEST = 3900  # Kafka takes 4096 bytes
_CROWDED = 2800
_MARK, _SHORT_MARK = "m1:", "m0:"
_SHORT = 300  # bytes, which are not worth compressing
_MOST_MOVED = 200
_LARGEST = 1 << 20


class _Notes(msgspec.Struct, array_like=True):
    """What the text says. All positions are counted from the offset."""

    finished: list[int] = []
    """Where runs of finished messages begin and end: steps from one to the next."""
    flying: list[int] = []
    """Those in somebody's hands: steps from one to the next."""
    counts: dict[int, int] = {}
    """How often those were delivered that are not simply in flight for the first time."""
    moved: dict[int, int] = {}
    """Messages whose successor, with the same key, is to be handled in their place."""


class Progress:
    """Of one partition. Offsets may be begun and finished in any order.

    Example:
        >>> progress = Progress(10)
        >>> progress.begin(10), progress.begin(11), progress.finish(11)
        (1, 1, None)
        >>> later = Progress.read(*progress.commit())
        >>> later.offset, later.is_finished(11), later.begin(10)
        (10, True, 2)
    """

    __slots__ = ("_ends", "_starts", "counts", "crowded", "flying", "moved", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.flying: set[int] = set()
        self.counts: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        self.crowded = False
        self._starts: list[int] = []
        self._ends: list[int] = []

    # -- what happens ------------------------------------------------------------------------------

    def begin(self, offset: int) -> int:
        """It is delivered; how often, this time included."""
        self.flying.add(offset)
        if not (before := self.counts.get(offset, 0)):
            return 1
        self.counts[offset] = before + 1
        return before + 1

    def release(self, offset: int) -> None:
        """It is given back, as if it had not been delivered."""
        self.flying.discard(offset)
        count = self.counts.pop(offset, 1) - 1
        if count > 0:
            self.counts[offset] = count

    def move(self, offset: int, successor: int) -> bool:
        """``successor`` takes its place; False if there are too many to remember."""
        if offset not in self.moved and len(self.moved) >= _MOST_MOVED:
            return False
        self.flying.discard(offset)
        self.counts.pop(offset, None)
        self.moved[offset] = successor
        return True

    def finish(self, offset: int) -> None:
        """Nothing more will be done about it."""
        self.flying.discard(offset)
        if self.counts:
            self.counts.pop(offset, None)
        if self.moved:
            self.moved.pop(offset, None)
        if offset == self.offset and not self._starts:  # as most often
            self.offset = offset + 1
        else:
            self.finish_all(offset, offset + 1)

    def finish_all(self, start: int, end: int) -> None:
        """The same for all from ``start`` to the one before ``end``, of which none is in flight."""
        start = max(start, self.offset)
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if start == self.offset and (not starts or end < starts[0]):  # as most often
            self.offset = end
            return
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        if starts[0] <= self.offset:
            self.offset = max(self.offset, ends[0])
            del starts[0], ends[0]

    @property
    def first_left(self) -> int:
        """The first offset that is neither finished nor left to its successor."""
        offset = self.offset
        while True:
            run = bisect_right(self._starts, offset) - 1
            if run >= 0 and offset < self._ends[run]:
                offset = self._ends[run]
            elif offset in self.moved:
                offset += 1
            else:
                return offset

    def is_finished(self, offset: int) -> bool:
        """Whether a message was finished."""
        if offset < self.offset:
            return True
        if not self._starts:  # as most often
            return False
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def finished_behind(self, end: int) -> int:
        """How many are finished from the offset up to the one before ``end``."""
        runs = zip(self._starts, self._ends, strict=True)
        return sum(max(0, min(stop, end) - start) for start, stop in runs)

    # -- what is stored ----------------------------------------------------------------------------

    def commit(self) -> tuple[int, str]:
        """The offset and the text to store."""
        base = self.offset
        bounds = [one for run in zip(self._starts, self._ends, strict=True) for one in run]
        counts = {
            offset - base: count
            for offset, count in self.counts.items()
            if count > 1 or offset not in self.flying
        }
        notes = _Notes(
            _steps(bounds, base),
            _steps(sorted(self.flying), base),
            counts,
            {offset - base: successor - base for offset, successor in self.moved.items()},
        )
        text = _encoded(notes)
        self.crowded = len(text) > _CROWDED
        if len(text) > _LONGEST:  # what is most dear: who was delivered too often, and the order
            text = _encoded(_Notes([], [], counts, notes.moved))
            if len(text) > _LONGEST:
                text = ""
        return base, text

    @staticmethod
    def read(offset: int, text: str | None) -> Progress:
        """What was stored. A text that somebody else has written means nothing. Never fails."""
        progress = Progress(offset)
        notes = _decoded(text)
        if notes is not None:
            progress._restore(notes)
        return progress

    def _restore(self, notes: _Notes) -> None:
        base = self.offset
        bounds = list(_absolute(notes.finished, base))
        for start, end in zip(bounds[::2], bounds[1::2], strict=False):
            if start > base:
                self.finish_all(start, end)
        self.flying = {one for one in _absolute(notes.flying, base) if not self.is_finished(one)}
        self.counts = dict.fromkeys(self.flying, 1) | _shifted(notes.counts, base)
        self.moved = {
            one: base + successor
            for one, successor in _shifted(notes.moved, 0, added=base).items()
            if successor > 0
        }

    def copy(self) -> Progress:
        """The same, to try something out."""
        copied = Progress(self.offset)
        copied.flying = set(self.flying)
        copied.counts = dict(self.counts)
        copied.moved = dict(self.moved)
        copied._starts, copied._ends = list(self._starts), list(self._ends)
        return copied

    def taken_over(self) -> None:
        """By a worker that holds nothing: those in flight were delivered before."""
        self.flying.clear()


def _steps(offsets: Sequence[int], base: int) -> list[int]:
    return [after - before for before, after in pairwise((base, *offsets))]


def _absolute(steps: Iterable[int], base: int) -> Iterator[int]:
    for step in steps:
        base += max(0, step)
        yield base


def _shifted(found: Mapping[int, int], base: int, *, added: int = 0) -> dict[int, int]:
    return {base + added + one: value for one, value in found.items() if one >= 0}


def _encoded(notes: _Notes) -> str:
    if not (notes.finished or notes.flying or notes.counts or notes.moved):
        return ""
    packed = msgspec.msgpack.encode(notes)
    if len(packed) <= _SHORT:
        return _SHORT_MARK + b64encode(packed).decode()
    return _MARK + b85encode(zlib.compress(packed, 1)).decode()


def _decoded(text: str | None) -> _Notes | None:
    if not text:
        return None
    try:
        if text.startswith(_SHORT_MARK):
            packed = b64decode(text[len(_SHORT_MARK) :])
        elif text.startswith(_MARK):
            packed = zlib.decompressobj().decompress(b85decode(text[len(_MARK) :]), _LARGEST)
        else:
            return None
        return msgspec.msgpack.decode(packed, type=_Notes)
    except (ValueError, zlib.error, msgspec.MsgspecError, RecursionError, OverflowError):
        return None
