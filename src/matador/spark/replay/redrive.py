"""Sends dead letters back to their queues, selected by their error signature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from matador.errors import ConfigurationError
from matador.events.app import Matador, SyncMatador
from matador.model.options import suggestion
from matador.runtime.dead_letters import Moved, Place, Selection
from matador.spark.aggregates.queue_depths import connected
from matador.spark.aggregates.triage import with_signature
from matador.spark.replay.ledger import ReplayCount
from matador.spark.replay.replay import (
    AnyApp,
    Progress,
    ReplayOptions,
    ReplayResult,
    application_of,
    replay,
)
from matador.spark.replay.selection import Choice
from matador.spark.tables.reader import LakeTables
from matador.transports.base import Browsing

_MOST_SUGGESTED = 100

Outcome: TypeAlias = tuple[list[Place], Moved, set[str]]
"""The positions of the letters, the result of moving them, and those already in a work queue."""

Missing: TypeAlias = Literal["leave", "replay"]
"""What to do with dead letters that are in the lake but no longer in the broker."""


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """The result of a redrive, or of a dry run.

    Attributes:
        chosen: the dead letters of the lake that were selected.
        found: how many of them are in the broker now.
        counts: those found, per event and subscriber.
        moved: how many were sent back to their queues.
        held: how many another process is working on.
        failed: the ids of those that could not be moved, and why.
        missing: how many are no longer in the broker, and were not handled since.
        replayed: the result of replaying the missing ones, if requested.
        dry_run: nothing was moved.
    """

    chosen: int
    found: int
    moved: int = 0
    held: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    missing: int = 0
    replayed: ReplayResult | None = None
    dry_run: bool = False
    counts: tuple[ReplayCount, ...] = ()


def redrive(
    lake: LakeTables,
    app: AnyApp,
    choice: Choice,
    signature: str | None,
    missing: Missing,
    options: ReplayOptions,
    *,
    dry_run: bool,
) -> RedriveResult:
    known = application_of(app)
    dead = dead_letters(lake, known, choice, signature)
    ids = frozenset(str(row.id) for row in dead.select("id").distinct().toLocalIterator())
    if not ids:
        return RedriveResult(0, 0, dry_run=dry_run)
    move = partial(_move, ids=ids, dry_run=dry_run, progress=options.progress)
    places, moved, waiting = connected(app if isinstance(app, SyncMatador) else known, move)
    found = {place.id for place in places}
    gone = _gone(lake, dead, found | waiting)
    count = gone.count()
    replayed = None
    if missing == "replay" and count:
        replayed = replay(
            lake, app, Choice(replays=True), dry_run=dry_run, options=options, among=gone
        )
    return RedriveResult(
        len(ids),
        len(found),
        moved.done,
        moved.held,
        tuple(moved.failed),
        count,
        replayed,
        dry_run,
        counts_of(lake, dead, found),
    )


def dead_letters(
    lake: LakeTables, app: Matador, choice: Choice, signature: str | None
) -> DataFrame:
    """The selected deliveries that ended in dead letters."""
    rows = lake.deliveries().where("outcome = 'dead-letter' and way = 'event'")
    if choice.event is not None:
        rows = rows.where(rows.event_key.isin(list(app.schema.event(choice.event).keys)))
    return with_group(choice.restrict(rows, "started_at"), signature)


def with_group(rows: DataFrame, signature: str | None) -> DataFrame:
    """The dead letters of a group of ``triage()``, or all.

    Raises:
        ConfigurationError: none of them is of that group.
    """
    if signature is None:
        return rows
    signed = with_signature(rows)
    chosen = signed.where(signed.signature == signature)
    if chosen.isEmpty():
        groups = signed.select("signature").distinct().limit(_MOST_SUGGESTED).collect()
        known = [str(row.signature) for row in groups]
        raise ConfigurationError(
            f"no dead letter has the signature {signature!r}"
            f"{suggestion(signature, known)}; lake.triage() lists them"
        )
    return chosen


def counts_of(lake: LakeTables, dead: DataFrame, found: set[str]) -> tuple[ReplayCount, ...]:
    """The dead letters that are in the broker now, per event and subscriber."""
    if not found:
        return ()
    groups = dead.join(frame_of(lake, found), "id", "left_semi").groupBy("event_key", "subscriber")
    rows = groups.agg(sql.count_distinct("id")).orderBy("event_key", "subscriber").collect()
    return tuple(ReplayCount(str(row[0]), str(row[1]), int(row[2])) for row in rows)


def frame_of(lake: LakeTables, ids: set[str]) -> DataFrame:
    """Ids as a DataFrame."""
    spark: Any = lake.spark  # the types of createDataFrame need those of pandas
    return spark.createDataFrame([(one,) for one in sorted(ids)], "id string")


def _gone(lake: LakeTables, dead: DataFrame, found: set[str]) -> DataFrame:
    """The ids of dead letters that are in no queue, and were not handled since."""
    there = frame_of(lake, found)
    handled = lake.deliveries().where("outcome = 'success'").select("id")
    replayed = lake.events().where("replay_of is not null").select(sql.col("replay_of").alias("id"))
    ids = dead.select("id").distinct()
    for others in (there, handled, replayed):
        ids = ids.join(others, "id", "left_anti")
    return ids


async def _move(
    app: Matador, ids: frozenset[str], dry_run: bool, progress: Progress | None
) -> Outcome:
    letters = app.dead_letters
    places = await letters.choose(Selection(exactly=ids))
    waiting = await _waiting(app, ids - {place.id for place in places})
    if dry_run:
        return places, Moved(), waiting
    done = 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, len(places))

    moved = await letters.redrive(places, patience=letters.patience, progress=report)
    return places, moved, waiting


async def _waiting(app: Matador, ids: frozenset[str]) -> set[str]:
    """The letters that are already back in a work queue, because they were redriven before."""
    transport = app.transport
    if not ids or not isinstance(transport, Browsing):
        return set()
    found: set[str] = set()
    for queue in app.topology.queues:
        async for stored in transport.browse(app.topology.full_name(queue.name)):
            if stored.id in ids:
                found.add(stored.id)
    return found
