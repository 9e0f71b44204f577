"""Batch and stream reads of queues that are logs, such as Kafka's: by partition and offset.

A log keeps handled messages, so a batch contains all stored messages with their ``state``, and a
stream can be read again. Nothing is consumed, and no consumer group is joined. The offset of a
stream holds the next offset of each partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from matador.errors import MessagesDeletedError
from matador.model.topology import DEAD_LETTER_KINDS
from matador.spark.runtime.arrow import RecordBatch
from matador.spark.runtime.compat import LimitedStreamReader, ReadLimit, ReadMaxRows
from matador.spark.runtime.log_ranges import limited
from matador.spark.source.options import ReadOptions, event_of, subject_of
from matador.spark.source.queues import open_queue
from matador.spark.source.readers import OpenQueue, Reading
from matador.spark.source.rows import MessageRows, shape_of
from matador.transports.base import Partitioned

_DEAD_LETTERS = tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)
_LOG = logging.getLogger(__name__)

Offsets: TypeAlias = dict[int, int]
"""For each partition the next offset."""
Ranges: TypeAlias = dict[int, tuple[int, int]]
"""For each partition an offset, and the one behind the last."""


def is_log(options: ReadOptions) -> bool:
    """Whether the queue that the options name is read by partition and offset."""
    return isinstance(subject_of(options).transport, Partitioned)


@dataclass(frozen=True)
class LogPart(InputPartition):
    """A range of offsets of one partition of a log."""

    number: int
    start: int
    end: int
    finished: bool = True

    def read(self, options: ReadOptions, chosen: StructType) -> Iterator[RecordBatch]:
        """The messages of the range."""
        if self.start >= self.end:
            return
        shape = shape_of(event_of(options), chosen)
        with open_queue(options) as queue:
            rows = MessageRows(shape, queue.subject.codec)
            for messages in queue.read_offsets(self.number, self.start, self.end):
                if not self.finished:
                    messages = [one for one in messages if one.state != "done"]
                yield from rows.batches(messages)


class LogBatchReader(Reading, DataSourceReader):
    """Reads all messages of a log; of dead letters, only those that were not redriven or purged."""

    def partitions(self) -> Sequence[InputPartition]:
        with open_queue(self._options) as queue:
            finished = not queue.subject.queue.endswith(_DEAD_LETTERS)
            parts = log_parts(queue.offsets(), self._parts())
        return [replace(part, finished=finished) for part in parts]


class LogStreamReader(OpenQueue, LimitedStreamReader):
    """Reads a log as it grows. It must keep messages for longer than the stream lags behind."""

    _target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The offset before the first stored message."""
        return _written({number: first for number, (first, _) in self._queue().offsets().items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Store the current last messages: later ones are not read in this run."""
        self._target = _ends(self._queue().offsets())

    def next_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """After the next messages, as many as the limit allows, from all partitions alike."""
        ends = _ends(self._queue().offsets())
        if self._target is not None:
            ends = {number: min(end, self._target.get(number, 0)) for number, end in ends.items()}
        left = self._ranges(start, ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _written({**_read(start), **limited(left, most)})

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return _written(_ends(self._queue().offsets()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return log_parts(self._ranges(start, _read(end)), self._parts())

    def _ranges(self, start: dict[str, Any], ends: Offsets) -> Ranges:
        """The offsets to read.

        Raises:
            MessagesDeletedError: some messages were deleted, and the options do not allow that.
        """
        there, began = self._queue().offsets(), _read(start)
        ranges: Ranges = {}
        for number, end in ends.items():
            first, last = there.get(number, (0, 0))
            wanted = began.get(number, first)  # a partition that is new is read completely
            if first <= wanted <= last or wanted == end:
                ranges[number] = wanted, max(wanted, end)
                continue
            lost = f"offsets {wanted} to {first - 1} were deleted before the stream has read them"
            if wanted > last:
                lost = f"it ends at {last}, but was read up to {wanted}: it was recreated"
            problem = f"{self._options.queue!r}, partition {number}: {lost}"
            if self._options.missing == "fail":
                raise MessagesDeletedError(problem)
            _LOG.warning("%s; the stream continues at %d", problem, first)
            ranges[number] = first, max(first, end)
        return ranges


def log_parts(ranges: Mapping[int, tuple[int, int]], parts: int) -> list[LogPart]:
    """Ranges as parts of about the same size, each of one partition; Spark wants at least one."""
    total = sum(max(0, end - start) for start, end in ranges.values())
    size = max(1, -(-total // parts))
    found = [
        LogPart(number, begin, min(begin + size, end))
        for number, (start, end) in sorted(ranges.items())
        for begin in range(start, end, size)
    ]
    return found or [LogPart(0, 0, 0)]


def _ends(offsets: Mapping[int, tuple[int, int]]) -> Offsets:
    return {number: end for number, (_, end) in offsets.items()}


def _written(offsets: Offsets) -> dict[str, Any]:
    """As Spark stores it, as JSON. The same offsets give the same text."""
    return {str(number): offset for number, offset in sorted(offsets.items())}


def _read(offset: Mapping[str, Any]) -> Offsets:
    return {int(number): int(at) for number, at in offset.items()}
