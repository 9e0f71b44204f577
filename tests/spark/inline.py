"""Lakes without Java: the work of the executors is done in this process, with the files as ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from matador.spark.tables import ingest, maintenance, staging
from matador.spark.tables.ingest import Ingest, IngestOptions, IngestResult
from matador.spark.tables.layout import Layout
from matador.spark.tables.maintenance import TARGET, CompactResult, ExpireResult


class _Context:
    defaultParallelism = 2  # noqa: N815 - Spark's name


class _Session:
    sparkContext = _Context()  # noqa: N815 - Spark's name


SESSION = cast("SparkSession", _Session())


def run_here(spark: object, work: Callable[[int], bytes], count: int) -> list[bytes]:
    """What ``run_tasks`` does, one after the other."""
    return [work(number) for number in range(count)]


class InlineLake:
    """A lake that is written in this process."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout = Layout(path)
        for module in (ingest, staging, maintenance):
            monkeypatch.setattr(module, "run_tasks", run_here)

    def ingest(self, journal: Path, **options: Any) -> IngestResult:
        return Ingest(SESSION, self.layout, None, IngestOptions(**options)).run(journal)

    def compact(self, target_size: int = TARGET) -> CompactResult:
        return maintenance.compact(SESSION, self.layout, target_size)

    def expire(self, older_than: datetime) -> ExpireResult:
        return maintenance.expire(SESSION, self.layout, older_than)
