"""``Lake``: the tables of the data pipeline in one folder, and all operations on them."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from matador.errors import ConfigurationError, StorageLockedError
from matador.events.app import Matador, SyncMatador
from matador.jobs import Queue
from matador.loading import load_target
from matador.model.event import EventType
from matador.model.options import Seconds
from matador.observe.paths import local_path
from matador.spark.aggregates.health import WINDOW
from matador.spark.aggregates.reconcile import Reconciliation, depths_of, reconcile
from matador.spark.aggregates.store import Aggregates
from matador.spark.replay.job_redrive import redrive_jobs
from matador.spark.replay.redrive import Missing, RedriveResult, redrive
from matador.spark.replay.replay import (
    AnyApp,
    AnyTarget,
    Progress,
    ReplayOptions,
    ReplayResult,
    backfill,
    replay,
    replay_jobs,
)
from matador.spark.replay.selection import Choice
from matador.spark.report import Report
from matador.spark.report.findings import find
from matador.spark.tables.ingest import Ingest, IngestOptions, IngestProgress, IngestResult
from matador.spark.tables.layout import TABLES
from matador.spark.tables.maintenance import (
    TARGET,
    CompactResult,
    ExpireResult,
    compact,
    expire,
)
from matador.spark.tables.read_only_sql import check_query, without_variables
from matador.spark.tables.reader import LakeTables

_NO_NAME = re.compile(r"\W")


class Lake(LakeTables):
    """Events and deliveries as tables, in a folder of plain Parquet.

    With a ``schema``, ingest checks payloads against their types. Any number of processes may read;
    only one may write at a time, another gets ``StorageLockedError``.

    Example:
        >>> lake = Lake("lake/", schema=schema)
        >>> lake.ingest("journal/").events
        1000
        >>> lake.events(OrderPlaced).where("data.amount > 100").show()
    """

    def ingest(
        self,
        journal: str | Path,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
        interval: float = 1.0,
        batch_size: int = 512 * 1024 * 1024,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestResult:
        """Add the new records of a journal. Every row is added once, however often this is killed.

        With ``follow`` it continues, looking every ``interval`` seconds, until ``stop`` is set or
        Ctrl-C is pressed. A batch reads ``batch_size`` bytes of the journal; ``progress`` is called
        after each.

        Raises:
            ConfigurationError: the folder does not exist, an option is invalid, or executors cannot
                import the payload types of the schema.
            StorageLockedError: another process is writing to this lake.
            ClusterError: executors could not read some segments. All others are ingested; these
                are left for the next ingest.
        """
        folder = local_path(journal, "journal")
        options = IngestOptions(
            follow, stop or threading.Event(), interval, batch_size, progress=progress
        )
        return Ingest(self.spark, self.layout, self.schema, options).run(folder)

    def compact(self, *, target_size: int = TARGET) -> CompactResult:
        """Merge small files into files of about ``target_size`` bytes.

        A query that started before may fail if it opens a merged file: run it again.

        Raises:
            ConfigurationError: ``target_size`` is not positive.
            StorageLockedError: another process is writing to this lake.
        """
        return compact(self.spark, self.layout, target_size, self._aggregates().state.through)

    def expire(self, older_than: timedelta | datetime) -> ExpireResult:
        """Remove rows that were recorded longer ago, or before that time, for good.

        Volume, health and triage still count them.

        Raises:
            ConfigurationError: the time has no time zone.
            StorageLockedError: another process is writing to this lake.
        """
        self._aggregates()
        return expire(self.spark, self.layout, older_than)

    def volume(self, window: Seconds = WINDOW) -> DataFrame:
        """Sent, handled, retried, dead-lettered, discarded: counts per subscriber and window."""
        return self._aggregates().volume(window)

    def health(self, window: Seconds = WINDOW) -> DataFrame:
        """Rates, and percentiles of waiting and running times, per subscriber and window."""
        return self._aggregates().health(window)

    def triage(self) -> DataFrame:
        """The dead letters, grouped by error signature."""
        return self._aggregates().triage()

    def reconcile(
        self,
        app: Matador | SyncMatador | None = None,
        *,
        depths: Mapping[str, int] | None = None,
    ) -> Reconciliation:
        """Check that sent = handled + dead-lettered + discarded + waiting, per subscriber.

        With an application (not started, or its running ``app.sync()``), or with ``depths`` by
        queue, the number of waiting messages is compared with that of the broker.
        """
        known = depths if app is None else depths_of(app)
        return reconcile(self.events(), self.deliveries(), depths=known)

    def replay(
        self,
        app: AnyTarget,
        *,
        event: type[Any] | str | EventType | None = None,
        subscriber: str | None = None,
        name: str | None = None,
        where: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        to: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        replay_id: str | None = None,
        replays: bool = False,
        progress: Progress | None = None,
    ) -> ReplayResult:
        """Send events again, each to its original subscriber only, unless ``to`` says otherwise;
        or, given a job queue, add its jobs again.

        The messages are new, marked as replays, with the id of the original in the metadata. A
        second call with the same ``replay_id`` resumes an interrupted replay, and sends nothing
        twice where ``transport.capabilities.once`` is true. Jobs keep their options, but run at
        once; elsewhere than on SQLite, one may be added twice if it has completed and is forgotten.

        Args:
            app: the application, or the ``matador.jobs.Queue``. Given by reference
                (``module:attribute``), the executors load it and send in parallel; given as an
                object (or its running ``app.sync()``), it sends from the driver.
            event: only this event, by class or key; then ``where`` can use its fields.
            name: only jobs of this name.
            where: an SQL predicate, such as ``data.amount > 100``.
            since, until: when they were sent; text is ISO 8601, in UTC by default.
            to: another subscriber, another queue, or ``all`` for every subscriber.
            rate: the maximum of messages per second.
            dry_run: only count.
            replays: include events that are replays themselves.
            progress: called with the number of messages sent so far, and the total.

        Raises:
            ConfigurationError: an option is invalid.
            EventNotRegisteredError: the application has no such event.
            StorageLockedError: the same replay is running in another process.
            ClusterError: executors failed in the middle; the same ``replay_id`` resumes.

        Example:
            >>> lake.replay(app, event=OrderPlaced, where="data.amount > 100", dry_run=True).total
            12
            >>> lake.replay(queue, name="welcome", since="2026-11-01").sent
            40
        """
        target = target_of(app)
        if not isinstance(target, Matador | SyncMatador):
            _only_jobs(target, event=event, subscriber=subscriber, to=to)
            jobs = Choice(name, target.name, since, until, where=where, replays=replays)
            options = ReplayOptions(rate, replay_id, progress)
            given = app if isinstance(app, str) else target
            return replay_jobs(self, given, jobs, dry_run=dry_run, options=options)
        _only_events(name)
        choice = Choice(event, subscriber, since, until, where=where, replays=replays)
        options = ReplayOptions(rate, replay_id, progress)
        sender = app if isinstance(app, str) else target
        return replay(self, sender, choice, to=to, dry_run=dry_run, options=options)

    def backfill(
        self,
        app: AnyApp,
        event: type[Any] | str | EventType,
        frame: DataFrame,
        *,
        rate: float | None = None,
        replay_id: str | None = None,
        progress: Progress | None = None,
    ) -> ReplayResult:
        """Publish every row of a DataFrame as an event, to all its subscribers.

        The columns are the fields of the event, or one column ``data`` or ``data_json``; optional
        are ``id``, ``metadata``, ``correlation_id``, ``delay``, ``ordering_key``, ``priority``. It
        can be resumed like ``replay``.

        Example:
            >>> lake.backfill(app, OrderPlaced, spark.read.parquet("old-orders/")).sent
            1000
        """
        options = ReplayOptions(rate, replay_id, progress)
        return backfill(self, app, event, frame, options)

    def redrive(
        self,
        app: AnyTarget,
        *,
        signature: str | None = None,
        event: type[Any] | str | EventType | None = None,
        subscriber: str | None = None,
        name: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        dry_run: bool = False,
        missing: Missing = "leave",
        replay_id: str | None = None,
        progress: Progress | None = None,
    ) -> RedriveResult:
        """Send dead letters back to their queues, selected by their group of ``triage()``.

        Given a job queue, failed jobs wait again with all their attempts; ``name`` selects those
        of one name.

        Each is moved atomically and keeps its id, so an interrupted redrive can be repeated. Dead
        letters that are no longer in the broker, and were not handled since, can be replayed from
        the lake: ``missing="replay"``.

        Example:
            >>> lake.redrive(app, signature="3f2a91c07b5d", subscriber="charge").moved
            17
        """
        target = target_of(app)
        if not isinstance(target, Matador | SyncMatador):
            _only_jobs(target, event=event, subscriber=subscriber)
            jobs = Choice(name, target.name, since, until)
            options = ReplayOptions(None, replay_id, progress)
            given = app if isinstance(app, str) else target
            return redrive_jobs(self, given, jobs, signature, missing, options, dry_run=dry_run)
        _only_events(name)
        choice = Choice(event, subscriber, since, until)
        options = ReplayOptions(None, replay_id, progress)
        sender = app if isinstance(app, str) else target
        return redrive(self, sender, choice, signature, missing, options, dry_run=dry_run)

    def report(self, app: Matador | SyncMatador | None = None) -> Report:
        """A report: health, slowest, failing and growing subscribers, dead letters, reconciliation.

        With an application, the broker is asked what waits, as by ``reconcile``.
        """
        return Report(find(self, self._aggregates(), self.reconcile(app)))

    def refresh(self) -> int:
        """Bring volume, health and triage up to date; returns the number of new batches.

        Reading them does so too, unless another process is doing it.

        Raises:
            StorageLockedError: another process is doing it.
        """
        return Aggregates(self.spark, self.layout).update()

    def sql(self, query: str, *, unrestricted: bool = False) -> DataFrame:
        """Run one SELECT over the tables, by their names. It only reads.

        With a schema, each event is a table too, with the typed columns of ``events(…)``: that of
        ``order.placed`` is ``order_placed``.

        Other tables, files as tables, functions that call Java or read files, scripts, hints and
        all other statements are refused. With ``unrestricted`` the query may do whatever the
        session can: never use it with text from somebody else.

        Raises:
            ConfigurationError: the query is not one SELECT over the tables.

        Example:
            >>> lake.sql("SELECT sum(data.amount) FROM order_placed").show()
        """
        views = self._views()
        with contextlib.nullcontext() if unrestricted else without_variables(self.spark):
            if not unrestricted:
                check_query(self.spark, query, views)
            asked = query.lower()
            for name, frame in views.items():
                if name.lower() in asked:  # some of them take a while to bring up to date
                    frame().createOrReplaceTempView(name)
            return self.spark.sql(query)

    def _views(self) -> dict[str, Callable[[], DataFrame]]:
        events = () if self.schema is None else self.schema.events
        return {
            **{_NO_NAME.sub("_", one.key): partial(self.events, one) for one in events},
            **{table: partial(self.table, table) for table in TABLES},
            "volume": self.volume,
            "health": self.health,
            "triage": self.triage,
        }

    def _aggregates(self) -> Aggregates:
        """The aggregates, up to date unless another process is updating them."""
        with contextlib.suppress(StorageLockedError):
            self.refresh()
        return Aggregates(self.spark, self.layout)


def target_of(app: AnyTarget) -> Matador | SyncMatador | Queue:
    """What is replayed to: the object itself, or that of the reference."""
    return load_target(app) if isinstance(app, str) else app


def _only_jobs(queue: Queue, **given: object) -> None:
    for option, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"{option}={value!r} is for events, but {queue!r} is a job queue; select jobs with "
                f"name, where, since and until"
            )


def _only_events(name: str | None) -> None:
    if name is not None:
        raise ConfigurationError(
            f"name={name!r} is for the jobs of a queue; select events with event and subscriber"
        )
