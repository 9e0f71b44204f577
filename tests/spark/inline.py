"""Lakes without Java: the work of the executors is done in this process, with the files as ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from matador.events.app import Matador
from matador.model.event import EventType
from matador.model.schema import Schema
from matador.spark.tables import append, ingest, log_ingest, maintenance, release, typed
from matador.spark.tables.ingest import Ingest, IngestOptions, IngestResult
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.log_offsets import LogStart
from matador.spark.tables.maintenance import TARGET, CompactResult, ExpireResult
from matador.spark.tables.release import ReleaseResult
from matador.storage import FolderStorage, Storage

SESSION = cast("SparkSession", None)


def run_here(spark: object, work: Callable[[int], bytes], count: int) -> list[bytes]:
    """What ``run_tasks`` does, one after the other."""
    return [work(number) for number in range(count)]


def two(spark: object) -> int:
    """What ``parallelism`` says."""
    return 2


class TypesHere:
    """What ``event_types`` gives, without pickling."""

    def __init__(self, spark: object, schema: Schema) -> None:
        self._types = {key: one for one in schema.events for key in one.keys}

    def load(self) -> Mapping[str, EventType]:
        return self._types


class InlineLake:
    """A lake that is written in this process."""

    def __init__(
        self,
        path: Path | str,
        monkeypatch: pytest.MonkeyPatch,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.layout = Layout(path, options)
        for module in (ingest, log_ingest, append, maintenance, release, typed):
            monkeypatch.setattr(module, "run_tasks", run_here)
        for module in (ingest, log_ingest):
            monkeypatch.setattr(module, "parallelism", two)
        for module in (ingest, log_ingest, release):
            monkeypatch.setattr(module, "event_types", TypesHere)

    def ingest(self, journal: Path, schema: Schema | None = None, **options: Any) -> IngestResult:
        return self.ingest_from(FolderStorage(str(journal)), schema, **options)

    def ingest_from(
        self, journal: Storage, schema: Schema | None = None, **options: Any
    ) -> IngestResult:
        return Ingest(SESSION, self.layout, schema, IngestOptions(**options)).run(journal)

    def ingest_log(
        self,
        app: Matador,
        queues: Sequence[str] | None = None,
        start: LogStart | None = None,
        **options: Any,
    ) -> IngestResult:
        given: dict[str, Any] = {"batch_size": 500_000, **options}
        made = log_ingest.LogIngest(
            SESSION,
            self.layout,
            app.schema,
            log_ingest.log_source(app),
            start or LogStart(),
            IngestOptions(**given),
        )
        return made.run(log_ingest.queues_of(app, queues))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.layout.table(table).open().read().to_pylist()

    def publish(self, schema: Schema) -> dict[str, int]:
        return typed.publish(SESSION, self.layout, schema)

    def release(self, schema: Schema) -> ReleaseResult:
        return release.release(SESSION, self.layout, schema)

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
