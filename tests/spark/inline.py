"""Lakes without Java: the work of the executors is done in this process, with the files as ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from matador.spark.tables import append, ingest, maintenance
from matador.spark.tables.ingest import Ingest, IngestOptions, IngestResult
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.maintenance import TARGET, CompactResult, ExpireResult

SESSION = cast("SparkSession", None)


def run_here(spark: object, work: Callable[[int], bytes], count: int) -> list[bytes]:
    """What ``run_tasks`` does, one after the other."""
    return [work(number) for number in range(count)]


def two(spark: object) -> int:
    """What ``parallelism`` says."""
    return 2


class InlineLake:
    """A lake that is written in this process."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout = Layout(path)
        for module in (ingest, append, maintenance):
            monkeypatch.setattr(module, "run_tasks", run_here)
        monkeypatch.setattr(ingest, "parallelism", two)

    def ingest(self, journal: Path, **options: Any) -> IngestResult:
        return Ingest(SESSION, self.layout, None, IngestOptions(**options)).run(journal)

    def compact(self, target_size: int = TARGET) -> CompactResult:
        tables = [self.layout.table(name) for name in TABLES]
        results = [maintenance.compact(SESSION, one, target_size) for one in tables]
        return sum(results, CompactResult(0, 0))

    def expire(self, older_than: datetime) -> ExpireResult:
        removed = {
            name: maintenance.expire(SESSION, self.layout.table(name), older_than)
            for name in TABLES
        }
        return ExpireResult(**removed)
