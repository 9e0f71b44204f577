"""``@dataframe_subscriber``: a function that receives many events at once, as a typed DataFrame.

``runner`` runs it.
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
from matador.model.signature import HandlerContext
from matador.model.subscriber import Subscriber, subscriber
from matador.policy.retry import Outcome, RetryPolicy, StandardRetryPolicy

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Batch(HandlerContext):
    """The second argument of a DataFrame subscriber that takes two.

    Attributes:
        id: the number of the batch. After a crash the same rows come again under the same number,
            so that a write with this key (overwriting a partition, say) contains them once.
        attempt: the number of this attempt, from 1.
        redelivered: the batch was started before, and its progress is unknown.
        rows: the number of rows.
    """

    id: int
    attempt: int
    redelivered: bool
    rows: int


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one attempt to handle a batch, in the terms of deliveries."""

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
    """A DataFrame subscriber. Calling it calls the function, for unit tests."""

    event: EventType
    subscriber: Subscriber[Any]
    retry: RetryPolicy
    copy_for: str | None
    replays: bool

    @property
    def name(self) -> str:
        """Its name, which is also the name of its folder."""
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
    """Make a function that takes a DataFrame a subscriber of an event.

    The function takes ``(events)`` or ``(events, batch)``. ``events`` has the columns of the lake's
    ``events`` table, with the typed payload as ``data``; ``batch`` is a ``Batch``.

    Args:
        event: the payload class.
        name: its name in reports and of its progress; by default that of the function, with dashes.
        idempotent: whether a batch may run again that was running when the process died. With
            ``no`` it becomes a dead letter instead.
        retry: decides about a batch that failed; the standard policy by default.
        copy_for: take the envelopes for this subscriber. An event is sent once to each of its
            subscribers; by default those copies are one row.
        replays: take replayed events too.

    Raises:
        InvalidEventError: the class is not an event.
        ConfigurationError: an option is invalid.

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
                f"invalid name {made.name!r} of a DataFrame subscriber: it names a folder too; use "
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
