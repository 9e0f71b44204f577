"""Incremental ingest from queues that are logs, such as Kafka's: each event becomes a row, once.

A batch is a range of each partition. Tasks read and decode it into files in the folders of the
tables. Then the driver commits ``quarantine``, and after it ``events`` together with the offsets at
which the next batch begins. An ingest that is killed before that is repeated by the next one: rows
in quarantine count as repeated, and uncommitted files are not part of a table.

The same message may be in a log several times, as it is retried or redriven, and another ingest may
read the same ranges. ``Appender`` leaves out events whose id the table has.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from matador.errors import (
    ClusterError,
    ConfigurationError,
    MessagesDeletedError,
    QueueNotFoundError,
    TransportError,
)
from matador.events.app import Matador
from matador.model.log import LogPartition, LogRange
from matador.model.schema import Schema
from matador.spark.runtime.executors import event_types, parallelism, run_tasks
from matador.spark.runtime.log_ranges import limited, range_tasks
from matador.spark.tables.append import Appender
from matador.spark.tables.ingest import IngestOptions, IngestProgress, IngestResult, tell
from matador.spark.tables.ingest_tasks import most_frequent
from matador.spark.tables.layout import Layout
from matador.spark.tables.log_offsets import LogOffsets, LogStart, progress
from matador.spark.tables.log_tasks import DecodedLog, LogSource, decode_log
from matador.transports.base import Partitioned
from matador.transports.multi import MultiTransport

log = logging.getLogger("matador.lake")

_TASKS_A_CORE = 2
_MOST_SECONDS_BETWEEN_TRIES = 30.0

_pickler: Any = cloudpickle  # it has no types


class LogIngest:
    """Ingests the queues of one log into one lake."""

    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        schema: Schema | None,
        source: LogSource,
        start: LogStart,
        options: IngestOptions,
    ) -> None:
        self._spark = spark
        self._layout = layout
        self._events = None if schema is None else event_types(spark, schema)
        self._source = source
        self._start = start
        self._options = options
        self._result = IngestResult()

    def run(self, queues: Sequence[str]) -> IngestResult:
        self._layout.storage.make()
        self._appenders = {
            table: Appender(self._spark, self._layout, table) for table in ("quarantine", "events")
        }
        self._layout.table("deliveries").open()  # a lake has all its tables
        events = self._layout.table("events").open()
        self._offsets = LogOffsets(events, self._source.log, self._start)
        stop, wait, answered = self._options.stop, self._options.interval, False
        try:
            while True:
                try:
                    self._all_new(queues)
                    answered, wait = True, self._options.interval
                except (TransportError, ClusterError) as error:
                    if not (self._options.follow and answered) or isinstance(
                        error, MessagesDeletedError
                    ):
                        raise
                    wait = min(max(1.0, wait * 2), _MOST_SECONDS_BETWEEN_TRIES)
                    log.warning("the ingest tries again in %.0f s: %s", wait, error)
                if not self._options.follow or stop.wait(wait):
                    break
        except KeyboardInterrupt:
            if not self._options.follow:
                raise
            log.info("stopped; the next run finishes the rest")
        finally:
            self._source.log.close()
        return self._result

    def _all_new(self, queues: Sequence[str]) -> None:
        """Ingest all current messages, batch by batch."""
        while True:
            ranges, missed = self._offsets.ranges(self._source.log.partitions(queues))
            self._result += IngestResult(missed=missed)
            if self._ingest_all({one.partition: (one.start, one.end) for one in ranges}):
                return
            # Messages were deleted since. If that is not allowed, it is an error now.

    def _ingest_all(self, left: dict[LogPartition, tuple[int, int]]) -> bool:
        """Ingest the remaining ranges; False if they must be determined again."""
        total = lag = sum(end - begin for begin, end in left.values())
        if lag:
            self._show(0, total)
        while lag and not self._options.stop.is_set():
            ends = limited(left, self._options.batch_size)
            batch = [
                LogRange(one, begin, ends[one])
                for one, (begin, _) in left.items()
                if ends[one] > begin
            ]
            if not self._do(batch):
                return False
            left = {one: (ends[one], end) for one, (_, end) in left.items()}
            lag = sum(end - begin for begin, end in left.values())
            self._show(total - lag, total)
        return True

    def _show(self, done: int, total: int) -> None:
        if self._options.progress is not None:
            self._options.progress(IngestProgress(self._result, done, total))

    def _do(self, batch: Sequence[LogRange]) -> bool:
        """Ingest one batch; False if messages of it were deleted before they were read."""
        tasks = range_tasks(batch, parallelism(self._spark) * _TASKS_A_CORE)
        work = partial(decode_log, tasks, self._source, self._layout.storage, self._events)
        answers = [
            msgspec.msgpack.decode(answer, type=DecodedLog)
            for answer in run_tasks(self._spark, work, len(tasks))
        ]
        for answer in answers:
            if answer.not_imported is not None:
                raise ConfigurationError(
                    "the executors cannot load the payload types, the codec or the client of the "
                    f"broker: {answer.not_imported}; install their modules there"
                )
        self._commit(
            [answer for answer in answers if answer.failed is None], _reached(batch, tasks, answers)
        )
        failed = [answer for answer in answers if answer.failed is not None]
        if any(not answer.deleted for answer in failed):
            raise ClusterError(
                f"{len(failed):,} of {len(tasks):,} tasks could not read all of their messages; "
                f"the next ingest continues there: {failed[0].failed}"
            )
        return not failed

    def _commit(
        self, answers: Sequence[DecodedLog], reached: Sequence[tuple[LogPartition, int]]
    ) -> None:
        result = IngestResult(
            records=sum(answer.records for answer in answers),
            problems=tuple(most_frequent([one for answer in answers for one in answer.problems])),
        )
        # Of equal events the first is kept, so those that were never tried come first.
        parts = [one for answer in answers for one in answer.parts]
        parts += [one for answer in answers for one in answer.retried]
        quarantined = self._appenders["quarantine"].append(
            [one for one in parts if one.table == "quarantine"]
        )
        events = self._appenders["events"].append(
            [one for one in parts if one.table == "events"],
            lambda table: progress(table, reached),
        )
        result += IngestResult(
            events=events.rows,
            quarantined=quarantined.rows,
            duplicates=events.repeated + quarantined.repeated,
            expired=events.expired + quarantined.expired,
        )
        self._result += result
        tell(result)


def _reached(
    batch: Sequence[LogRange],
    tasks: Sequence[Sequence[LogRange]],
    answers: Sequence[DecodedLog],
) -> list[tuple[LogPartition, int]]:
    """How far each partition is read without a gap."""
    unread: dict[LogPartition, int] = {}
    for task, answer in zip(tasks, answers, strict=True):
        if answer.failed is not None:
            for one in task:
                unread[one.partition] = min(one.start, unread.get(one.partition, one.start))
    return [(one.partition, unread.get(one.partition, one.end)) for one in batch]


def queues_of(app: Matador, queues: Sequence[str] | None) -> list[str]:
    """The full names of queues; of all, if none are named.

    Raises:
        ConfigurationError: the application has no such queue.
    """
    topology = app.topology
    try:
        names = [one.name for one in topology.queues] if queues is None else queues
        found = [topology.full_name(name) for name in names]
    except QueueNotFoundError as error:
        raise ConfigurationError(f"ingest: {error}") from error
    if not found:
        raise ConfigurationError("ingest: the application has no queues to read")
    return list(dict.fromkeys(found))


def log_source(app: Matador) -> LogSource:
    """The data that tasks need to read the messages of an application.

    Raises:
        ConfigurationError: its transport keeps no log, or its codec cannot be pickled.
    """
    transport = app.transport
    inside = transport.transports if isinstance(transport, MultiTransport) else (transport,)
    found = [one for one in inside if isinstance(one, Partitioned)]
    if len(found) != 1:
        problem = "has several Kafka clusters" if found else "is not on Kafka"
        raise ConfigurationError(
            f"the application {problem} ({transport.name}), so its topics cannot be ingested; "
            "ingest its journal, or pass app.with_(transport=…)"
        )
    try:
        pickled: bytes = _pickler.dumps(app.codec)
    except Exception as error:  # a user's codec may raise anything
        raise ConfigurationError(
            f"the codec {app.codec!r} cannot be sent to the Spark executors; give it a __reduce__ "
            f"({error})"
        ) from error
    one: Any = found[0]
    return LogSource(one.log(), pickled, one.name)
