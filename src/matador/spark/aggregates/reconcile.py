"""Reconciliation: sent = handled + dead-lettered + discarded + waiting?

Every envelope that was sent is in exactly one of these states, according to its deliveries. What
does not fit is listed by id: deliveries of envelopes without a record of sending, envelopes that
were handled more than once, and, if the broker is asked, more waiting envelopes than it has. A
replayed envelope counts as its own; the original counts as ``sent again``.

Jobs and remote calls are accounted for in the same way, by their ids in their queues. Messages of
pub/sub are left out: nobody knows how many queues get one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.errors import ConfigurationError, QueueNotFoundError, UnsupportedError
from matador.events.app import Matador, SyncMatador
from matador.spark.aggregates.windows import WHO
from matador.transports.base import Measuring

T = TypeVar("T")

Problem: TypeAlias = Literal["waiting", "not-sent", "handled-twice"]

MOST_LINES: Final = 1000
_MOST_ROWS: Final = 10 * MOST_LINES  # several queues may serve one subscriber
_PLACE = (*WHO, "queue")
_LINE = (
    *("sent", "handled", "dead_lettered", "discarded", "waiting"),
    *("replayed", "sent_again", "handled_twice", "not_sent"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """The counts of one subscriber of one event, or of the jobs of one name in one queue.

    Of the sent envelopes, ``replayed`` are replays; of the dead-lettered ones, ``sent_again`` were
    replayed since. ``not_sent`` have deliveries but no record of sending: it happened in a process
    without a journal, or is not ingested yet.
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
    way: str = "event"

    @property
    def adds_up(self) -> bool:
        """Whether every envelope is accounted for, and nothing else."""
        ended = self.handled + self.dead_lettered + self.discarded
        return self.sent == ended + self.waiting and self.not_sent == 0


@dataclass(frozen=True, slots=True)
class Odd:
    """An envelope to check, and why."""

    problem: Problem
    id: str
    event_key: str
    subscriber: str
    queue: str
    way: str = "event"


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """What should wait in a queue, and what the broker has; None if it was not asked."""

    queue: str
    waiting: int
    depth: int | None

    @property
    def missing(self) -> int:
        """How many should wait but do not. (More may wait than recorded so far.)"""
        return 0 if self.depth is None else max(0, self.waiting - self.depth)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The counts by subscriber, the queues, and a bounded list of what does not add up."""

    lines: tuple[Line, ...] = ()
    queues: tuple[QueueCheck, ...] = ()
    odd: tuple[Odd, ...] = field(default=(), repr=False)

    @property
    def adds_up(self) -> bool:
        """Whether every line adds up and the broker has what should wait."""
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
    """Account for all envelopes of a lake.

    ``depths`` has the number of messages in each queue of the broker, by full name. For each
    problem of a subscriber up to ``most_ids`` ids are listed, oldest first.
    """
    states = _states(events, deliveries)
    # One pass for all counts; the ids are looked for only if there is something odd to list.
    rows = _counted(states)
    odd = any(row["waiting"] or row["not_sent"] or row["handled_twice"] for row in rows)
    return Reconciliation(
        _lines(rows), _queues(rows, depths or {}), _odd(states, most_ids) if odd else ()
    )


def _states(events: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row for each message, with its state."""
    ended = (
        _with_key(deliveries)
        .groupBy("key")
        .agg(
            F.min("id").alias("d_id"),
            F.count_if(F.col("outcome") == "success").alias("successes"),
            # By time: a redriven message starts again with attempt 1.
            F.max_by("outcome", F.struct("started_at", "attempt")).alias("last"),
            *[F.min(name).alias(f"d_{name}") for name in _PLACE],
            F.min("started_at").alias("d_at"),
        )
    )
    # Several jobs may have one id, one after the other.
    copies = F.count("*").over(Window.partitionBy("key")).alias("copies")
    known = _with_key(events).select(
        "key", "id", *_PLACE, "recorded_at", "replay_id", "replay_of", copies
    )
    again = (
        _with_key(known.where(F.col("replay_of").isNotNull()).drop("key"), "replay_of")
        .select("key", F.lit(True).alias("again"))
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
        known.join(ended, "key", "full_outer")
        .join(again, "key", "left")
        .select(
            *[F.coalesce(name, f"d_{name}").alias(name) for name in ("id", *_PLACE)],
            F.coalesce("recorded_at", "d_at").alias("at"),
            state.alias("state"),
            F.col("replay_id").isNotNull().alias("replayed"),
            F.coalesce("again", F.lit(False)).alias("again"),
            (F.coalesce("successes", F.lit(0)) > F.coalesce("copies", F.lit(1))).alias("twice"),
        )
    )


