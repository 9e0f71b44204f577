"""Incremental ingest: finished segments of a journal become rows of the lake, exactly once.

See ``batch_log`` for what survives a crash, and ``staging`` for the work of one batch.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from matador.errors import ClusterError, ConfigurationError
from matador.model.schema import Schema
from matador.observe.journal.segments import finished
from matador.spark.runtime.executors import event_types, run_tasks
from matador.spark.runtime.files import groups, locked, move, private_folder
from matador.spark.runtime.journal_lines import Split, splits_of
from matador.spark.tables.batch_log import (
    BatchLog,
    IngestBatch,
    ProblemCount,
    SegmentRef,
    most_frequent,
)
from matador.spark.tables.dedup_index import (
    left_overs,
    merged,
    run_name,
    runs_of,
    save_run,
    to_merge,
)
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.maintenance import finish_replacements
from matador.spark.tables.staging import stage, staged_index

log = logging.getLogger("matador.lake")

_SMALLEST_SPLIT = 4 * 1024 * 1024
_LARGEST_SPLIT = 64 * 1024 * 1024
_TASKS_A_CORE = 2  # more than one, so that the last task leaves no other core idle for long
_TRY_AGAIN = 30.0  # seconds after which unreadable segments are tried again
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of an ingest: segments and records read, rows added, duplicate rows.

    ``dropped`` counts records that the journal reports as lost (a full disk). ``problems`` has the
    most frequent reasons why rows are in quarantine.
    """

    segments: int = 0
    records: int = 0
    events: int = 0
    deliveries: int = 0
    quarantined: int = 0
    duplicates: int = 0
    dropped: int = 0
    problems: tuple[ProblemCount, ...] = field(default=(), compare=False, repr=False)

    def __add__(self, other: IngestResult) -> IngestResult:
        added: dict[str, Any] = {
            one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)
        }
        added["problems"] = tuple(most_frequent(added["problems"]))
        return IngestResult(**added)


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """The progress of an ingest: bytes of the journal that are done, and bytes in all."""

    result: IngestResult
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """``batch_size``: bytes of the journal in a batch, which bounds memory and lost work.

    ``follow``: continue until ``stop`` is set; look for new segments every ``interval`` seconds.
    """

    follow: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    interval: float = 1.0
    batch_size: int = 512 * 1024 * 1024
    progress: Callable[[IngestProgress], None] | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigurationError(f"ingest: batch_size must be positive, got {self.batch_size}")
        if not self.interval > 0:
            raise ConfigurationError(f"ingest: interval must be positive, got {self.interval}")


