"""Reconciliation: does it add up? Sent = handled + dead-lettered + discarded + waiting.

Every envelope that was sent is in exactly one of these states, by what its deliveries say. What
does not fit is named by its ids: deliveries of envelopes that nobody is known to have sent,
envelopes that were handled more than once, and, when the broker is asked, more waiting ones than
the broker has. A replayed envelope is one of its own; what it was made from says ``sent again``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.errors import ConfigurationError, QueueNotFoundError, UnsupportedError
from matador.events.app import SyncMatador
from matador.events.application import Application
from matador.transports.base import Measuring

Problem: TypeAlias = Literal["waiting", "not-sent", "handled-twice"]

MOST_LINES: Final = 1000
_LINE = (
    *("sent", "handled", "dead_lettered", "discarded", "waiting"),
    *("replayed", "sent_again", "handled_twice", "not_sent"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """The account of one subscriber of one event.

    ``replayed`` of the sent ones are replays of others; ``sent_again`` of the dead-lettered ones
    were replayed since. ``not_sent`` have deliveries, but no record that they were sent: another
    process without a journal, or records that are not ingested yet.
    """

    event_key: str
    subscriber: str
    sent: int
    handled: int
    dead_lettered: int
    discarded: int
    waiting: int
    replayed: int
    sent_again: int
    handled_twice: int
    not_sent: int

    @property
    def adds_up(self) -> bool:
        """Is every envelope accounted for, and no account without an envelope?"""
        ended = self.handled + self.dead_lettered + self.discarded
        return self.sent == ended + self.waiting and self.not_sent == 0


@dataclass(frozen=True, slots=True)
class Odd:
    """An envelope to look at, and why."""

    problem: Problem
    id: str
    event_key: str
    subscriber: str
    queue: str


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """What should wait in a queue, and what the broker has in it; None: it was not asked."""

    queue: str
    waiting: int
    depth: int | None

    @property
    def missing(self) -> int:
        """How many should wait but do not. (There may be more than should: not recorded yet.)"""
        return 0 if self.depth is None else max(0, self.waiting - self.depth)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The accounts, the queues, and a bounded list of what does not add up."""

    lines: tuple[Line, ...] = ()
    queues: tuple[QueueCheck, ...] = ()
    odd: tuple[Odd, ...] = field(default=(), repr=False)

    @property
    def adds_up(self) -> bool:
        """Does every line add up, and does the broker have what should wait?"""
        return all(line.adds_up for line in self.lines) and not any(
            check.missing for check in self.queues
        )

    def total(self, name: str) -> int:
        """The sum of one column of the lines."""
        return sum(getattr(line, name) for line in self.lines)


def reconcile(
    events: DataFrame,
    deliveries: DataFrame,
    *,
    depths: Mapping[str, int] | None = None,
    most_ids: int = 20,
) -> Reconciliation:
    """Balance the accounts of all envelopes in a lake.

    ``depths`` says how many messages each queue has at the broker, by its full name. Of each
    problem of a subscriber up to ``most_ids`` ids are listed, the oldest first.
    """
    states = _states(events, deliveries).cache()  # asked three times, for a line, a queue, an id
    try:
        return Reconciliation(_lines(states), _queues(states, depths or {}), _odd(states, most_ids))
    finally:
        states.unpersist()


