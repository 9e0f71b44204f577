"""Keeps the tables volume, health and triage up to date.

Each update counts the files that were added to ``events`` and ``deliveries`` since the last one, as
their logs say, and adds the counts to the rows of the same days. The versions counted so far are in
the same commit as the rows. So an update that is killed or repeated counts nothing twice, and two
updates at the same time do not disturb each other.

If another program has removed or changed rows, such as by a DELETE, the days of these rows are
counted again, with the rows that are there now. So are all dead letters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from pyspark.sql import SparkSession

from matador.spark.aggregates import triage, windows
from matador.spark.aggregates.windows import NOTHING, WINDOW, Counts, add_up
from matador.spark.runtime.arrow import Schema, Table, compute, ipc_bytes, ipc_table, pa
from matador.spark.runtime.executors import run_tasks
from matador.spark.tables import layout
from matador.spark.tables.delta import PARTITION, Changes, CommitConflictError, DataFile, DeltaTable
from matador.spark.tables.layout import Layout
from matador.spark.tables.parquet_writer import FileWriter, day_name, day_number, stored_rows
from matador.storage import Storage
from matador.storage.files import groups

log = logging.getLogger("matador.lake")

TABLES: Final[dict[str, Schema]] = {
    "volume": windows.VOLUME,
    "health": windows.HEALTH,
    "triage": triage.TRIAGE,
}
SOURCES: Final = {
    "volume": ("events", "deliveries"),
    "health": ("deliveries",),
    "triage": ("deliveries",),
}
_COLUMNS: Final = {
    source: pa.schema([layout.TABLES[source].field(name) for name in dict.fromkeys(names)])
    for source, names in (
        ("events", windows.EVENT_COLUMNS),
        ("deliveries", [*windows.DELIVERY_COLUMNS, *triage.DEAD_LETTER_COLUMNS]),
    )
}
_FEW_BYTES = 16 * 1024 * 1024  # counted in this process: a Spark job would take longer
_BYTES_A_TASK = 64 * 1024 * 1024
_TIMES: Final = {"events": "recorded_at", "deliveries": "started_at"}
"""The times that rows are counted at."""


class Aggregates:
    """The aggregates of a lake. Any number of processes may update them."""

    def __init__(self, lake: Layout, spark: Callable[[], SparkSession]) -> None:
        self._layout = lake
        self._spark = spark

    def table(self, name: str) -> DeltaTable:
        """One of the tables."""
        storage, columns = self._layout.storage, TABLES[name]
        return DeltaTable(storage, name, columns, partitioned=name != "triage")

    def read(self, name: str, columns: Sequence[str] | None = None) -> Table:
        """The rows of a table, as they are now."""
        try:
            return self.table(name).open(create=False).read(columns or TABLES[name].names)
        except FileNotFoundError:
            return TABLES[name].empty_table()

    def update(self) -> int:
        """Count new files; returns their number."""
        sources: dict[str, DeltaTable] = {}
        for name in ("events", "deliveries"):
            source = self._layout.table(name)
            if source.exists():
                sources[name] = source.open()
        counted: dict[tuple[str, int, int], Counted] = {}
        return max((self._update(name, sources, counted) for name in TABLES), default=0)

    def _update(
        self,
        name: str,
        sources: Mapping[str, DeltaTable],
        counted: dict[tuple[str, int, int], Counted],
    ) -> int:
        table = self.table(name).open()
        while True:
            found: list[Counted] = []
            versions: dict[str, int] = {}
            for source in (sources[one] for one in SOURCES[name] if one in sources):
                since = table.transaction(_application(source.name)) or 0
                if source.version < since:  # another process has counted more
                    source.refresh()
                if source.version > since:
                    which = source.name, since, source.version
                    if which not in counted:
                        counted[which] = self._count_since(source, since)
                    found.append(counted[which])
                    versions[_application(source.name)] = source.version
            files = sum(one.files for one in found)
            if not versions:
                return 0
            try:
                if files:
                    self._add(table, found, versions, sources)
                else:
                    table.commit((), (), versions)  # a compaction: nothing to count
                return files
            except CommitConflictError:
                continue  # another process counted the same files; check for others

    def _add(
        self,
        table: DeltaTable,
        found: Sequence[Counted],
        versions: Mapping[str, int],
        sources: Mapping[str, DeltaTable],
    ) -> None:
        """Add counts to a table, day by day."""
        add: list[DataFile] = []
        again = set[int]().union(*(one.again for one in found))
        if table.name == "triage":
            before = table.read(TABLES["triage"].names)
            if again:
                source = sources["deliveries"]
                rows = triage.replaced_groups(before, self.count(source, source.files()).groups)
            else:
                rows = triage.merge_groups(before, [one.groups for one in found])
            add.append(_written(table, rows, None))
            table.commit(add, table.files(), versions)
            return
        counts = add_up([one.counts for one in found])
        if again:
            whole = [
                self._count_days(sources[s], again) for s in SOURCES[table.name] if s in sources
            ]
            counts = add_up([counts.of_days(again, inside=False), *whole])
        new = _rows(table.name, counts)
        days = windows.days_of(new)
        for day in np.unique(days).tolist():
            rows = new.filter(pa.array(days == day))
            there = compute.field(PARTITION) == pa.scalar(day, pa.int32()).cast(pa.date32())
            before = table.read(TABLES[table.name].names, there)
            if before.num_rows and day not in again:
                rows = _merged(table.name, before, rows)
            add.append(_written(table, rows, day_name(day)))
        changed = {one.date for one in add} | set(map(day_name, again))
        table.commit(add, [one for one in table.files() if one.date in changed], versions)

    def _count_since(self, source: DeltaTable, since: int) -> Counted:
        changes = source.changes(since)
        if changes is None:
            log.warning(
                "the log of %s no longer has all versions after %d: counting what is there",
                source.name,
                since,
            )
            changes = Changes(source.files() if since == 0 else [], [], [])
        counted = self.count(source, changes.added)
        others = [*changes.removed, *changes.rewritten]
        if not others:
            return counted
        # Attempts are counted on the days when they began, and may be recorded on a later one.
        again = set(self.count(source, others).counts.days())
        again.update(day_number(one.date) for one in others if one.date is not None)
        files = counted.files + len(others)
        return Counted(counted.counts, counted.groups, files, frozenset(again))

    def _count_days(self, source: DeltaTable, days: Collection[int]) -> Counts:
        """Count everything that happened on some days, however much later it was recorded."""
        first, last = day_name(min(days)), max(days)
        files = [
            one
            for one in source.files()
            if one.date is None
            or (one.date >= first and _first_day(one, _TIMES[source.name]) <= last)
        ]
        return self.count(source, files).counts.of_days(days)

    def count(self, source: DeltaTable, files: Sequence[DataFile], length: int = WINDOW) -> Counted:
        """Count the rows of files of ``events`` or ``deliveries``."""
        tasks = [*groups(files, lambda one: one.size, _BYTES_A_TASK)]
        work = partial(_count, source.storage, source.name, tasks, length)
        few = sum(one.size for one in files) <= _FEW_BYTES
        if few:
            answers = [work(number) for number in range(len(tasks))]
        else:
            answers = run_tasks(self._spark(), work, len(tasks))
        parts = [ipc_table(answer) for answer in answers]
        if source.name == "events":
            made = [Counts(one[0], NOTHING.attempts, NOTHING.times) for one in parts]
        else:
            made = [Counts(NOTHING.sent, one[0], one[1]) for one in parts]
        grouped = [one[2] for one in parts if len(one) > 2]
        merged = triage.merge_groups(triage.TRIAGE.empty_table(), grouped)
        return Counted(add_up(made), merged, len(files))


class Counted:
    """The counts and the dead letters of some files, and days to count again as a whole."""

    def __init__(
        self, counts: Counts, groups: Table, files: int, again: frozenset[int] = frozenset()
    ) -> None:
        self.counts = counts
        self.groups = groups
        self.files = files
        self.again = again


def _application(source: str) -> str:
    """The name of the transaction that says which version of a source is counted."""
    return f"matador.{source}"


def _first_day(file: DataFile, column: str) -> float:
    """The first day with rows of a file; if it is not known, that of any file."""
    least = file.least(column)
    return -math.inf if least is None else least.timestamp() // 86_400


def _rows(table: str, counts: Counts) -> Table:
    return windows.to_volume(counts) if table == "volume" else windows.to_health(counts)


def _merged(table: str, before: Table, rows: Table) -> Table:
    if table == "volume":
        return windows.add_volume([before, rows])
    both = [windows.from_health(before), windows.from_health(rows)]
    return windows.to_health(add_up(both))


def _written(table: DeltaTable, rows: Table, day: str | None) -> DataFile:
    writer = FileWriter(table.storage, table.columns, day)
    writer.write(rows.cast(table.columns))
    return writer.close()


# -- tasks --------------------------------------------------------------------------------------


def _count(
    storage: Storage, source: str, tasks: Sequence[Sequence[DataFile]], length: int, which: int
) -> bytes:
    """Count the rows of some files; the answer has one table of counts or three."""
    counts: list[Counts] = []
    dead: list[Table] = []
    columns = _COLUMNS[source]
    for file in tasks[which]:
        try:
            opened = storage.reader(file.path)
        except FileNotFoundError:
            log.error("%s was deleted before it was counted: %d rows", file.path, file.rows)
            continue
        with opened as content:
            for rows in stored_rows(content, columns):
                if source == "events":
                    counts.append(windows.count_events(rows, length))
                else:
                    counts.append(windows.count_deliveries(rows, length))
                    dead.append(triage.group_dead_letters(rows))
    total = add_up(counts)
    if source == "events":
        return ipc_bytes([total.sent])
    return ipc_bytes(
        [
            total.attempts,
            total.times,
            triage.merge_groups(triage.TRIAGE.empty_table(), dead),
        ]
    )