def _with_key(rows: DataFrame, id_: str = "id") -> DataFrame:
    """Rows with what identifies their message: the id of an event, or the id in its queue.

    Messages of pub/sub are left out.
    """
    own = F.concat_ws("\x1f", "way", "subscriber", id_)
    key = F.when(F.col("way") == "event", F.col(id_)).otherwise(own)
    return rows.where(F.col("way") != "message").withColumn("key", key)


def _counted(states: DataFrame) -> list[dict[str, Any]]:
    """The counts by event, subscriber and queue."""
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
        states.groupBy(*_PLACE)
        .agg(*[F.count_if(counts[name]).alias(name) for name in _LINE])
        .orderBy(F.desc("sent"), *_PLACE)
        .limit(_MOST_ROWS)
        .collect()
    )
    return [row.asDict() for row in rows]


def _lines(rows: Sequence[Mapping[str, Any]]) -> tuple[Line, ...]:
    totals: dict[tuple[str, str, str], Counter[str]] = {}
    for row in rows:
        total = totals.setdefault((row["way"], row["event_key"], row["subscriber"]), Counter())
        total.update({name: row[name] for name in _LINE})
    lines = [
        Line(event_key, subscriber, way=way, **{name: total[name] for name in _LINE})
        for (way, event_key, subscriber), total in totals.items()
    ]
    lines.sort(key=lambda line: (-line.sent, line.event_key, line.subscriber, line.way))
    return tuple(lines[:MOST_LINES])


def _queues(rows: Sequence[Mapping[str, Any]], depths: Mapping[str, int]) -> tuple[QueueCheck, ...]:
    waiting: Counter[str] = Counter()
    for row in rows:
        waiting[row["queue"]] += row["waiting"]
    checks = [QueueCheck(name, count, depths.get(name)) for name, count in sorted(waiting.items())]
    return tuple(checks[:MOST_LINES])


def _odd(states: DataFrame, most: int) -> tuple[Odd, ...]:
    problem = (
        F.when(F.col("state") == "not_sent", "not-sent")
        .when(F.col("twice"), "handled-twice")
        .when(F.col("state") == "waiting", "waiting")
    )
    columns = ("problem", "id", *_PLACE)
    of_one_kind = Window.partitionBy("problem", *WHO).orderBy("at", "id")
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


async def queue_depths(app: Matador) -> dict[str, int]:
    """The unfinished messages in each queue of a connected application, by full name."""
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        raise UnsupportedError(f"{transport.name} does not report how many messages wait")
    found: dict[str, int] = {}
    for queue in app.topology.queues:
        name = app.topology.full_name(queue.name)
        with contextlib.suppress(QueueNotFoundError):
            found[name] = (await transport.depth(name)).total
    return found


def depths_of(app: Matador | SyncMatador) -> dict[str, int]:
    """The same without an event loop: of an application that is not started, or its ``sync()``.

    Raises:
        ConfigurationError: the application is running.
        UnsupportedError: the broker does not report them.
    """
    if isinstance(app, Matador) and app.state.status not in ("new", "stopped"):
        raise ConfigurationError(
            "the application is running: pass its `app.sync()`, or depths=await queue_depths(app)"
        )
    return connected(app, queue_depths)


def connected(app: Matador | SyncMatador, ask: Callable[[Matador], Coroutine[Any, Any, T]]) -> T:
    """Run ``ask`` in the loop of an ``app.sync()``, or with a connection of its own."""
    if isinstance(app, SyncMatador):
        return app.wait(ask(app.app))
    producer = app.producer()

    async def run() -> T:
        await producer.transport.connect()
        try:
            return await ask(producer)
        finally:
            await producer.transport.disconnect()

    # In another thread: the caller may have an event loop running.
    with ThreadPoolExecutor(1, thread_name_prefix="matador-connected") as thread:
        return thread.submit(asyncio.run, run()).result()