def _states(events: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row an envelope: what became of it."""
    ended = deliveries.groupBy("id").agg(
        F.count_if(F.col("outcome") == "success").alias("successes"),
        # By time: a message that is redriven begins again with its first attempt.
        F.max_by("outcome", F.struct("started_at", "attempt")).alias("last"),
        *[F.min(name).alias(f"d_{name}") for name in ("event_key", "subscriber", "queue")],
        F.min("started_at").alias("d_at"),
    )
    known = events.select(
        "id", "event_key", "subscriber", "queue", "recorded_at", "replay_id", "replay_of"
    )
    again = (
        known.where(F.col("replay_of").isNotNull())
        .select(F.col("replay_of").alias("id"), F.lit(True).alias("again"))
        .distinct()
    )
    is_sent = F.col("recorded_at").isNotNull()
    state = (
        F.when(~is_sent, "not_sent")
        .when(F.col("successes") > 0, "handled")
        .when(F.col("last") == "dead-letter", "dead_lettered")
        .when(F.col("last") == "discard", "discarded")
        .otherwise("waiting")
    )
    return (
        known.join(ended, "id", "full_outer")
        .join(again, "id", "left")
        .select(
            "id",
            *[
                F.coalesce(name, f"d_{name}").alias(name)
                for name in ("event_key", "subscriber", "queue")
            ],
            F.coalesce("recorded_at", "d_at").alias("at"),
            state.alias("state"),
            F.col("replay_id").isNotNull().alias("replayed"),
            F.coalesce("again", F.lit(False)).alias("again"),
            (F.coalesce("successes", F.lit(0)) > 1).alias("twice"),
        )
    )


def _lines(states: DataFrame) -> tuple[Line, ...]:
    state = F.col("state")
    is_sent = state != "not_sent"
    dead = state == "dead_lettered"
    counts = {
        "sent": is_sent,
        **{name: state == name for name in ("handled", "dead_lettered", "discarded", "waiting")},
        "replayed": F.col("replayed") & is_sent,
        "sent_again": F.col("again") & dead,
        "handled_twice": F.col("twice"),
        "not_sent": ~is_sent,
    }
    rows = (
        states.groupBy("event_key", "subscriber")
        .agg(*[F.count_if(counts[name]).alias(name) for name in _LINE])
        .orderBy(F.desc("sent"), "event_key", "subscriber")
        .limit(MOST_LINES)
        .collect()
    )
    return tuple(Line(**row.asDict()) for row in rows)


def _queues(states: DataFrame, depths: Mapping[str, int]) -> tuple[QueueCheck, ...]:
    rows = (
        states.groupBy("queue")
        .agg(F.count_if(F.col("state") == "waiting").alias("waiting"))
        .orderBy("queue")
        .limit(MOST_LINES)
        .collect()
    )
    return tuple(QueueCheck(row.queue, row.waiting, depths.get(row.queue)) for row in rows)


def _odd(states: DataFrame, most: int) -> tuple[Odd, ...]:
    problem = (
        F.when(F.col("state") == "not_sent", "not-sent")
        .when(F.col("twice"), "handled-twice")
        .when(F.col("state") == "waiting", "waiting")
    )
    columns = ("problem", "id", "event_key", "subscriber", "queue")
    of_one_kind = Window.partitionBy("problem", "event_key", "subscriber").orderBy("at", "id")
    rows = (
        states.withColumn("problem", problem)
        .where(F.col("problem").isNotNull())
        .withColumn("place", F.row_number().over(of_one_kind))
        .where(F.col("place") <= most)
        .orderBy("problem", "at", "id")
        .select(*columns)
        .limit(MOST_LINES)
        .collect()
    )
    return tuple(Odd(**row.asDict()) for row in rows)


async def queue_depths(app: Application) -> dict[str, int]:
    """Messages that are not finished in each queue of a connected application, by full name.

    Raises:
        UnsupportedError: the broker cannot tell.
    """
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        raise UnsupportedError(f"{transport.name} cannot say how many messages wait")
    found: dict[str, int] = {}
    for queue in app.topology.queues:
        name = app.topology.full_name(queue.name)
        with contextlib.suppress(QueueNotFoundError):
            found[name] = (await transport.depth(name)).total
    return found


def depths_of(app: Application | SyncMatador) -> dict[str, int]:
    """The same for code without an event loop: of one that is not started, or a running ``sync``.

    Raises:
        UnsupportedError: the broker cannot tell.
    """
    if isinstance(app, SyncMatador):
        return app.wait(queue_depths(app.app))
    if app.state.status not in ("new", "stopped"):
        raise ConfigurationError(
            "the application is running: give its `app.sync()`, or depths=await queue_depths(app)"
        )
    return asyncio.run(_connected_depths(app))


async def _connected_depths(app: Application) -> dict[str, int]:
    await app.transport.connect()
    try:
        return await queue_depths(app)
    finally:
        await app.transport.disconnect()
