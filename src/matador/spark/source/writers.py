"""Publishes rows as events to all their subscribers, each once, even if Spark repeats tasks.

Spark repeats a task that failed half-way and, after a restart, a micro-batch whose end it did not
note. Envelope ids stay the same, and a transport with ``capabilities.once`` stores each only once
per write or micro-batch. On other transports a repeated row arrives again, under the same id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from matador.errors import ConfigurationError
from matador.loading import load_application
from matador.model.message import Once
from matador.spark.runtime.arrow import RecordBatch
from matador.spark.runtime.compat import StreamBatchWriter
from matador.spark.source.options import WriteOptions, write_options
from matador.spark.source.publish import RowEvents, check_columns, open_publisher

_CHUNK = 1000  # events published in one call


@dataclass
class TaskCommit(WriterCommitMessage):
    """The result of a task."""

    scope: str
    events: int
    messages: int


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of one batch write."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = options = _checked(given, schema, overwrite)
        self._scope = f"spark-write:{options.write_id or uuid.uuid4()}"

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return _publish(self._options, iterator, Once(self._scope))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Close the write: a late task, or a second write of this name, publishes nothing."""
        _seal(self._options, Once(self._scope))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Published events stay. A write with a ``write_id`` can be repeated."""
        if self._options.write_id is None:
            _seal(self._options, Once(self._scope))


class StreamWriter(StreamBatchWriter):
    """Publishes the rows of a stream, micro-batch by micro-batch."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.columns = schema
        self._options = _checked(given, schema, overwrite)
        if self._options.write_id is not None:
            raise ConfigurationError(
                "matador: a stream is identified by its checkpoint and takes no write_id"
            )

    def write_batches(self, batches: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None
        assert batch is not None
        return _publish(self._options, batches, Once(f"spark-stream:{query}", int(batch)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The micro-batch is published: if Spark repeats it, nothing is published again."""
        for scope in {one.scope for one in messages if isinstance(one, TaskCommit)}:
            _seal(self._options, Once(scope, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Published events stay, and are not published again with the micro-batch."""


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    options = write_options(given)
    if overwrite:
        raise ConfigurationError("matador: messages cannot be overwritten; use mode('append')")
    app = load_application(options.app).app
    if app.transport.capabilities.in_process:
        raise ConfigurationError(
            f"matador: {app.transport.name} exists in one process and cannot be reached from "
            f"Spark tasks; use a durable broker"
        )
    check_columns(schema.names, app.schema, options.event)
    return options


def _publish(options: WriteOptions, batches: Iterator[RecordBatch], once: Once) -> TaskCommit:
    context = TaskContext.get()
    assert context is not None
    done = TaskCommit(once.scope, 0, 0)
    first = next(batches, None)
    if first is None:
        return done
    with open_publisher(options.app) as publisher:
        name = f"{once.scope}/{once.batch}/{context.partitionId()}"
        incoming = RowEvents(publisher.app.schema, options.event, name)
        items = (item for batch in chain([first], batches) for item in incoming.items(batch))
        while portion := list(islice(items, _CHUNK)):
            for result in publisher.publish(portion, once):
                result.raise_for_errors()  # the task fails, and its retry stores nothing twice
                done.events += 1
                done.messages += result.sent
    return done


def _seal(options: WriteOptions, once: Once) -> None:
    with open_publisher(options.app) as publisher:
        publisher.seal(once)
