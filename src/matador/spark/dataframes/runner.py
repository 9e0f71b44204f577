"""Runs DataFrame subscribers over a journal, each as its own stream; redrives dead batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from matador.errors import ClusterError, ConfigurationError
from matador.model.options import Seconds, seconds, whole_number
from matador.spark.dataframes.events import chosen, journal_stream, queue_stream
from matador.spark.dataframes.handler import BatchHandler, Report
from matador.spark.dataframes.store import BatchStore, DeadBatch
from matador.spark.dataframes.subscriber import BatchResult, DataFrameSubscriber
from matador.spark.runtime.connect import require_java
from matador.spark.runtime.messages import reason_of
from matador.spark.runtime.session import spark_session
from matador.spark.runtime.shutdown import signals_set
from matador.storage.files import locked
from matador.storage.paths import local_path

_WAIT = 0.2


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """The totals of one DataFrame subscriber in a run."""

    subscriber: str
    batches: int = 0
    rows: int = 0
    retries: int = 0
    dead_letters: int = 0
    last_error: str | None = None

    def plus(self, result: BatchResult) -> BatchTotals:
        """The totals including one more result."""
        return replace(
            self,
            batches=self.batches + (result.outcome == "success"),
            rows=self.rows + (result.rows if result.outcome == "success" else 0),
            retries=self.retries + (result.outcome == "retry"),
            dead_letters=self.dead_letters + (result.outcome == "dead-letter"),
            last_error=result.error or self.last_error,
        )


def run_dataframe_subscribers(
    subscribers: Sequence[DataFrameSubscriber],
    *,
    journal: str | Path | DataFrame,
    checkpoint: str | Path,
    spark: SparkSession | None = None,
    follow: bool = False,
    poll: Seconds = 1.0,
    batch_size: int = 64 * 1024 * 1024,
    stop: threading.Event | None = None,
    on_result: Report | None = None,
) -> list[BatchTotals]:
    """Run DataFrame subscribers with the new events of a journal; returns the totals of each.

    Each has its own progress in ``checkpoint``, and fails alone: a failed batch is retried and
    finally dead-lettered by its retry policy, while the others continue. After a kill at any moment
    the next run resumes with the batch that was running, under the same number.

    Args:
        journal: the folder of a journal; or a streaming DataFrame that can be read again, with the
            columns of the lake's ``events`` table, or of ``format("matador")`` over a queue.
        checkpoint: a folder for progress and dead batches that driver and executors see.
        follow: continue until SIGTERM, SIGINT or ``stop``; else end after the existing events.
        poll: with ``follow``, the seconds between two scans for new segments.
        batch_size: bytes of the journal in a batch.
        on_result: called with the result of every attempt.

    Raises:
        ConfigurationError: an option is invalid, or the session is one of Spark Connect.
        StorageLockedError: another process runs one of them with this checkpoint.
        ClusterError: a stream failed, and not because of a subscriber.
    """
    every = seconds(poll, "poll", minimum=0.05)
    size = whole_number(batch_size, "batch_size", minimum=1)
    _check_names(subscribers)
    root = local_path(checkpoint, "checkpoint").absolute()
    if not isinstance(journal, DataFrame):
        journal = local_path(journal, "journal").absolute()
        if not journal.is_dir():
            raise ConfigurationError(f"journal folder {str(journal)!r} does not exist")
    elif "stored_at" in journal.columns:  # the messages of a queue
        journal = queue_stream(journal)
    session = spark or (journal.sparkSession if isinstance(journal, DataFrame) else spark_session())
    require_java(session, "DataFrame subscribers run in the process that starts them")
    stopping = stop or threading.Event()
    totals = _Totals(subscribers, on_result)
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals_set(stopping))
        handlers = [
            stack.enter_context(_handler(one, root, stopping, totals.add)) for one in subscribers
        ]
        trigger: dict[str, Any] = {"availableNow": True}
        if follow:
            trigger = {"processingTime": f"{round(every * 1000)} milliseconds"}
        streams: list[_Stream] = []
        try:
            for handler in handlers:
                source = (
                    journal
                    if isinstance(journal, DataFrame)
                    else journal_stream(session, journal, size)
                )
                streams.append(_Stream(handler, source, trigger))
            left = list(streams)
            while left and not stopping.is_set():
                left = [stream for stream in left if not stream.wait(_WAIT / len(left))]
        finally:
            stopping.set()
            for stream in streams:
                stream.end()
    return totals.all()


def dead_batches(checkpoint: str | Path) -> list[DeadBatch]:
    """The dead batches of all DataFrame subscribers of a checkpoint folder."""
    root = local_path(checkpoint, "checkpoint").absolute()
    folders = sorted(path for path in root.iterdir() if (path / "dead-letters").is_dir())
    return [dead for folder in folders for dead in BatchStore(root, folder.name).dead()]


def redrive_dead_batches(
    subscribers: Sequence[DataFrameSubscriber],
    *,
    checkpoint: str | Path,
    spark: SparkSession | None = None,
    batch_ids: Iterable[int] | None = None,
    on_result: Report | None = None,
) -> list[BatchTotals]:
    """Run dead batches again, like new ones; returns the totals of each subscriber.

    A batch that succeeds is removed from the dead letters; one that fails again stays, with the new
    reason. Events are decoded with the current payload type, including fields added since.

    Raises:
        StorageLockedError: another process runs one of them with this checkpoint.
    """
    _check_names(subscribers)
    wanted = None if batch_ids is None else set(batch_ids)
    totals = _Totals(subscribers, on_result)
    session = spark or spark_session()
    root = local_path(checkpoint, "checkpoint").absolute()
    for one in subscribers:
        with _handler(one, root, threading.Event(), totals.add) as handler:
            for dead in handler.store.dead():
                if wanted is None or dead.batch_id in wanted:
                    # Read completely first: a batch that fails again replaces its own files.
                    events = session.read.parquet(dead.events).localCheckpoint()
                    if handler.redrive(events, dead.batch_id, dead.rows):
                        handler.store.forget(dead)
    return totals.all()


@contextlib.contextmanager
def _handler(
    subscriber: DataFrameSubscriber, root: Path, stop: threading.Event, report: Report
) -> Generator[BatchHandler]:
    """The handler of a subscriber, which no other process runs meanwhile."""
    store = BatchStore(root, subscriber.name)
    store.make()
    with locked(store.lock):
        yield BatchHandler(subscriber, store, stop, report)


class _Stream:
    """The streaming query of one subscriber."""

    def __init__(self, handler: BatchHandler, source: DataFrame, trigger: dict[str, Any]) -> None:
        self._handler = handler
        self._name = handler.subscriber.name

        def handle(events: DataFrame, batch_id: int) -> None:
            handler.handle(chosen(events, handler.subscriber), batch_id)

        writer: Any = source.writeStream.foreachBatch(handle).queryName(f"matador-{self._name}")
        writer = writer.option("checkpointLocation", str(handler.store.stream)).trigger(**trigger)
        self._query: Any = writer.start()

    def wait(self, timeout: float) -> bool:
        """Wait for the end of the stream; returns whether it has ended."""
        try:
            return bool(self._query.awaitTermination(timeout))
        except PySparkException as error:
            reason = reason_of(error)
            raise ClusterError(f"the stream of {self._name} failed: {reason}") from error

    def end(self) -> None:
        """Stop after the running attempt: if interrupted, it would count as failed."""
        with self._handler.busy:
            pass
        self._query.stop()


class _Totals:
    """Adds up results, which come from the threads of all streams."""

    def __init__(
        self, subscribers: Sequence[DataFrameSubscriber], on_result: Report | None
    ) -> None:
        self._found = {one.name: BatchTotals(one.name) for one in subscribers}
        self._on_result = on_result
        self._lock = threading.Lock()

    def add(self, result: BatchResult) -> None:
        with self._lock:
            self._found[result.subscriber] = self._found[result.subscriber].plus(result)
            if self._on_result is not None:
                self._on_result(result)

    def all(self) -> list[BatchTotals]:
        return list(self._found.values())


def _check_names(subscribers: Sequence[DataFrameSubscriber]) -> None:
    names = [one.name for one in subscribers]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"duplicate DataFrame subscriber {name!r}")
