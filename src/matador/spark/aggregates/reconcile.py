"""Reconciliation: sent = handled + dead-lettered + discarded + waiting?

Every envelope that was sent is in exactly one of these states, according to its deliveries.
Mismatches are listed by id: deliveries of envelopes without a record of sending, envelopes that
were handled more than once, and, if the broker is asked, more waiting envelopes than it has. A
replayed envelope counts as its own; the original counts as ``sent again``.

Jobs and remote calls are accounted for in the same way, by their ids in their queues. Messages of
pub/sub are left out, because the number of receiving queues is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from matador.spark.aggregates.message_states import (
    COUNTS,
    DELIVERY_COLUMNS,
    EVENT_COLUMNS,
    FewMessageStates,
    MessageStates,
)
from matador.spark.aggregates.message_states_spark import ManyMessageStates
from matador.spark.runtime.arrow import Table, pa
from matador.spark.tables.delta import DataFile, DeltaTable
from matador.spark.tables.parquet_writer import stored_rows
from matador.spark.tables.reader import LakeTables, read_files

Problem: TypeAlias = Literal["waiting", "not-sent", "handled-twice"]

MOST_LINES: Final = 1000
_MOST_ROWS: Final = 10 * MOST_LINES  # several queues may serve one subscriber
_FEW_ROWS = 200_000  # computed in this process: Spark would take longer
_FEW_BYTES = 64 * 1024 * 1024  # the same; another writer may not say how many rows there are


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
    """The expected number of waiting messages of a queue, and the number at the broker; None if it
    was not asked."""

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
    states: MessageStates, *, depths: Mapping[str, int] | None = None, most_ids: int = 20
) -> Reconciliation:
    """Account for all messages of a lake.

    ``depths`` has the number of messages in each queue of the broker, by full name. For each
    problem of a subscriber up to ``most_ids`` ids are listed, oldest first.
    """
    # One pass for all counts; ids are only searched if there is a mismatch.
    rows = states.counts(_MOST_ROWS)
    is_odd = any(row["waiting"] or row["not_sent"] or row["handled_twice"] for row in rows)
    odd = states.odd(most_ids, MOST_LINES) if is_odd else []
    return Reconciliation(
        _lines(rows), _queues(rows, depths or {}), tuple(Odd(**one) for one in odd)
    )


def states_in(lake: LakeTables, *, few_rows: int = _FEW_ROWS) -> MessageStates:
    """The states of all messages of a lake. A small lake needs no Spark."""
    tables = [lake.layout.table(name) for name in ("events", "deliveries")]
    files = [_files(one) for one in tables]
    every = [file for some in files for file in some]
    is_small = sum(file.size for file in every) <= _FEW_BYTES
    if is_small and sum(file.rows for file in every) <= few_rows:
        columns = (EVENT_COLUMNS, DELIVERY_COLUMNS)
        return FewMessageStates(*(_rows(*one) for one in zip(tables, files, columns, strict=True)))
    return ManyMessageStates(
        *(read_files(lake.spark, one, some) for one, some in zip(tables, files, strict=True))
    )


def _files(table: DeltaTable) -> list[DataFile]:
    try:
        return table.open(create=False).files()
    except FileNotFoundError:
        return []


def _rows(table: DeltaTable, files: Sequence[DataFile], columns: Sequence[str]) -> Table:
    schema = pa.schema([table.columns.field(name) for name in columns])
    found = [schema.empty_table()]
    for file in files:
        with table.storage.reader(file.path) as source:
            found.extend(stored_rows(source, schema))
    return pa.concat_tables(found)


def _lines(rows: Sequence[Mapping[str, Any]]) -> tuple[Line, ...]:
    totals: dict[tuple[str, str, str], Counter[str]] = {}
    for row in rows:
        total = totals.setdefault((row["way"], row["event_key"], row["subscriber"]), Counter())
        total.update({name: row[name] for name in COUNTS})
    lines = [
        Line(event_key, subscriber, way=way, **{name: total[name] for name in COUNTS})
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
