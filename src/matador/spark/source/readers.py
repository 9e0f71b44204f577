"""Batch and stream reads: of a queue by ranges of positions, of a journal by parts of segments.

A stream needs a source that can be read again: a journal, or a queue with a retention. Spark may
read the same range any number of times and never confirms it. So nothing is settled here, and a
range always yields the same messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from matador.errors import ConfigurationError
from matador.observe.journal.segments import finished
from matador.spark.runtime.arrow import RecordBatch
from matador.spark.runtime.compat import (
    LimitedStreamReader,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
)
from matador.spark.runtime.journal_lines import Split, read_blocks, splits_of
from matador.spark.source.options import ReadOptions, event_of
from matador.spark.source.queues import QueueReader, Span, open_queue, place
from matador.spark.source.rows import MessageRows, RecordRows, shape_of
from matador.spark.source.segment_offsets import Seen
from matador.storage.files import groups
from matador.storage.paths import local_path

_SPLIT_BYTES = 32 << 20
_START = "0"  # before every position


@dataclass(frozen=True)
class QueuePart(InputPartition):
    """A range of a queue; with ``replay`` including finished messages."""

    span: Span
    replay: bool = False

    def read(self, options: ReadOptions, chosen: StructType) -> Iterator[RecordBatch]:
        """The messages of the range."""
        shape = shape_of(event_of(options), chosen)
        with open_queue(options) as queue:
            rows = MessageRows(shape, queue.subject.codec)
            for messages in queue.replay(self.span) if self.replay else queue.browse(self.span):
                yield from rows.batches(messages)


@dataclass(frozen=True)
class SegmentPart(InputPartition):
    """Several parts of segments."""

    splits: tuple[Split, ...]

    def read(self, options: ReadOptions, chosen: StructType) -> Iterator[RecordBatch]:
        """The messages of the parts."""
        rows = RecordRows(shape_of(event_of(options), chosen))
        for split in self.splits:
            for block in read_blocks(split):
                yield from rows.batches(block, split.name)


class Reading:
    """The base of all readers."""

    def __init__(self, options: ReadOptions, chosen: StructType) -> None:
        self._options = options
        self._chosen = chosen

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        part: Any = partition  # one that this reader has made
        return part.read(self._options, self._chosen)

    def _parts(self) -> int:
        return self._options.partitions or max(2, os.cpu_count() or 2)


class QueueBatchReader(Reading, DataSourceReader):
    """Reads the unfinished messages of a queue. Consumes nothing."""

    def partitions(self) -> Sequence[InputPartition]:
        with open_queue(self._options) as queue:
            # Also checks that the queue exists and can be browsed, before any task runs.
            next(queue.browse(Span()), None)
            spans = queue.spans(self._parts())
        return [QueuePart(span) for span in spans or [Span(until=_START)]]


class JournalBatchReader(Reading, DataSourceReader):
    """Reads the messages sent, from the finished segments of a journal."""

    def partitions(self) -> Sequence[InputPartition]:
        return segment_parts(list(finished(journal_folder(self._options))))


class JournalStreamReader(Reading, LimitedStreamReader):
    """Reads segments as they appear. The offset holds those that were read."""

    def __init__(self, options: ReadOptions, chosen: StructType) -> None:
        super().__init__(options, chosen)
        self._folder = journal_folder(options)
        self._target: Seen | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return Seen().as_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Store the current segments: later ones are not read in this run."""
        self._target = Seen().plus(finished(self._folder))

    def next_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
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
        return Seen().plus(finished(self._folder)).as_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = Seen.from_offset(end)
        new = Seen.from_offset(start).new(finished(self._folder))
        return segment_parts([segment for segment in new if segment in until])


class OpenQueue(Reading):
    """A reader that polls its queue."""

    _open: tuple[ExitStack, QueueReader] | None = None

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


class QueueStreamReader(OpenQueue, LimitedStreamReader):
    """Reads the messages of a queue with a retention, by position. Consumes nothing.

    The retention must be longer than the stream may lag behind.
    """

    _target: str | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first message; checks that the queue can be read again."""
        self._queue().end(None, 1)
        return {"position": _START}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Store the current last message: later ones are not read in this run."""
        self._target = self._last()

    def next_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
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
        return {"position": self._last()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        whole = Span(_after(start["position"]), end["position"])
        spans = self._queue().spans(self._parts(), whole)
        return [QueuePart(span, replay=True) for span in spans or [whole]]

    def _last(self) -> str:
        return self._queue().end(None, None) or _START


def _after(position: str) -> str | None:
    """The position as transports know it: None is before all."""
    return None if position == _START else position


def segment_parts(segments: Sequence[Path]) -> list[SegmentPart]:
    """Segments as partitions: large ones are split, small ones are combined."""
    splits = [
        split for one in segments for split in splits_of(one, one.stat().st_size, _SPLIT_BYTES)
    ]
    together = groups(splits, lambda one: one.end - one.start, _SPLIT_BYTES)
    return [SegmentPart(tuple(one)) for one in together] or [SegmentPart(())]  # Spark wants one


def journal_folder(options: ReadOptions) -> Path:
    """The folder of the journal, which must exist."""
    folder = local_path(options.journal or "", "matador: journal")
    if not folder.is_dir():
        raise ConfigurationError(
            f"matador: journal folder {str(folder)!r} does not exist; it is written by "
            "hooks=[Journal(folder)]"
        )
    return folder
