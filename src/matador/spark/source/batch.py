"""Batch reads: of a queue by ranges of positions, of a journal by parts of segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from matador.errors import ConfigurationError
from matador.observe.journal.segments import finished
from matador.observe.paths import local_path
from matador.spark.runtime.arrow import RecordBatch
from matador.spark.runtime.journal_lines import Split, read_blocks, splits_of
from matador.spark.source.columns import default_parts
from matador.spark.source.options import ReadOptions, event_of, shape_of
from matador.spark.source.queues import Span, open_queue
from matador.spark.source.rows import MessageRows, RecordRows

SPLIT_BYTES = 32 << 20


class QueuePart(InputPartition):
    """A range of a queue."""

    def __init__(self, span: Span) -> None:
        self.span = span

    def __repr__(self) -> str:
        return f"QueuePart({self.span.after}, {self.span.until})"


class SegmentPart(InputPartition):
    """Several parts of segments."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.splits = tuple(splits)

    def __repr__(self) -> str:
        return f"SegmentPart({len(self.splits)} splits)"


class QueueBatchReader(DataSourceReader):
    """Reads the unfinished messages of a queue. Consumes nothing."""

    def __init__(self, options: ReadOptions, chosen: StructType) -> None:
        self._options = options
        self._chosen = chosen

    def partitions(self) -> Sequence[InputPartition]:
        """See ``DataSourceReader``."""
        with open_queue(self._options) as queue:
            # Also checks that the queue exists and can be browsed, before any task runs.
            next(queue.browse(Span()), None)
            spans = queue.spans(self._options.partitions or default_parts())
        return [QueuePart(span) for span in spans or [Span(until="0")]]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """See ``DataSourceReader``."""
        assert isinstance(partition, QueuePart)
        yield from read_queue(self._options, self._chosen, partition.span, again=False)


def read_queue(
    options: ReadOptions, chosen: StructType, span: Span, *, again: bool
) -> Iterator[RecordBatch]:
    """The messages of a range of a queue; with ``again`` including finished ones."""
    shape = shape_of(event_of(options), chosen)
    with open_queue(options) as queue:
        rows = MessageRows(shape, queue.subject.codec)
        for messages in queue.replay(span) if again else queue.browse(span):
            batch = rows.batch(messages)
            if batch is not None:
                yield batch


class JournalBatchReader(DataSourceReader):
    """Reads the messages sent, from the finished segments of a journal."""

    def __init__(self, options: ReadOptions, chosen: StructType) -> None:
        self._options = options
        self._chosen = chosen

    def partitions(self) -> Sequence[InputPartition]:
        """See ``DataSourceReader``."""
        return segment_parts(list(finished(journal_folder(self._options))))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """See ``DataSourceReader``."""
        assert isinstance(partition, SegmentPart)
        yield from read_segments(self._options, self._chosen, partition.splits)


def read_segments(
    options: ReadOptions, chosen: StructType, splits: Sequence[Split]
) -> Iterator[RecordBatch]:
    """The messages of parts of segments."""
    rows = RecordRows(shape_of(event_of(options), chosen))
    for split in splits:
        for block in read_blocks(split):
            yield from rows.batches(block, split.name)


def segment_parts(segments: Sequence[Path]) -> list[SegmentPart]:
    """Segments as partitions: large ones are split, small ones are combined."""
    parts: list[SegmentPart] = []
    together: list[Split] = []
    size = 0
    for segment in segments:
        for split in splits_of(segment, segment.stat().st_size, SPLIT_BYTES):
            together.append(split)
            size += split.end - split.start
            if size >= SPLIT_BYTES:
                parts.append(SegmentPart(together))
                together, size = [], 0
    if together or not parts:  # Spark always calls read() once
        parts.append(SegmentPart(together))
    return parts


def journal_folder(options: ReadOptions) -> Path:
    """The folder of the journal.

    Raises:
        ConfigurationError: it does not exist.
    """
    folder = local_path(options.journal or "", "matador: journal")
    if not folder.is_dir():
        raise ConfigurationError(
            f"matador: journal folder {str(folder)!r} does not exist; it is written by "
            "hooks=[Journal(folder)]"
        )
    return folder
