"""Handles the batches of a DataFrame subscriber: each one goes through the pipeline of messages.

A batch is admitted, run, retried and dead-lettered like a message. What differs is here: its state
is kept in a store, a retry waits in place, and a dead batch is stored in a folder.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio.events import _set_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame

from matador.model.message import DeadLetter, Delivery, Message, Receipt, Retry
from matador.model.text import error_text
from matador.model.topology import DeadLetterKind
from matador.policy.retry import RetryLater, RetryPolicy
from matador.runtime.calls import Calls
from matador.runtime.facts import Attempt, Received, moment
from matador.runtime.hooks import Hooks, HookSet
from matador.runtime.interruption import Interruption
from matador.runtime.metrics import Counters
from matador.runtime.pipeline import Pipeline
from matador.runtime.threads import Threads
from matador.runtime.way import Failure, Refusal, RefusalKind, Route, Scope, WayIn, Work
from matador.spark.dataframes.store import BatchState, BatchStore
from matador.spark.dataframes.subscriber import Batch, BatchResult, DataFrameSubscriber
from matador.spark.runtime.connect import is_connect
from matador.spark.runtime.payload_columns import with_payload
from matador.transports.clock import SystemClock

log = logging.getLogger("matador.spark")

Report = Callable[[BatchResult], None]


class Stopping(Exception):
    """The run ends before the batch has an outcome, so it will be delivered again."""


class BatchHandler:
    """Runs a subscriber with one batch at a time, until each has an outcome."""

    def __init__(
        self,
        subscriber: DataFrameSubscriber,
        store: BatchStore,
        stop: threading.Event,
        report: Report,
    ) -> None:
        self.subscriber = subscriber
        self.store = store
        self._stop = stop
        self._report = report
        self.busy = threading.Lock()

    def handle(self, events: DataFrame, batch_id: int) -> None:
        """Handle a batch of the stream; raises ``Stopping`` if it has no outcome yet."""
        with self.busy:
            if self._stop.is_set():
                raise Stopping
            before = self.store.state(batch_id)
            if before.outcome is not None:
                return  # it has completed, but the process died before Spark recorded it
            events.persist()
            try:
                rows = events.count()
                if rows:
                    self._try(events, batch_id, rows, before, self.store.save)
            finally:
                events.unpersist()

    def redrive(self, events: DataFrame, batch_id: int, rows: int) -> bool:
        """Handle a dead batch again, like a new one; returns whether it succeeded."""
        with self.busy:
            # The progress of the stream is not affected.
            return self._try(events, batch_id, rows, BatchState(), _keep_nothing) == "success"

    def _try(
        self,
        events: DataFrame,
        batch_id: int,
        rows: int,
        before: BatchState,
        save: Callable[[int, BatchState], None],
    ) -> str:
        deliveries = before.deliveries + 1 if before.running else 1
        attempt = before.attempts
        receipt = Receipt(
            queue=self.subscriber.name,
            handle=batch_id,
            delivery_count=deliveries,
            redelivered=before.running,
        )
        while True:
            save(batch_id, BatchState(deliveries, attempt, running=True))
            attempt += 1
            way = BatchWay(self.subscriber, events, Batch(batch_id, attempt, before.running, rows))
            delivery = Delivery(b"", {}, receipt, id=f"{self.subscriber.name}/{batch_id}")
            outcome = asyncio.run(_pipeline(way).process(delivery))
            if way.stopped is not None:
                raise way.stopped
            assert outcome.attempt is not None, "the pipeline reports every attempt"
            result = _result(self.subscriber, way.batch, outcome.attempt)
            _log_result(result)
            if isinstance(outcome.settlement, DeadLetter):
                self.store.bury(events, result, datetime.now(UTC))
            again = outcome.settlement if isinstance(outcome.settlement, Retry) else None
            ended = result.outcome if again is None else None
            save(batch_id, BatchState(deliveries, attempt, outcome=ended))
            self._report(result)
            if again is None:
                return result.outcome
            if self._stop.wait(again.message.delay):
                raise Stopping


class _Facts(Hooks):
    """Makes the pipeline create the fact of each attempt, which becomes a ``BatchResult``."""

    def on_attempted(self, batch: Any) -> None: ...


def _pipeline(way: BatchWay) -> Pipeline:
    calls = Calls(Threads(1), Interruption())
    hooks = HookSet([_Facts()])
    return Pipeline(way, calls, hooks=hooks, counters=Counters(), clock=SystemClock())


class BatchWay(WayIn):
    """One batch of a DataFrame subscriber as a way in.

    ``stopped``: the error of a batch whose Spark application has ended. The batch did not cause it.
    """

    def __init__(self, subscriber: DataFrameSubscriber, events: DataFrame, batch: Batch) -> None:
        self.batch = batch
        self.stopped: BaseException | None = None
        self._subscriber = subscriber
        self._events = events
        self._route = Route(handler=subscriber.name, idempotent=subscriber.subscriber.idempotent)

    def read(self, delivery: Delivery) -> Work | Refusal:
        return Work(delivery, self._route, delivery.id, self.batch.attempt)

    async def call(self, work: Work, scope: Scope | None) -> None:
        # On the thread that Spark called, which owns the session. So the function may block: it may
        # use ``app.sync()``, or run its own event loop.
        loop = asyncio.get_running_loop()
        _set_running_loop(None)
        try:
            self._subscriber.run(with_payload(self._events, self._subscriber.event), self.batch)
        except BaseException as error:
            if is_stopped(self._events):
                self.stopped = error
            elif isinstance(error, Exception):
                raise
            else:  # the policy decides about every error; sys.exit() would leave Java waiting
                raise _Ended(str(error)) from error
        finally:
            _set_running_loop(loop)

    def policy(self, work: Work) -> RetryPolicy:
        return self._subscriber.retry

    def successor(self, work: Work, failure: Failure) -> Message:
        decision = failure.decision
        delay = decision.delay if isinstance(decision, RetryLater) else 0.0
        return Message(work.id, self._subscriber.name, b"", delay=delay)

    def fact(self, work: Work) -> Received:
        return self.unread(work.delivery)

    def unread(self, delivery: Delivery) -> Received:
        subscriber = self._subscriber
        key, now = subscriber.event.key, SystemClock().time()
        return Received(
            "event", delivery.id, key, subscriber.name, "spark", delivery, self.batch.attempt, now
        )

    def label(self, work: Work) -> str:
        return f"{self._subscriber.name}: batch {self.batch.id}, {self.batch.rows} rows,"

    def dead_letters(self, queue: str, kind: RefusalKind) -> DeadLetterKind | None:
        return "undeliverable"


class _Ended(Exception):
    """A subscriber raised an exception that would end the process, which is the cause."""


def _result(subscriber: DataFrameSubscriber, batch: Batch, attempt: Attempt) -> BatchResult:
    error = attempt.error
    if isinstance(error, _Ended):
        error = error.__cause__
    return BatchResult(
        subscriber=subscriber.name,
        event_key=subscriber.event.key,
        batch_id=batch.id,
        attempt=batch.attempt,
        outcome=attempt.outcome,
        rows=batch.rows,
        started_at=moment(attempt.started_at) or datetime.now(UTC),
        duration_ms=attempt.duration_ms,
        error_type=None if error is None else type(error).__name__,
        error=None if error is None else error_text(error),
        reason=attempt.reason,
    )


def _keep_nothing(batch_id: int, state: BatchState) -> None:
    """Keep no state."""


def is_stopped(frame: DataFrame) -> bool:
    """Whether the Spark application of a DataFrame has ended: then the batch did not cause the
    error."""
    spark: Any = frame.sparkSession
    try:
        if is_connect(spark):
            return bool(spark.is_stopped)
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - Java itself is gone
        return True


def _log_result(result: BatchResult) -> None:
    if result.outcome == "success":
        what = f"{result.subscriber}: batch {result.batch_id}, {result.rows} rows"
        log.info("%s: done in %.1f s", what, result.duration_ms / 1000)