class Ingest:
    """Ingests journals into one lake, while it holds the lock of the lake."""

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

    def run(self, journal: Path) -> IngestResult:
        """See ``Lake.ingest``."""
        if not journal.is_dir():
            raise ConfigurationError(f"journal folder {str(journal)!r} does not exist")
        self._layout.make()
        with locked(self._layout.lock):
            self._batches = BatchLog(self._layout.checkpoints / "ingest")
            try:
                self._resume()
                while True:
                    self._all_new(journal.resolve())
                    if not self._options.follow or self._options.stop.wait(self._options.interval):
                        break
            except KeyboardInterrupt:
                if not self._options.follow:
                    raise
                log.info("stopped; the next run finishes the rest")
        if self._unread:
            raise ClusterError(_unread_text(journal, self._unread))
        return self._result

    def _all_new(self, journal: Path) -> None:
        waiting = self._batches.new_segments(_segments(journal))
        if time.monotonic() < self._try_again:
            waiting = [one for one in waiting if one.name not in self._unread]
        else:
            self._unread = {}
        total = sum(segment.size for segment in waiting)
        done = 0
        for segments in groups(waiting, lambda one: one.size, self._options.batch_size):
            self._do(self._batches.plan(str(journal), segments))
            done += sum(segment.size for segment in segments)
            if self._options.progress is not None:
                self._options.progress(IngestProgress(self._result, done, total))
            if self._options.stop.is_set():
                break

    def _resume(self) -> None:
        """Finish the batch of an earlier run, and remove incomplete files."""
        finish_replacements(self._layout)
        batch = self._batches.unfinished
        keep = batch.staging if batch is not None else None
        for path in self._layout.staging.iterdir():
            if path.name != keep:
                shutil.rmtree(path, ignore_errors=True)
        if batch is not None:
            if batch.state == "staged":
                self._publish(batch)
            else:
                self._do(batch)

    def _do(self, batch: IngestBatch) -> None:
        splits = _splits(batch, self._spark.sparkContext.defaultParallelism)
        staging = f"{batch.number}-{uuid.uuid4().hex[:8]}"
        folder = private_folder(self._layout.staging / staging)
        counts, unread = stage(
            self._spark, self._layout, folder, batch.number, splits, self._events
        )
        left = self._batches.without(batch, unread) if unread else batch
        for name, why in unread.items():
            self._note_unread(Path(batch.folder) / name, why)
        if left is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self._publish(self._batches.staged(left, staging, counts))

    def _note_unread(self, path: Path, why: str) -> None:
        """Report an unreadable segment. It stays new for as long as it exists."""
        if not path.exists():
            log.error("segment %s was removed before it was ingested", path)
            return
        log.error("segment %s cannot be read by the executors, and waits (%s)", path, why)
        self._unread[path.name] = why
        self._try_again = time.monotonic() + _TRY_AGAIN

    def _publish(self, batch: IngestBatch) -> None:
        """Move the files of a staged batch into the tables. Idempotent."""
        assert batch.staging is not None
        folder = self._layout.staging / batch.staging
        for table in TABLES:
            index = staged_index(folder, table, batch.number)
            move(index, self._layout.index(table) / index.name)
            move(folder / table, self._layout.batch(table, batch.number))
        self._batches.done(batch)
        shutil.rmtree(folder, ignore_errors=True)
        self._result += _told(batch)
        self._merge_index(batch.number)

    def _merge_index(self, number: int) -> None:
        chosen = {table: to_merge(runs_of(self._layout.index(table))) for table in TABLES}
        tables = [table for table in TABLES if chosen[table]]
        if tables:
            folder = self._layout.staging / f"index-{number}-{uuid.uuid4().hex[:8]}"
            work = partial(_merge, self._layout, folder, tables)
            run_tasks(self._spark, work, len(tables))
            for table in tables:
                runs = chosen[table]
                name = run_name(runs[0].first, runs[-1].last)
                move(folder / table / name, self._layout.index(table) / name)
                for path in left_overs(self._layout.index(table)):
                    path.unlink()
            shutil.rmtree(folder, ignore_errors=True)


def _merge(layout: Layout, folder: Path, tables: Sequence[str], which: int) -> bytes:
    table = tables[which]
    runs = to_merge(runs_of(layout.index(table)))
    save_run(folder / table / run_name(runs[0].first, runs[-1].last), merged(runs))
    return b""


def _segments(journal: Path) -> Iterator[SegmentRef]:
    try:
        paths = list(finished(journal))
    except OSError as error:
        raise ConfigurationError(f"cannot list the journal: {error}") from error
    for path in paths:
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # removed just now
        yield SegmentRef(path.name, found.st_size, found.st_mtime_ns)


def _unread_text(journal: Path, unread: Mapping[str, str]) -> str:
    what = "segment" if len(unread) == 1 else "segments"
    named = "; ".join(f"{name} ({why})" for name, why in list(unread.items())[:_MOST_NAMED])
    more = "" if len(unread) <= _MOST_NAMED else f"; and {len(unread) - _MOST_NAMED:,} more"
    return (
        f"{len(unread):,} {what} of {journal} could not be read by the executors and must wait for "
        f"the next ingest: {named}{more}. The executors must see the journal under the same path "
        "and be allowed to read it"
    )


def _splits(batch: IngestBatch, cores: int) -> list[Split]:
    total = sum(segment.size for segment in batch.segments)
    fair = -(-total // (cores * _TASKS_A_CORE))
    most = min(max(fair, _SMALLEST_SPLIT), _LARGEST_SPLIT)
    folder = Path(batch.folder)
    return [
        split
        for segment in batch.segments
        for split in splits_of(folder / segment.name, segment.size, most)
    ]


def _told(batch: IngestBatch) -> IngestResult:
    """Log the counts of a batch; returns them as a result."""
    counts = batch.counts
    assert counts is not None
    events, deliveries, quarantined = (counts.rows[table] for table in TABLES)
    result = IngestResult(
        *(len(batch.segments), counts.records, events, deliveries, quarantined),
        *(counts.repeated, counts.dropped, tuple(counts.problems)),
    )
    log.info("batch %d: %s", batch.number, result)
    for one in counts.problems:
        log.warning("%d × %s in quarantine: %s", one.count, one.kind, one.reason)
    if counts.dropped:
        log.warning("the journal lost %d records, by its own count", counts.dropped)
    return result
