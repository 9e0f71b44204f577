"""``@dataframe_subscriber``: a function that is given many events at once, as a typed DataFrame.

Here it is only described; ``dataframe_runner`` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pyspark.sql import DataFrame

from matador.errors import ConfigurationError
from matador.model.envelope import Importance
from matador.model.event import EventType, event_type_of
from matador.model.subscriber import Subscriber, subscriber
from matador.observe.journal.records import Outcome
from matador.policy.retry import RetryPolicy, StandardRetryPolicy

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Batch:
    """What a DataFrame subscriber is told of its batch, if it takes a second argument.

    Attributes:
        id: the number of the batch. After a crash the same rows come again under the same number,
            so that a write keyed by it (a partition that is overwritten, say) has them once.
        attempt: which attempt this is, from 1.
        redelivered: it was started before, and nobody knows how far it came.
        rows: how many there are.
    """

    id: int
    attempt: int
    redelivered: bool
    rows: int


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How one attempt to handle a batch ended; the same words as for deliveries."""

    subscriber: str
    event_key: str
    batch_id: int
    attempt: int
    outcome: Outcome
    rows: int
    started_at: datetime
    duration_ms: float
    error_type: str | None = None
    error: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFrameSubscriber:
    """A DataFrame subscriber. Call it to call the function, as a unit test would."""

    event: EventType
    subscriber: Subscriber[Any]
    retry: RetryPolicy
    copy_for: str | None
    replays: bool

    @property
    def name(self) -> str:
        """Its name, which its folder has as well."""
        return self.subscriber.name

    def __call__(self, events: DataFrame, *batch: Batch) -> Any:
        """Call the function directly."""
        return self.subscriber.callback(events, *batch)

    def run(self, events: DataFrame, batch: Batch) -> None:
        """Call the function with as many arguments as it takes."""
        if self.subscriber.takes_context:
            self.subscriber.callback(events, batch)
        else:
            self.subscriber.callback(events)


def dataframe_subscriber(
    event: type[Any],
    *,
    description: str,
    name: str | None = None,
    idempotent: Literal["yes", "no"] = "yes",
    importance: Importance = "should-investigate",
    retry: RetryPolicy | None = None,
    copy_for: str | None = None,
    replays: bool = False,
) -> Callable[[Callable[..., Any]], DataFrameSubscriber]:
    """Declare a function of a DataFrame to be a subscriber of an event.

    The function takes ``(events)`` or ``(events, batch)``. ``events`` has the columns of the lake's
    ``events`` table, with the typed payload as ``data``; ``batch`` is a ``Batch``.

    Args:
        event: the payload class.
        name: with which it is reported, and under which its progress is kept; else that of the
            function, with dashes.
        idempotent: may a batch run again that was running when the process died? With ``no`` it is
            dead-lettered instead.
        retry: what becomes of a batch that failed; the standard policy by default.
        copy_for: take the envelopes for this subscriber. An event is sent once to each of its
            subscribers; without this, those copies are one row.
        replays: take replayed events too.

    Raises:
        InvalidEventError: the class is no event.
        ConfigurationError: an option that cannot be.

    Example:
        >>> @dataframe_subscriber(OrderPlaced, description="Revenue by day.")
        ... def revenue(orders: DataFrame, batch: Batch) -> None:
        ...     days = orders.groupBy(to_date("created_at").alias("day")).agg(sum("data.amount"))
        ...     days.write.mode("overwrite").parquet(f"revenue/batch={batch.id}")
    """
    found = event_type_of(event)

    def declare(function: Callable[..., Any]) -> DataFrameSubscriber:
        made = subscriber(
            description=description, name=name, idempotent=idempotent, importance=importance
        )(function)
        if made.is_async:
            raise ConfigurationError(f"DataFrame subscriber {made.name!r} must not be async")
        if not _NAME.fullmatch(made.name):
            raise ConfigurationError(
                f"DataFrame subscriber {made.name!r}: the name is that of a folder too; use "
                "letters, digits, dots and dashes"
            )
        return DataFrameSubscriber(
            event=found,
            subscriber=made,
            retry=retry if retry is not None else StandardRetryPolicy(),
            copy_for=copy_for,
            replays=replays,
        )

    return declare
