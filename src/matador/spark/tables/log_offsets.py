"""How far a lake has read a log: offsets, in the same transactions as the rows.

They are application transactions of the table ``events``: one for each partition of a log that was
made, with the next offset; and one for each log, with a hash of the id it was made with, which
shows that a log was deleted and recreated.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from matador.errors import ConfigurationError, MessagesDeletedError
from matador.model.log import LogPartition, LogRange
from matador.spark.tables.delta import CommitConflictError, DeltaTable
from matador.transports.base import QueueLog

log = logging.getLogger("matador.lake")

Since: TypeAlias = Literal["earliest", "latest"] | datetime
"""Where to start in a log that the lake has not read before."""

Missing: TypeAlias = Literal["fail", "skip"]
"""What to do if messages were deleted before they were read."""


@dataclass(frozen=True, slots=True)
class LogStart:
    """Where to start, and what to do about deleted messages."""

    since: Since = "earliest"
    missing: Missing = "fail"

    def __post_init__(self) -> None:
        if not isinstance(self.since, datetime) and self.since not in ("earliest", "latest"):
            raise ConfigurationError(
                f"ingest: since must be 'earliest', 'latest' or a time, got {self.since!r}"
            )
        if self.missing not in ("fail", "skip"):
            raise ConfigurationError(
                f"ingest: missing must be 'fail' or 'skip', got {self.missing!r}"
            )


@dataclass(slots=True)
class _Plan:
    """Ranges to read, transactions to commit before that, and the number of deleted messages."""

    ranges: list[LogRange] = field(default_factory=list[LogRange])
    begun: dict[str, int] = field(default_factory=dict[str, int])
    missed: int = 0


class LogOffsets:
    """The offsets of one lake. Follows what other processes commit."""

    def __init__(self, events: DeltaTable, source: QueueLog, start: LogStart) -> None:
        self._table = events
        self._source = source
        self._start = start
        self._version = -1
        self._known: dict[str, int | None] = {}

    def ranges(self, partitions: Sequence[LogPartition]) -> tuple[list[LogRange], int]:
        """The ranges to read, and the number of messages that were deleted unread.

        The starts of logs that are new to the lake are stored, so that another ingest continues
        from there.

        Raises:
            MessagesDeletedError: messages were deleted unread, and the options do not allow that.
        """
        while True:
            self._refresh()
            plan = self._plan(partitions)
            try:
                if plan.begun:
                    self._table.commit((), (), plan.begun)
                    self._refresh()
            except CommitConflictError:
                continue  # another process may have begun with it
            return plan.ranges, plan.missed

    def _plan(self, partitions: Sequence[LogPartition]) -> _Plan:
        plan = _Plan()
        new = [one for one in partitions if self._value(_log_key(one)) is None]
        starts = self._first_offsets(new)
        for one in partitions:
            offset = self._value(_partition_key(one))
            mark = self._value(_log_key(one))
            if mark != _mark(one):
                plan.begun[_log_key(one)] = _mark(one)
            if mark is None and offset is None:
                begin = plan.begun[_partition_key(one)] = starts[one]
            elif offset is None:
                if mark != _mark(one):
                    self._note_gone(
                        one, "it was deleted and recreated, perhaps before all of it was ingested"
                    )
                # One that was added later has been there from its beginning.
                begin = self._within(plan, one, 0)
                plan.begun[_partition_key(one)] = begin
            else:
                begin = self._within(plan, one, offset)
            plan.ranges.append(LogRange(one, begin, one.end))
        return plan

    def _within(self, plan: _Plan, one: LogPartition, offset: int) -> int:
        """The offset to continue from."""
        if one.start <= offset <= one.end:
            return offset
        if offset < one.start:
            self._note_gone(one, f"offsets {offset} to {one.start - 1} were deleted unread")
            plan.missed += one.start - offset
        else:
            self._note_gone(one, f"it ends at {one.end}, but was read up to {offset}")
        plan.begun[_partition_key(one)] = one.start
        return one.start

    def _note_gone(self, one: LogPartition, why: str) -> None:
        text = f"{one.queue!r}, partition {one.number}: {why}"
        if self._start.missing == "fail":
            raise MessagesDeletedError(
                f'{text}; to skip them, ingest with missing="skip" (--missing skip)'
            )
        log.warning("%s; the ingest continues at %d", text, one.start)

    def _first_offsets(self, new: Sequence[LogPartition]) -> dict[LogPartition, int]:
        since = self._start.since
        if since == "earliest":
            return {one: one.start for one in new}
        if since == "latest":
            return {one: one.end for one in new}
        return dict(zip(new, self._source.offsets_at(new, since), strict=True)) if new else {}

    def _value(self, key: str) -> int | None:
        if key not in self._known:
            self._known[key] = self._table.transaction(key)
        return self._known[key]

    def _refresh(self) -> None:
        self._table.refresh()
        if self._table.version != self._version:
            self._version = self._table.version
            self._known = {}


def progress(table: DeltaTable, done: Iterable[tuple[LogPartition, int]]) -> Mapping[str, int]:
    """The transactions that say how far partitions are read; none goes back."""
    found: dict[str, int] = {}
    for partition, offset in done:
        key = _partition_key(partition)
        if offset > (table.transaction(key) or 0):
            found[key] = offset
    return found


def _log_key(one: LogPartition) -> str:
    return f"matador.log:{one.home}"


def _partition_key(one: LogPartition) -> str:
    return f"matador.log:{one.home}/{one.made}/{one.number}"


def _mark(one: LogPartition) -> int:
    digest = hashlib.blake2b(one.made.encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1  # a transaction has 63 bits
