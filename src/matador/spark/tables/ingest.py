"""Incremental ingest: finished segments of a journal become rows of the lake, exactly once.

A batch of segments is decoded by tasks into files in the folders of the tables. Then the driver
commits the files: to each table in one step, without the rows that the table has already. Finally,
the segments are recorded as ingested. If an ingest is killed in between, the next one repeats it:
committed rows count as repeated, and uncommitted files are not part of a table.

Two ingests may run at the same time. A commit is made for the version of the table whose keys were
compared; the slower one compares again, and leaves out rows that the other has added.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import SparkSession

from matador.errors import ClusterError, ConfigurationError
from matador.model.schema import Schema
from matador.observe.journal.segments import SUFFIX
from matador.spark.runtime.arrow import Table, pa, parquet
from matador.spark.runtime.executors import event_types, parallelism, run_tasks
from matador.spark.runtime.journal_lines import Split, splits_of
from matador.spark.tables.append import Appender
from matador.spark.tables.delta import CommitConflictError, DataFile
from matador.spark.tables.ingest_tasks import (
    DecodedSegments,
    ProblemCount,
    decode_segments,
    most_frequent,
)
from matador.spark.tables.layout import SEGMENTS, TABLES, Layout
from matador.spark.tables.parquet_writer import FileWriter
from matador.storage import FolderStorage, Storage
from matador.storage.files import groups

log = logging.getLogger("matador.lake")

BYTES = 512 * 1024 * 1024
"""Of a journal in a batch."""
MESSAGES = 500_000
"""Of Kafka in a batch."""

_SMALLEST_SPLIT = 4 * 1024 * 1024
_LARGEST_SPLIT = 64 * 1024 * 1024
_TASKS_A_CORE = 2  # more than one, so that the last task leaves no other core idle for long
_TRY_AGAIN = 30.0  # seconds after which unreadable segments are tried again
_MOST_NAMED = 5
_MOST_FILES = 25  # that say which segments are done
_FEW = 4  # a quarter of the rows of the largest file is worth writing it again
_ROWS = {"events": "events", "deliveries": "deliveries", "quarantine": "quarantined"}


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of an ingest: segments and records read, rows added, duplicate rows.

    ``dropped`` counts records that the journal reports as lost (a full disk), ``expired`` rows that
    are older than what ``Lake.expire`` has removed, ``missed`` messages that Kafka had deleted
    before they were read. ``problems`` has the most frequent reasons why rows are in quarantine.
    """

    segments: int = 0
    records: int = 0
    events: int = 0
    deliveries: int = 0
    quarantined: int = 0
    duplicates: int = 0
    dropped: int = 0
    expired: int = 0
    missed: int = 0
    problems: tuple[ProblemCount, ...] = field(default=(), compare=False, repr=False)

    def __add__(self, other: IngestResult) -> IngestResult:
        added: dict[str, Any] = {
            one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)
        }
        added["problems"] = tuple(most_frequent(added["problems"]))
        return IngestResult(**added)


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """The progress of an ingest: the finished part and the total, as far as it is known.

    Bytes of a journal, or messages of Kafka.
    """

    result: IngestResult
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """``batch_size``: bytes of the journal, or messages of Kafka, in a batch: it bounds memory and
    lost work.

    ``follow``: continue until ``stop`` is set; check for new ones every ``interval`` seconds.
    """

    follow: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    interval: float = 1.0
    batch_size: int = BYTES
    progress: Callable[[IngestProgress], None] | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigurationError(f"ingest: batch_size must be positive, got {self.batch_size}")
        if not self.interval > 0:
            raise ConfigurationError(f"ingest: interval must be positive, got {self.interval}")


class SegmentRef(NamedTuple):
    """A segment. A file of the same name that has changed is a new segment."""

    name: str
    size: int
    modified: int


