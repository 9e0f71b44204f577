"""F36: readers of four engines beside ingest, compaction, retention and vacuum.

No reader sees an error, a row twice, or fewer rows than before. Rows that are old enough to expire
are not counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable as AnyTable
from pyspark.sql import SparkSession
from tests.spark.inline import InlineLake
from tests.spark.journal_files import NOW, segment, sent

from matador.spark import Lake
from matador.spark.tables.delta import DataFile
from matador.spark.tables.reader import FileFilter

LATER = NOW + 20_000_000
LIMIT = datetime.fromtimestamp(LATER / 1_000_000, UTC)
BATCHES, ROWS = 24, 20

Counts = tuple[int, int]
"""Rows, and distinct ids."""


def by_spark(lake: Lake) -> Counts:
    ids = lake.events().where(f"recorded_at >= '{LIMIT.isoformat()}'").select("id")
    found = ids.selectExpr("count(*)", "count(DISTINCT id)").collect()[0]
    return found[0], found[1]


def by_polars(lake: Lake) -> Counts:
    ids = polars.scan_delta(lake.path / "events").filter(polars.col("recorded_at") >= LIMIT)
    found = ids.select("id").collect()
    return found.height, found.n_unique()


def by_duckdb(lake: Lake) -> Counts:
    table: Any = AnyTable(lake.path / "events")
    rows = table.to_pyarrow_dataset()
    question = "SELECT count(*), count(DISTINCT id) FROM rows WHERE recorded_at >= $1"
    assert rows is not None
    found = duckdb.execute(question, [LIMIT]).fetchall()[0]
    return found[0], found[1]


def by_pyarrow(lake: Lake) -> Counts:
    rows = lake.layout.table("events").open().read(["id", "recorded_at"]).to_pylist()
    ids = [row["id"] for row in rows if row["recorded_at"] >= LIMIT]
    return len(ids), len(set(ids))


def test_no_reader_is_disturbed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, failures = tmp_path / "journal", list[BaseException]()
    here = InlineLake(tmp_path / "lake", monkeypatch)
    segment(journal, "a", [sent(1, recorded_at=LATER), sent(2)])
    here.ingest(journal)

    def work() -> None:
        for number in range(BATCHES):
            first = 100 + number * ROWS
            new = [sent(first + one, recorded_at=LATER) for one in range(ROWS)]
            segment(
                journal, f"b{number:02}", [*new, new[0], sent(first + ROWS - 1, recorded_at=NOW)]
            )
            here.ingest(journal)
            if number % 3 == 2:
                here.compact()
            if number % 4 == 3:
                here.expire(LIMIT - timedelta(seconds=1))
            if number % 6 == 5:
                nobodys = tmp_path / "lake" / "events" / f"part-{number}.parquet"
                nobodys.touch()
                os.utime(nobodys, (time.time() - 7200, time.time() - 7200))
                assert here.layout.table("events").open().vacuum(1) == 1

    def worker() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    lake = Lake(tmp_path / "lake", spark=spark)
    readers: list[Callable[[Lake], Counts]] = [by_spark, by_polars, by_duckdb, by_pyarrow]
    seen = dict.fromkeys(readers, 0)
    writer = threading.Thread(target=worker)
    writer.start()
    while writer.is_alive():
        for read in readers:
            rows, distinct = read(lake)
            assert rows == distinct, read
            assert rows >= seen[read], read
            seen[read] = rows
    writer.join()
    assert failures == []
    assert {read(lake) for read in readers} == {(1 + BATCHES * ROWS, 1 + BATCHES * ROWS)}


def test_files_that_cannot_have_what_is_wanted_are_not_opened() -> None:
    def file(**bounds: tuple[str, str]) -> DataFile:
        least = {name: low for name, (low, _) in bounds.items()}
        most = {name: high for name, (_, high) in bounds.items()}
        return DataFile("a.parquet", 1, 1, None, {"minValues": least, "maxValues": most})

    one = file(
        event_key=("order.paid", "order.placed"),
        created_at=("2026-11-10T00:00:00.000000Z", "2026-11-12T23:59:59.000000Z"),
    )
    day = partial(datetime, 2026, 11, tzinfo=UTC)
    for wanted, keeps in (
        (FileFilter(), True),
        (FileFilter(("order.paid",)), True),
        (FileFilter(("order.pending", "user.joined")), True),  # it may have this one
        (FileFilter(("user.joined",)), False),
        (FileFilter((), None, None), False),
        (FileFilter(None, since=day(12)), True),
        (FileFilter(None, since=day(13)), False),
        (FileFilter(None, until=day(10)), False),
        (FileFilter(None, until=day(11)), True),
        (FileFilter(("order.paid",), day(13), day(14)), False),
    ):
        assert wanted.keeps(one) is keeps, wanted
    assert FileFilter(("user.joined",), day(1), day(2)).keeps(file()), "nothing is known of it"
