"""Stream reads of what can be read again: a journal, or a queue with a retention.

Spark may ask for the same range any number of times, and never says that it is done: so nothing is
settled here, and a range always yields the same messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from matador.observe.journal.segments import finished
from matador.spark.runtime.arrow import RecordBatch
from matador.spark.source.batch import (
    QueuePart,
    SegmentPart,
    journal_folder,
    read_queue,
    read_segments,
    segment_parts,
)
from matador.spark.source.columns import default_parts
from matador.spark.source.options import ReadOptions
from matador.spark.source.queues import QueueReader, Span, open_queue, place

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_NAME = re.compile(r"\d{8}T\d{6}-(?P<writer>.+)-(?P<number>\d{6,})\.jsonl")


class Seen:
    """The segments that a stream has read. Frozen; written as JSON into Spark's checkpoint.

    Segments do not appear in the order of their names: several processes write, each at its own
    pace, and a killed one leaves a segment to be recovered later. Those of one writer are numbered,
    so a few ranges for each writer are enough, however many segments there are.
    """

    __slots__ = ("_writers",)

    def __init__(self, writers: dict[str, Ranges] | None = None) -> None:
        self._writers = writers or {}

    @classmethod
    def from_offset(cls, offset: dict[str, Any]) -> Self:
        """The segments of an offset."""
        return cls(
            {
                writer: tuple((first, last) for first, last in ranges)
                for writer, ranges in offset.items()
            }
        )

    def as_offset(self) -> dict[str, Any]:
        """As Spark stores it. The same segments give the same text."""
        return {
            writer: [list(one) for one in ranges]
            for writer, ranges in sorted(self._writers.items())
        }

    def __contains__(self, segment: Path) -> bool:
        writer, number = _parts(segment)
        return any(first <= number <= last for first, last in self._writers.get(writer, ()))

    def new(self, segments: Iterable[Path]) -> list[Path]:
        """The segments that were not read."""
        return [segment for segment in segments if segment not in self]

    def between(self, segments: Iterable[Path], end: Seen) -> list[Path]:
        """The segments that were read at the end, but not here."""
        return [segment for segment in segments if segment in end and segment not in self]

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


_START = "0"  # before every position


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads segments as they appear. The offset holds those that were read."""

    def __init__(self, options: ReadOptions, chosen: StructType) -> None:
        self._options = options
        self._chosen = chosen
        self._folder = journal_folder(options)
        self._target: Seen | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first segment."""
        return Seen().as_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As the options say."""
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the segments that exist now: later ones are not read in this run."""
        self._target = Seen().plus(finished(self._folder))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """After the next segments: as many as the limit allows, but at least one."""
        seen = Seen.from_offset(start)
        segments = list(finished(self._folder))
        new = seen.new(segments)
        if self._target is not None:
            new = [segment for segment in new if segment in self._target]
        if not new:
            return start
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        elif isinstance(limit, ReadMaxBytes):
            size = 0
            for count, segment in enumerate(new):
                size += segment.stat().st_size
                if size > limit.max_bytes and count:
                    new = new[:count]
                    break
        return seen.without_gone(segments).plus(new).as_offset()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """After the last segment."""
        return Seen().plus(finished(self._folder)).as_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The segments between two offsets, as partitions."""
        chosen = Seen.from_offset(start).between(finished(self._folder), Seen.from_offset(end))
        return segment_parts(chosen)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """See ``DataSourceStreamReader``."""
        assert isinstance(partition, SegmentPart)
        yield from read_segments(self._options, self._chosen, partition.splits)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of a queue with a retention, by position. Consumes nothing.

    The retention must be longer than the stream may lag behind.
    """

    def __init__(self, options: ReadOptions, chosen: StructType) -> None:
        self._options = options
        self._chosen = chosen
        self._target: str | None = None
        self._open: tuple[ExitStack, QueueReader] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}  # tasks open their own connections

    def _queue(self) -> QueueReader:
        # Kept open: a waiting stream asks every few milliseconds.
        if self._open is None:
            stack = ExitStack()
            self._open = stack, stack.enter_context(open_queue(self._options))
        return self._open[1]

    def stop(self) -> None:
        """Close the connection. Spark does not always call this; then the process closes it."""
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first message.

        Raises:
            UnsupportedError: the queue cannot be read again.
        """
        self._queue().end(None, 1)
        return {"position": _START}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As the options say."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the last message that exists now."""
        self._target = self._queue().end(None, None) or _START

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """After the next messages, as many as the limit allows."""
        position: str = start["position"]
        if self._target is not None and place(position) >= place(self._target):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._queue().end(_after(position), most)
        if end is None:
            return start
        if self._target is not None:
            end = min(end, self._target, key=place)
        return {"position": end}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """After the last message."""
        return {"position": self._queue().end(None, None) or _START}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The messages between two offsets, as partitions."""
        whole = Span(_after(start["position"]), end["position"])
        spans = self._queue().spans(self._options.partitions or default_parts(), whole)
        return [QueuePart(span) for span in spans or [whole]]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """See ``DataSourceStreamReader``."""
        assert isinstance(partition, QueuePart)
        yield from read_queue(self._options, self._chosen, partition.span, again=True)


def _after(position: str) -> str | None:
    """The position as transports know it: None is before all."""
    return None if position == _START else position