class IngestedSegments:
    """The segments that are done. Follows what other processes note."""

    def __init__(self, layout: Layout) -> None:
        self._table = layout.segments().open()
        self._version = -1
        self._seen: set[SegmentRef] = set()
        self._since_merge = 0

    def new(self, segments: Sequence[SegmentRef]) -> list[SegmentRef]:
        """The segments that are not ingested yet."""
        self._table.refresh()
        if self._table.version != self._version:
            changes = self._table.changes(self._version) if self._version >= 0 else None
            files = None if changes is None else [*changes.added, *changes.rewritten]
            for file in self._table.files() if files is None else files:
                self._see(self._read(file))
            self._version = self._table.version
            if files is None:
                self._merge()
        return [one for one in segments if one not in self._seen]

    def _read(self, file: DataFile) -> Table:
        # Much quicker than a dataset: the files have a few rows.
        with self._table.storage.reader(file.path) as source:
            return parquet.ParquetFile(source).read(columns=SEGMENTS.names).cast(SEGMENTS)

    def _see(self, rows: Table) -> None:
        columns = [rows.column(name).to_pylist() for name in SEGMENTS.names]
        self._seen.update(map(SegmentRef._make, zip(*columns, strict=True)))

    def _merge(self) -> None:
        """Write the rows of many files into one: every batch adds a small one.

        The largest is left alone while the others have few rows, however long the list is.
        """
        self._since_merge = 0
        files = sorted(self._table.files(), key=lambda one: one.rows)
        if len(files) <= _MOST_FILES:
            return
        *others, largest = files
        if _FEW * sum(one.rows for one in others) < largest.rows:
            files = others
        file = self._write(pa.concat_tables(map(self._read, files)))
        with suppress(CommitConflictError):  # another ingest is running; merge next time
            self._version = self._table.commit([file], files, same_rows=True)

    def _write(self, rows: Table) -> DataFile:
        writer = FileWriter(self._table.storage, SEGMENTS, None)
        writer.write(rows)
        return writer.close()

    def add(self, segments: Sequence[SegmentRef]) -> None:
        """Record segments as ingested."""
        columns = [pa.array(one) for one in zip(*segments, strict=True)]
        file = self._write(pa.Table.from_arrays(columns, schema=SEGMENTS))
        before = self._version
        while True:
            try:
                version = self._table.commit([file])
                break
            except CommitConflictError:
                continue  # another ingest has noted its own
        self._seen.update(segments)
        self._since_merge += 1
        if version == before + 1:
            self._version = version
            if self._since_merge > _MOST_FILES:
                self._merge()


class Ingest:
    """Ingests journals into one lake."""

    def __init__(
        self, spark: SparkSession, layout: Layout, schema: Schema | None, options: IngestOptions
    ) -> None:
        self._spark = spark
        self._layout = layout
        self._events = None if schema is None else event_types(spark, schema)
        self._options = options
        self._result = IngestResult()
        self._unread: dict[str, str] = {}
        self._try_again = 0.0

    def run(self, journal: Storage) -> IngestResult:
        if isinstance(journal, FolderStorage):
            if not journal.path.is_dir():
                raise ConfigurationError(f"journal folder {journal.root!r} does not exist")
            journal = FolderStorage(str(journal.path.resolve()))
        self._layout.storage.make()
        self._appenders = {table: Appender(self._spark, self._layout, table) for table in TABLES}
        self._done = IngestedSegments(self._layout)
        try:
            while True:
                self._all_new(journal)
                if not self._options.follow or self._options.stop.wait(self._options.interval):
                    break
        except KeyboardInterrupt:
            if not self._options.follow:
                raise
            log.info("stopped; the next run finishes the rest")
        if self._unread:
            raise ClusterError(_unread_text(journal.root, self._unread))
        return self._result

    def _all_new(self, journal: Storage) -> None:
        waiting = self._done.new(_segments(journal))
        if time.monotonic() < self._try_again:
            waiting = [one for one in waiting if one.name not in self._unread]
        else:
            self._unread = {}
        total = sum(segment.size for segment in waiting)
        done = 0
        for segments in groups(waiting, lambda one: one.size, self._options.batch_size):
            self._do(journal, segments)
            done += sum(segment.size for segment in segments)
            if self._options.progress is not None:
                self._options.progress(IngestProgress(self._result, done, total))
            if self._options.stop.is_set():
                break

    def _do(self, journal: Storage, segments: Sequence[SegmentRef]) -> None:
        """Ingest one batch."""
        tasks = _tasks(journal, segments, parallelism(self._spark))
        work = partial(decode_segments, tasks, self._layout.storage, self._events)
        answers = [
            msgspec.msgpack.decode(answer, type=DecodedSegments)
            for answer in run_tasks(self._spark, work, len(tasks))
        ]
        unread: dict[str, str] = {}
        for answer in answers:
            if answer.not_imported is not None:
                raise ConfigurationError(
                    f"the executors cannot import the payload types: {answer.not_imported}; "
                    "install their module there, or send its file with "
                    "spark.addArtifacts(…, pyfile=True)"
                )
            unread.update(answer.unread)
        for name, why in unread.items():
            self._note_unread(journal, name, why)
        # A segment in several tasks counts only if all of them could read it.
        answers = [
            answer
            for answer, splits in zip(answers, tasks, strict=True)
            if len(splits) > 1 or splits[0].name not in unread
        ]
        left = [one for one in segments if one.name not in unread]
        if not left:
            return
        result = IngestResult(
            len(left),
            sum(answer.records for answer in answers),
            dropped=sum(answer.dropped for answer in answers),
            problems=tuple(most_frequent([one for answer in answers for one in answer.problems])),
        )
        for table, appender in self._appenders.items():
            parts = [one for answer in answers for one in answer.parts if one.table == table]
            added = appender.append(parts)
            rows: dict[str, Any] = {_ROWS[table]: added.rows}
            result += IngestResult(duplicates=added.repeated, expired=added.expired, **rows)
        self._done.add(left)
        self._result += result
        tell(result)

    def _note_unread(self, journal: Storage, name: str, why: str) -> None:
        """Report an unreadable segment. It stays new for as long as it exists."""
        path = f"{journal.root}/{name}"
        if journal.size(name) is None:
            log.error("segment %s was removed before it was ingested", path)
            return
        log.error("segment %s cannot be read by the executors, and waits (%s)", path, why)
        self._unread[name] = why
        self._try_again = time.monotonic() + _TRY_AGAIN


