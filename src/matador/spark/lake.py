"""``Lake``: the tables of the data pipeline in one folder, and all operations on them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame

from matador.errors import ClusterError, ConfigurationError, TransportError
from matador.events.app import Matador, SyncMatador
from matador.jobs import Queue
from matador.loading import load_target
from matador.model.event import EventType
from matador.model.options import Seconds
from matador.spark.aggregates.queue_depths import depths_of
from matador.spark.aggregates.reconcile import Reconciliation, reconcile, states_in
from matador.spark.aggregates.store import TABLES as AGGREGATES
from matador.spark.aggregates.store import Aggregates
from matador.spark.aggregates.windows import (
    WINDOW,
    add_volume,
    from_health,
    to_health,
    whole_window,
)
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
from matador.spark.replay.selection import Choice, moment
from matador.spark.report import Report
from matador.spark.report.findings import find
from matador.spark.runtime.arrow import Table
from matador.spark.runtime.compat import analyze
from matador.spark.tables.delta import DeltaTable
from matador.spark.tables.ingest import (
    BYTES,
    MESSAGES,
    Ingest,
    IngestOptions,
    IngestProgress,
    IngestResult,
)
from matador.spark.tables.layout import TABLES
from matador.spark.tables.log_ingest import LogIngest, log_source, queues_of
from matador.spark.tables.log_offsets import LogStart, Since
from matador.spark.tables.maintenance import (
    KEEP,
    TARGET,
    CompactResult,
    ExpireResult,
    VacuumResult,
    checked_target,
    compact,
    count_old,
    cutoff_of,
    expire,
    kept_hours,
)
from matador.spark.tables.read_only_sql import check_query, without_variables
from matador.spark.tables.reader import LakeTables, read_table
from matador.spark.tables.release import ReleaseResult, release
from matador.spark.tables.typed import publish, table_name
from matador.storage import ObjectStorage, Storage, open_storage
from matador.storage.paths import remote_url

_REFRESH = 60.0  # seconds between updates of the aggregates in an ingest that goes on


class Lake(LakeTables):
    """Events and deliveries as Delta tables, in one folder.

    With a ``schema``, ingest checks payloads against their types. Any number of processes may read
    and write at the same time.

    Example:
        >>> lake = Lake("lake/", schema=schema)
        >>> lake.ingest("journal/").events
        1000
        >>> lake.events(OrderPlaced).where("data.amount > 100").show()
    """

    def ingest(
        self,
        source: str | Path | Matador | SyncMatador,
        *,
        queues: Sequence[str] | None = None,
        since: datetime | str | None = None,
        missing: Literal["fail", "skip"] | None = None,
        follow: bool = False,
        stop: threading.Event | None = None,
        interval: float = 1.0,
        batch_size: int | None = None,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestResult:
        """Add the new records of a journal, or the new messages of an application on Kafka.

        Every row is added once, even if the ingest is killed or other processes ingest at the same
        time. An event that is in a journal and in Kafka is one row.

        Args:
            source: the folder of a journal; or an application on Kafka, started or not, whose
                topics are read. Payloads are checked against its schema if the lake has none.
            queues: of the application, all by default.
            since: ``earliest`` (the default), ``latest`` or a time (text is ISO 8601, in UTC by
                default): where to begin in topics that the lake has not read before.
            missing: what to do if Kafka has deleted messages that were not read: ``fail`` (the
                default), or ``skip`` to continue with the remaining messages.
            follow: continue until ``stop`` is set or Ctrl-C is pressed.
            interval: seconds between two polls, with ``follow``.
            batch_size: bytes of a journal, or messages of Kafka, that are committed together.
            progress: called after each batch.

        Raises:
            ConfigurationError: the folder does not exist, an option is invalid, the application is
                not on Kafka, or executors cannot import the payload types of the schema.
            ClusterError: executors could not read some segments or topics. All others are ingested;
                these are left for the next ingest.
            MessagesDeletedError: Kafka has deleted messages that were not read.
            TransportError: Kafka cannot be reached.
        """
        report = self._refreshing(progress)
        stop = stop or threading.Event()
        try:
            if isinstance(source, Matador | SyncMatador):
                size = MESSAGES if batch_size is None else batch_size
                options = IngestOptions(follow, stop, interval, size, report)
                start = LogStart(_since(since), missing or "fail")
                app = source if isinstance(source, Matador) else source.app
                names = queues_of(app, queues)
                schema = app.schema if self.schema is None else self.schema
                origin = log_source(app)
                ingest = LogIngest(self.spark, self.layout, schema, origin, start, options)
                result = ingest.run(names)
            else:
                _only_kafka(queues=queues, since=since, missing=missing)
                folder = self._journal(source)
                size = BYTES if batch_size is None else batch_size
                options = IngestOptions(follow, stop, interval, size, report)
                result = Ingest(self.spark, self.layout, self.schema, options).run(folder)
        except (ClusterError, TransportError):
            if self.layout.table("events").exists():
                self.refresh()  # all others are ingested
            raise
        self.refresh()
        return result

    def _journal(self, journal: str | Path) -> Storage:
        """The storage of a journal. One in the lake's store is opened with the same options."""
        here, there = remote_url(self.location, "lake"), remote_url(journal, "journal")
        own = self.layout.storage
        is_same = here is not None and there is not None and here.scheme == there.scheme
        given = own.given if is_same and isinstance(own, ObjectStorage) else None
        return open_storage(journal, "journal", given)

    def _refreshing(
        self, progress: Callable[[IngestProgress], None] | None
    ) -> Callable[[IngestProgress], None]:
        """Report progress, and update the aggregates periodically."""
        last = time.monotonic()

        def report(now: IngestProgress) -> None:
            nonlocal last
            if time.monotonic() - last > _REFRESH:
                self.refresh()
                last = time.monotonic()
            if progress is not None:
                progress(now)

        return report

    def compact(self, *, target_size: int = TARGET) -> CompactResult:
        """Merge small files into files of about ``target_size`` bytes.

        Readers and a running ingest are not disturbed. The merged files stay on disk until
        ``vacuum`` deletes them.

        Raises:
            ConfigurationError: ``target_size`` is not positive.
        """
        checked_target(target_size)
        results = [compact(self.spark, one, target_size) for one in self._delta_tables()]
        return sum(results, CompactResult(0, 0))

    def expire(self, older_than: timedelta | datetime, *, dry_run: bool = False) -> ExpireResult:
        """Remove rows that were recorded longer ago, or before that time, permanently.

        An ingest does not bring them back. Volume, health and triage still count them. With
        ``dry_run``, nothing is removed, and the result is what would be.

        Raises:
            ConfigurationError: the time has no time zone.
        """
        cutoff = cutoff_of(older_than)
        if dry_run:
            old = {name: count_old(self.spark, self.layout.table(name), cutoff) for name in TABLES}
            return ExpireResult(**old)
        self.refresh()
        removed = {name: expire(self.spark, self.layout.table(name), cutoff) for name in TABLES}
        for table in self._typed_tables():
            expire(self.spark, table, cutoff)
        return ExpireResult(**removed)

    def vacuum(self, keep: timedelta = KEEP) -> VacuumResult:
        """Delete files that no version of the last days needs, and leftovers of killed runs.

        A reader may use a version of a table for as long as ``keep``.

        Raises:
            ConfigurationError: ``keep`` is shorter than an hour.
        """
        hours = kept_hours(keep)
        self.refresh()  # it counts files that may be deleted here
        return VacuumResult(sum(one.open().vacuum(hours) for one in self._delta_tables()))

    def publish(self) -> dict[str, int]:
        """Bring the typed tables up to date: one for each event of the schema, for any engine.

        That of ``order.placed`` is in ``typed/order_placed``, with the payload in the columns
        ``data`` and ``before``. Returns the number of rows added to each; rows of days that
        another program has changed in ``events`` are added again. Several processes may call it at
        the same time.

        Raises:
            ConfigurationError: the lake has no schema, or two events have the same table name.

        Example:
            >>> lake.publish()
            {'order_placed': 1000}
        """
        return publish(self.spark, self.layout, self.schema)

    def release(self) -> ReleaseResult:
        """Take events out of quarantine that are valid under the current schema.

        Raises:
            ConfigurationError: the lake has no schema.

        Example:
            >>> lake.release().events
            12
        """
        result = release(self.spark, self.layout, self.schema)
        self.refresh()
        return result

    def volume(self, window: Seconds = WINDOW) -> DataFrame:
        """Sent, handled, retried, dead-lettered, discarded: counts per subscriber and window."""
        length = whole_window(window)
        found = self._aggregates()
        if length == WINDOW:
            return read_table(self.spark, found.table("volume")).drop("date")
        return self._frame(add_volume([found.read("volume")], length))

    def health(self, window: Seconds = WINDOW) -> DataFrame:
        """Rates, and percentiles of waiting and running times, per subscriber and window."""
        length = whole_window(window)
        found = self._aggregates()
        if length == WINDOW:
            return read_table(self.spark, found.table("health")).drop("date")
        return self._frame(to_health(from_health(found.read("health")), length))

    def triage(self) -> DataFrame:
        """The dead letters, grouped by error signature."""
        return read_table(self.spark, self._aggregates().table("triage"))

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
        return reconcile(states_in(self), depths=known)

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
        """Bring volume, health and triage up to date; returns the number of files counted.

        Reading them through this class does so too, and ``ingest`` does it at the end.
        """
        return Aggregates(self.layout, lambda: self.spark).update()

    def sql(self, query: str, *, unrestricted: bool = False) -> DataFrame:
        """Run one SELECT over the tables, by their names. It only reads.

        With a schema, each event is a table too, with the typed columns of ``events(…)``: that of
        ``order.placed`` is ``order_placed``.

        Other tables, files as tables, functions that call Java or read files, scripts, hints and
        all other statements are refused. With ``unrestricted`` the query may do whatever the
        session can: never use it with untrusted text.

        Raises:
            ConfigurationError: the query is not one SELECT over the tables.

        Example:
            >>> lake.sql("SELECT sum(data.amount) FROM order_placed").show()
        """
        views = self._views()
        with contextlib.nullcontext() if unrestricted else without_variables(self.spark):
            if not unrestricted:
                query = check_query(self.spark, query, views)
            asked = query.lower()
            for name, frame in views.items():
                if name.lower() in asked:  # some of them take a while to bring up to date
                    frame().createOrReplaceTempView(name)
            return analyze(self.spark.sql(query))

    def _views(self) -> dict[str, Callable[[], DataFrame]]:
        events = () if self.schema is None else self.schema.events
        return {
            **{table_name(one.key): partial(self.events, one) for one in events},
            **{table: partial(self.table, table) for table in TABLES},
            "volume": self.volume,
            "health": self.health,
            "triage": self.triage,
        }

    def _aggregates(self) -> Aggregates:
        """The aggregates, up to date."""
        self.refresh()
        return Aggregates(self.layout, lambda: self.spark)

    def _delta_tables(self) -> list[DeltaTable]:
        """All tables of the lake that exist."""
        found = Aggregates(self.layout, lambda: self.spark)
        every = [
            *(self.layout.table(name) for name in TABLES),
            *(found.table(name) for name in AGGREGATES),
            self.layout.segments(),
        ]
        return [*(one for one in every if one.exists()), *self._typed_tables()]

    def _typed_tables(self) -> list[DeltaTable]:
        """The typed tables that exist, also those of events that the schema no longer has."""
        storage = self.layout.storage
        names = [f"typed/{one}" for one in storage.folders("typed")]
        names = [one for one in names if "_delta_log" in storage.folders(one)]
        return [DeltaTable.existing(storage, one) for one in names]

    def _frame(self, rows: Table) -> DataFrame:
        spark: Any = self.spark  # the types of createDataFrame need those of pandas
        return spark.createDataFrame(rows)


def target_of(app: AnyTarget) -> Matador | SyncMatador | Queue:
    """The target of a replay: the object itself, or the one that the reference names."""
    return load_target(app) if isinstance(app, str) else app


def _since(given: datetime | str | None) -> Since:
    if given is None or given == "earliest":
        return "earliest"
    return "latest" if given == "latest" else moment(given, "since")


def _only_kafka(**given: object) -> None:
    for option, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"{option}={value!r} is for an application on Kafka, not for a journal"
            )


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
