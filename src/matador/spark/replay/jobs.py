"""Adds jobs of a lake again: chosen by name, time and SQL predicate, each once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from matador.errors import ConfigurationError, SendFailedError
from matador.events.fanout import derived_id
from matador.jobs import Queue
from matador.jobs.flows import INTO
from matador.jobs.wire import StoredJob
from matador.loading import load_object
from matador.model.message import Once
from matador.model.sending import SendResult
from matador.observe.journal.records import REPLAY_ID, REPLAY_OF
from matador.spark.replay.ledger import FailedRow, Ledger, ReplayCount, ReplayPlan
from matador.spark.replay.selection import Choice, filtered, groups_of
from matador.spark.tables.reader import LakeTables
from matador.transports.base import Deduplicating

_COLUMNS = ("id", "event_key", "created_at", "metadata", "options", "data_json")
_MOST = 1000  # rows in memory
_NO_TYPE = "VOID"


def choose_jobs(lake: LakeTables, queue: Queue, choice: Choice) -> DataFrame:
    """The selected jobs of a queue. With a predicate, ``data`` has the fields that they have."""
    rows = jobs_of(lake.events(), queue, choice)
    if not choice.replays:
        rows = rows.where(rows.replay_id.isNull())
    rows = choice.restrict(rows, "created_at")
    if choice.where is not None:
        rows = filtered(_with_data(rows), choice.where, "")
    return rows.select(*_COLUMNS, "subscriber")


def jobs_of(rows: DataFrame, queue: Queue, choice: Choice) -> DataFrame:
    """The rows about jobs of a queue, and of the name that was chosen."""
    rows = rows.where((rows.way == "job") & (rows.subscriber == queue.name))
    return rows if choice.event is None else rows.where(rows.event_key == str(choice.event))


def _with_data(rows: DataFrame) -> DataFrame:
    """Rows with their data as a column of the type that all of them fit in."""
    value = sql.try_parse_json("data_json")
    (found,) = rows.agg(sql.schema_of_variant_agg(value)).collect()
    # Spark calls a struct an object here; a field that is null everywhere has no type.
    kind = str(found[0]).replace("OBJECT<", "STRUCT<").replace(_NO_TYPE, "STRING")
    return rows.withColumn("data", sql.try_variant_get(value, "$", kind))


def counted_jobs(rows: DataFrame) -> tuple[list[ReplayCount], list[ReplayCount]]:
    """The jobs that would be added, and those that cannot be, by name and queue.

    A job that waited for the results of others cannot: its record does not have them.
    """
    waited = _waited()
    counts = [
        [ReplayCount(*key, count) for key, count in sorted(groups_of(part).items())]
        for part in (rows.where(~waited), rows.where(waited))
    ]
    return counts[0], counts[1]


def addable(rows: DataFrame) -> DataFrame:
    """Without those that cannot be added again."""
    return rows.where(~_waited())


def _waited() -> Any:
    return sql.coalesce(sql.element_at("options", INTO).isNotNull(), sql.lit(False))


# -- adding ---------------------------------------------------------------------------------------


class JobSender:
    """An open queue, to which the rows of a replay are added. Used by one thread."""

    def __init__(self, queue: Queue, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.queue = queue
        self.wait = wait

    def items(
        self, ledger: Ledger, plan: ReplayPlan, name: str, failed: list[FailedRow]
    ) -> Iterator[tuple[int, StoredJob]]:
        """The jobs of a chunk, with the indexes of their rows."""
        batches = ledger.batches(name, _MOST)
        columns = ([batch.column(one).to_pylist() for one in _COLUMNS] for batch in batches)
        rows = chain.from_iterable(zip(*lists, strict=True) for lists in columns)
        for index, values in enumerate(rows):
            yield index, self._job(ledger.replay_id, *values)

    async def publish(self, items: Sequence[StoredJob], once: Once) -> list[SendResult]:
        """Add jobs, each once. Failures are in the results."""
        outcomes = await self.queue.add_stored(items, once)
        return [
            SendResult(job.name, 1, 0)
            if error is None
            else SendResult(job.name, 0, 0, (SendFailedError(str(error)),))
            for job, error in zip(items, outcomes, strict=True)
        ]

    def seal(self, once: Once) -> None:
        """Close ``once`` for further jobs, if the transport supports it."""
        transport = self.queue.provider.transport
        if transport.capabilities.once and isinstance(transport, Deduplicating):
            self.wait(transport.seal(once))

    def _job(
        self,
        replay_id: str,
        original: str,
        name: str,
        created_at: datetime,
        metadata: Sequence[tuple[str, str]] | None,
        options: Sequence[tuple[str, str]] | None,
        data: str,
    ) -> StoredJob:
        # The id of a job may be reused when the job is gone: the time distinguishes them.
        place = (self.queue.name, original, created_at.isoformat())
        return StoredJob(
            id=derived_id(replay_id, *place),
            name=name,
            data=data.encode(),
            metadata={**dict(metadata or ()), REPLAY_ID: replay_id, REPLAY_OF: original},
            options=dict(options or ()),
        )


def load_queue(reference: str) -> Queue:
    """The queue of a reference, ``module:attribute``."""
    return load_object(reference, Queue, "job queue")[0]


def check_shared(queue: Queue) -> Queue:
    """The queue without open connections, if other processes can see its jobs.

    Raises:
        ConfigurationError: each process has its own.
        LifecycleError: the provider is a transport object, which is connected.
    """
    fresh = queue.another()
    if fresh.provider.transport.capabilities.in_process:
        raise ConfigurationError(
            f"queue {queue.name!r} keeps its jobs inside each process: give it a provider that "
            f"others see, such as sqlite:///jobs.db"
        )
    return fresh


@contextlib.contextmanager
def open_queue(queue: Queue) -> Generator[JobSender]:
    """Open a queue in the background: the caller may have an event loop that runs."""
    running = check_shared(queue).sync()
    try:
        yield JobSender(running.wait(_itself), lambda call: running.wait(lambda _: call))
    finally:
        running.shutdown()


async def _itself(queue: Queue) -> Queue:
    return queue
