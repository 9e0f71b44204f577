"""Appends parts to a table, without the rows that the table has already, or had until it expired.

The rows are compared and committed for one version of the table. If another process commits in
between, they are compared again with what it has added. So a row is never added twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession

from matador.spark.runtime.executors import run_tasks
from matador.spark.tables.dedup_index import KeyIndex, sorted_order
from matador.spark.tables.delta import CommitConflictError, DeltaTable
from matador.spark.tables.ingest_tasks import Rewritten, Unwanted, as_micros, leave_out
from matador.spark.tables.keys import Keys
from matador.spark.tables.layout import Layout
from matador.spark.tables.parquet_writer import Part

log = logging.getLogger("matador.lake")

BATCH = "matador.batch"
"""The application whose transactions count the batches of a table."""

EXPIRED = "matador.expired"
"""The application whose transaction says what has expired: microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Appended:
    """How many rows were added, were there already, or are older than what has expired."""

    rows: int = 0
    repeated: int = 0
    expired: int = 0


class Appender:
    """Appends to one table, and keeps the index of its keys. Belongs to one thread."""

    def __init__(self, spark: SparkSession, layout: Layout, table: str) -> None:
        self._spark = spark
        self._lake = layout.storage
        self._table = layout.table(table).open()
        self._index = KeyIndex(layout.index(table), self._table)

    def append(
        self,
        parts: Sequence[Part],
        transactions: Callable[[DeltaTable], Mapping[str, int]] = lambda _: {},
    ) -> Appended:
        """Commit the parts, in one step. Of equal rows, the first is kept.

        ``transactions`` are committed in the same step, also without rows; they are computed for
        each version of the table that is tried. Without rows and transactions there is no commit.
        """
        repeated = expired = 0
        self._table.refresh()
        while True:
            before = sum(one.file.rows for one in parts)
            parts, old, keys = self._new(parts)
            after = sum(one.file.rows for one in parts)
            repeated += before - after - old
            expired += old
            together = dict(transactions(self._table))
            if not parts and not together:
                return Appended(0, repeated, expired)
            if parts:
                together[BATCH] = (self._table.transaction(BATCH) or 0) + 1
            try:
                version = self._table.commit([one.file for one in parts], (), together)
            except CommitConflictError as error:
                log.info("another process was faster; comparing again (%s)", error)
                continue
            self._index.add(version, keys)
            return Appended(after, repeated, expired)

    def _new(self, parts: Sequence[Part]) -> tuple[list[Part], int, Keys]:
        """The parts without unwanted rows, how many of these have expired, and the sorted keys."""
        self._index.catch_up()
        repeated, keys = _find_repeated(self._index, parts)
        limit = self._table.transaction(EXPIRED)
        unwanted: list[Unwanted] = []
        kept: list[Part] = []
        for part, mask in zip(parts, repeated, strict=True):
            least = part.file.least("recorded_at")
            is_old = limit is not None and (least is None or as_micros(least) < limit)
            if mask.all():
                continue  # an unreferenced file
            if is_old or mask.any():
                bits = np.packbits(mask).tobytes()
                unwanted.append(Unwanted(part, bits, limit if is_old else None))
            else:
                kept.append(part)
        expired = 0
        for answer in run_tasks(
            self._spark, partial(leave_out, self._lake, unwanted), len(unwanted)
        ):
            rewritten = msgspec.msgpack.decode(answer, type=Rewritten)
            expired += rewritten.expired
            if rewritten.part.file.rows:
                kept.append(rewritten.part)
        if expired:
            _, keys = _find_repeated(self._index, kept)
        return kept, expired, keys


def _find_repeated(
    index: KeyIndex, parts: Sequence[Part]
) -> tuple[list[npt.NDArray[np.bool_]], Keys]:
    """Which rows of the parts are repeated, a mask for each part; and the sorted keys of others."""
    keys: Keys = np.concatenate([np.empty((2, 0), np.uint64), *(one.keys for one in parts)], axis=1)
    order = sorted_order(keys)
    keys = keys[:, order]
    repeated = np.zeros(len(order), np.bool_)
    repeated[1:] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    repeated |= index.repeated(keys)
    by_row = np.zeros(len(order), np.bool_)
    by_row[order] = repeated
    ends = np.cumsum([one.file.rows for one in parts])
    return np.split(by_row, ends[:-1]) if parts else [], keys[:, ~repeated]