def _segments(journal: Storage) -> list[SegmentRef]:
    try:
        found = journal.files()
    except OSError as error:
        raise ConfigurationError(f"cannot list the journal: {error}") from error
    return [SegmentRef(*one) for one in found if one.name.endswith(SUFFIX)]


def _unread_text(journal: str, unread: Mapping[str, str]) -> str:
    what = "segment" if len(unread) == 1 else "segments"
    named = "; ".join(f"{name} ({why})" for name, why in list(unread.items())[:_MOST_NAMED])
    more = "" if len(unread) <= _MOST_NAMED else f"; and {len(unread) - _MOST_NAMED:,} more"
    return (
        f"{len(unread):,} {what} of {journal} could not be read by the executors and must wait for "
        f"the next ingest: {named}{more}. The executors must see the journal under the same path "
        "and be allowed to read it"
    )


def _tasks(journal: Storage, segments: Sequence[SegmentRef], cores: int) -> list[list[Split]]:
    """The splits of segments by task: large segments are cut, small ones share a task."""
    total = sum(segment.size for segment in segments)
    fair = -(-total // (cores * _TASKS_A_CORE))
    most = min(max(fair, _SMALLEST_SPLIT), _LARGEST_SPLIT)
    tasks: list[list[Split]] = []
    small: list[Split] = []
    for segment in segments:
        splits = [*_splits(journal, segment, most)]
        if len(splits) > 1:
            tasks.extend([one] for one in splits)
        else:
            small.extend(splits)
    tasks.extend(groups(small, lambda one: one.end - one.start, most))
    return tasks


def _splits(journal: Storage, segment: SegmentRef, most: int) -> Iterator[Split]:
    if isinstance(journal, FolderStorage):
        return splits_of(journal.path / segment.name, segment.size, most)
    found = splits_of(Path(segment.name), segment.size, most)
    return (replace(one, journal=journal) for one in found)


def tell(result: IngestResult) -> None:
    """Log the counts of a batch."""
    log.info("a batch is done: %s", result)
    for one in result.problems:
        log.warning("%d × %s in quarantine: %s", one.count, one.kind, one.reason)
    if result.dropped:
        log.warning("the journal lost %d records, by its own count", result.dropped)
