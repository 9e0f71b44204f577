"""Handles one batch of a DataFrame subscriber: retried and dead-lettered like a message.

The retry policy is that of messages, and gets the same facts: attempts, deliveries, whether the
batch was started before, the error.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame

from matador.errors import MatadorError
from matador.model.envelope import Docket, Envelope
from matador.model.message import Receipt
from matador.model.text import loggable
from matador.policy.admission import refuse
from matador.policy.retry import Decision, RetryContext, RetryLater, SendToDeadLetters
from matador.spark.dataframes.store import BatchState, BatchStore
from matador.spark.dataframes.subscriber import Batch, BatchResult, DataFrameSubscriber
from matador.spark.runtime.connect import is_connect
from matador.spark.runtime.payload_columns import with_payload

log = logging.getLogger("matador.spark")

Report = Callable[[BatchResult], None]

_LONGEST_ERROR = 4000


class Stopping(Exception):
    """The run ends before the batch has an outcome: it will be delivered again."""


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
                return  # it is done, but the process died before Spark noted it
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
        max_deliveries = self.subscriber.retry.max_deliveries
        refusal = refuse(receipt, self.subscriber.subscriber, max_deliveries)
        while True:
            save(batch_id, BatchState(deliveries, attempt, running=True))
            attempt += 1
            batch = Batch(batch_id, attempt, receipt.redelivered, rows)
            result, decision = self._attempt(events, batch, receipt, refusal)
            if isinstance(decision, SendToDeadLetters):
                self.store.bury(events, result, datetime.now(UTC))
            again = isinstance(decision, RetryLater)
            ended = None if again else result.outcome
            save(batch_id, BatchState(deliveries, attempt, outcome=ended))
            self._report(result)
            if not again:
                return result.outcome
            if self._stop.wait(decision.delay):
                raise Stopping

    def _attempt(
        self, events: DataFrame, batch: Batch, receipt: Receipt, refusal: MatadorError | None
    ) -> tuple[BatchResult, Decision | None]:
        started_at, started = datetime.now(UTC), time.perf_counter()
        error: BaseException | None = refusal
        if refusal is None:
            try:
                self.subscriber.run(with_payload(events, self.subscriber.event), batch)
            except BaseException as raised:
                # The policy decides about every error; sys.exit() here would leave Java waiting.
                if is_stopped(events):
                    raise
                error = raised
        duration_ms = (time.perf_counter() - started) * 1000
        decision = None if error is None else self._decide(batch, receipt, error, refusal)
        result = BatchResult(
            subscriber=self.subscriber.name,
            event_key=self.subscriber.event.key,
            batch_id=batch.id,
            attempt=batch.attempt,
            outcome="success" if decision is None else decision.outcome,
            rows=batch.rows,
            started_at=started_at,
            duration_ms=duration_ms,
            error_type=None if error is None else type(error).__name__,
            error=None if error is None else str(error)[:_LONGEST_ERROR],
            reason=None if decision is None else decision.reason,
        )
        _say(result, error if error is not refusal else None)
        return result, decision

    def _decide(
        self, batch: Batch, receipt: Receipt, error: BaseException, refusal: MatadorError | None
    ) -> Decision:
        if refusal is not None:
            return SendToDeadLetters("undeliverable", str(refusal))
        subscriber = self.subscriber.subscriber
        docket = Docket(
            event_key=self.subscriber.event.key,
            target_subscriber=subscriber.name,
            created_at=datetime.now(UTC),
            attempts=batch.attempt,
            importance=subscriber.importance,
        )
        envelope: Envelope[Any] = Envelope(f"{subscriber.name}/{batch.id}", None, docket)
        return self.subscriber.retry.decide(
            RetryContext(
                envelope=envelope,
                error=error,
                subscriber=subscriber,
                receipt=receipt,
                random=random.random(),
            )
        )


def _keep_nothing(batch_id: int, state: BatchState) -> None:
    """Keep no state."""


def is_stopped(frame: DataFrame) -> bool:
    """Whether the Spark application of a DataFrame is gone: then errors are not of the batch."""
    spark: Any = frame.sparkSession
    try:
        if is_connect(spark):
            return bool(spark.is_stopped)
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - Java itself is gone
        return True


def _say(result: BatchResult, error: BaseException | None) -> None:
    what = f"{result.subscriber}: batch {result.batch_id}, {result.rows} rows"
    if result.outcome == "success":
        log.info("%s: done in %.1f s", what, result.duration_ms / 1000)
    else:
        log.error(
            "%s: attempt %d failed (%s: %s): %s, %s",
            what,
            result.attempt,
            result.error_type,
            result.error,
            result.outcome,
            result.reason,
            exc_info=loggable(error),
        )
