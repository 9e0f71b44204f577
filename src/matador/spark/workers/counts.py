"""What a slice of a Spark worker reports: a few rows, however many messages it has handled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from matador.events.hooks import DecodeFailure, Hooks, WorkerError, WorkerSuccess
from matador.spark.runtime.arrow import RecordBatch, pa, struct_type
from matador.spark.runtime.outcomes import outcome_of

NOT_STARTED = "not-started"
"""The outcome of a slice whose application could not be started."""

EMPTY = "empty"
"""The outcome of a slice that ended because its queues were empty."""

_MOST_ROWS = 1000  # of a slice: messages may name any event
_OTHERS = "(others)"
_LONGEST_ERROR = 500

_ARROW = pa.schema(
    [
        ("worker", pa.string()),
        ("queue", pa.string()),
        ("event_key", pa.string()),
        ("subscriber", pa.string()),
        ("outcome", pa.string()),
        ("count", pa.int64()),
        ("total_ms", pa.float64()),
        ("max_ms", pa.float64()),
        ("error", pa.string()),
    ]
)


SCHEMA = struct_type(_ARROW)
"""The columns of the rows, as Spark has them."""


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """How many messages of one queue, event and subscriber had one outcome.

    Attributes:
        worker: the host and process that handled them; empty in a sum over several.
        outcome: ``success``, ``retry``, ``dead-letter`` or ``discard``; of a whole slice
            ``not-started`` or ``empty``.
        total_ms, max_ms: the total and the longest running time of their callbacks.
        error: an example of the errors.
    """

    worker: str
    queue: str
    event_key: str
    subscriber: str
    outcome: str
    count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    error: str | None = None

    @property
    def mean_ms(self) -> float:
        """The average running time of a callback."""
        return self.total_ms / self.count if self.count else 0.0

    def plus(self, other: OutcomeRow) -> OutcomeRow:
        """The sum of both, with the names of this one."""
        return replace(
            self,
            count=self.count + other.count,
            total_ms=self.total_ms + other.total_ms,
            max_ms=max(self.max_ms, other.max_ms),
            error=self.error or other.error,
        )


def as_batch(rows: Iterable[OutcomeRow]) -> RecordBatch:
    """The rows as Arrow, in the order of ``SCHEMA``."""
    given = list(rows)
    columns = {one.name: [getattr(row, one.name) for row in given] for one in fields(OutcomeRow)}
    return pa.RecordBatch.from_pydict(columns, schema=_ARROW)


def summed(rows: Iterable[OutcomeRow]) -> tuple[OutcomeRow, ...]:
    """The rows of several workers, added up by queue, event, subscriber and outcome."""
    found: dict[tuple[str, str, str, str], OutcomeRow] = {}
    for row in rows:
        key = (row.queue, row.event_key, row.subscriber, row.outcome)
        before = found.get(key)
        found[key] = replace(row, worker="") if before is None else before.plus(row)
    return tuple(found[key] for key in sorted(found))


class OutcomeCounter(Hooks):
    """Counts the outcomes of messages."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._rows: dict[tuple[str, str, str, str], OutcomeRow] = {}

    def take(self) -> list[OutcomeRow]:
        """The counts since the last call."""
        rows, self._rows = self._rows, {}
        return list(rows.values())

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        self._count(
            event.queue, docket.event_key, docket.target_subscriber, "success", event.duration_ms
        )

    def on_worker_error(self, event: WorkerError) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        self._count(
            event.queue,
            docket.event_key,
            docket.target_subscriber,
            outcome_of(event.decision),
            event.duration_ms,
            event.error,
        )

    def on_decode_error(self, event: DecodeFailure) -> None:
        """See ``Hooks``."""
        ended = "discard" if event.decision is None else outcome_of(event.decision)
        self._count(event.queue, "", "", ended, 0.0, event.error)

    def _count(
        self,
        queue: str,
        event_key: str,
        subscriber: str,
        outcome: str,
        duration_ms: float,
        error: BaseException | None = None,
    ) -> None:
        key = (queue, event_key, subscriber, outcome)
        if key not in self._rows and len(self._rows) >= _MOST_ROWS:
            key = (queue, _OTHERS, _OTHERS, outcome)
        before = self._rows.get(key)
        # Only the first error of a kind is described: the others are counted.
        said = None if error is None or before is not None else describe(error)
        row = OutcomeRow(self._worker, *key, 1, duration_ms, duration_ms, said)
        self._rows[key] = row if before is None else before.plus(row)


def describe(error: BaseException) -> str:
    """An error as one short line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:_LONGEST_ERROR]


def row_of(values: Any) -> OutcomeRow:
    """The row of a Spark ``Row``."""
    return OutcomeRow(**values.asDict())
