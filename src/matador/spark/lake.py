"""``Lake``: the tables of a data pipeline in one folder, and what can be done with them."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from matador.errors import StorageLockedError
from matador.events.app import SyncMatador
from matador.events.application import Application
from matador.model.event import EventType
from matador.model.options import Seconds
from matador.observe.paths import local_path
from matador.spark.aggregates import store as aggregates
from matador.spark.aggregates.health import WINDOW
from matador.spark.aggregates.reconcile import Reconciliation, depths_of, reconcile
from matador.spark.replay.redrive import DeadChoice, Missing, RedriveResult, redrive
from matador.spark.replay.replay import (
    AnyApp,
    Progress,
    ReplayOptions,
    ReplayResult,
    backfill,
    replay,
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

    With a ``schema``, payloads are checked against their types when they are ingested, and
    ``events(OrderPlaced)`` has typed columns. Any number of processes may read; one at a time
    writes, and another one that tries gets ``StorageLockedError``.

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
        """Add what is new in a journal. Every row is added once, however often this is killed.

        With ``follow`` it goes on, looking every ``interval`` seconds, until ``stop`` is set or it
        is interrupted (Ctrl-C). A batch reads ``batch_size`` bytes of the journal; ``progress`` is
        called after each.

        Raises:
            ConfigurationError: there is no such folder, an option cannot be, or executors cannot
                import the payload types of the schema.
            StorageLockedError: another process writes to this lake.
            ClusterError: segments that are there could not be read by Spark's workers. All others
                are in; these are left for the next ingest.
        """
        folder = local_path(journal, "journal")
        options = IngestOptions(
            follow, stop or threading.Event(), interval, batch_size, progress=progress
        )
        return Ingest(self.spark, self.layout, self.schema, options).run(folder)

    def compact(self, *, target_size: int = TARGET) -> CompactResult:
        """Merge small files into files of about ``target_size`` bytes. See ``maintenance``.

        Raises:
            StorageLockedError: another process writes to this lake.
        """
        return compact(self._refreshed(), self.layout, target_size)

    def expire(self, older_than: timedelta | datetime) -> ExpireResult:
        """Remove rows recorded longer ago than that, or before that time. They never come back.

        Volume, health and triage go on counting them.

        Raises:
            StorageLockedError: another process writes to this lake.
        """
        return expire(self._refreshed(), self.layout, older_than)

    def volume(self, window: Seconds = WINDOW) -> DataFrame:
        """How many were sent, handled, retried, dead-lettered, per subscriber and window."""
        return aggregates.read_volume(self._refreshed(), self.layout, window)

    def health(self, window: Seconds = WINDOW) -> DataFrame:
        """Rates, and percentiles of waiting and running times, per subscriber and window."""
        return aggregates.read_health(self._refreshed(), self.layout, window)

    def triage(self) -> DataFrame:
        """The dead letters in groups, one for each error signature."""
        return aggregates.read_triage(self._refreshed(), self.layout)

    def reconcile(
        self,
        app: Application | SyncMatador | None = None,
        *,
        depths: Mapping[str, int] | None = None,
    ) -> Reconciliation:
        """Check that sent = handled + dead-lettered + discarded + waiting, per subscriber.

        With an application (not started, or its running ``app.sync()``), or with ``depths`` by
        queue, what should wait is compared with what the broker has.
        """
        known = depths if app is None else depths_of(app)
        return reconcile(self.events(), self.deliveries(), depths=known)

    def replay(
        self,
        app: AnyApp,
        *,
        event: type[Any] | str | EventType | None = None,
        subscriber: str | None = None,
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
        """Send events again, each to its original subscriber only, unless ``to`` says otherwise.

        The messages are new ones, marked as replays and with the id of their original in the
        metadata. A replay that was interrupted goes on when it is called again with its
        ``replay_id``, and sends nothing twice where ``transport.capabilities.once`` says so.

        Args:
            app: the application; by its reference (``module:attribute``) the executors load it and
                send in parallel, as an object (or its running ``app.sync()``) it sends from here.
            event: only this event, by class or key; ``where`` can use its fields then.
            where: an SQL predicate, such as ``data.amount > 100``.
            since, until: when they were sent; a text is ISO 8601, in UTC unless it says.
            to: another subscriber, another queue, or ``all`` for every subscriber.
            rate: messages a second, at most.
            dry_run: only count.
            replays: those that are replays themselves, too.
            progress: told how many were sent so far, and of how many.

        Raises:
            ConfigurationError: an option that cannot be.
            EventNotRegisteredError: the application has no such event.
            StorageLockedError: the same replay is running in another process.
            ClusterError: executors failed in the middle; the same ``replay_id`` goes on.

        Example:
            >>> lake.replay(app, event=OrderPlaced, where="data.amount > 100", dry_run=True).total
            12
        """
        choice = Choice(
            event=event,
            subscriber=subscriber,
            where=where,
            since=since,
            until=until,
            replays=replays,
        )
        options = ReplayOptions(rate=rate, replay_id=replay_id, progress=progress)
        return replay(self, app, choice, to=to, dry_run=dry_run, options=options)

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

        The columns are the fields of the event, or one column ``data`` or ``data_json``; besides
        there may be ``id``, ``metadata``, ``correlation_id``, ``delay``, ``ordering_key``,
        ``priority``. Interrupted, it goes on like ``replay``.

        Example:
            >>> lake.backfill(app, OrderPlaced, spark.read.parquet("old-orders/")).sent
            1000
        """
        options = ReplayOptions(rate=rate, replay_id=replay_id, progress=progress)
        return backfill(self, app, event, frame, options)

    def redrive(
        self,
        app: AnyApp,
        *,
        signature: str | None = None,
        event: type[Any] | str | EventType | None = None,
        subscriber: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        dry_run: bool = False,
        missing: Missing = "leave",
        replay_id: str | None = None,
        progress: Progress | None = None,
    ) -> RedriveResult:
        """Send dead letters back to their queues, chosen by their group of ``triage()``.

        Each is moved in one step and keeps its id, so an interrupted redrive can be called again.
        Those that are not in the broker any more, and were never handled, can be replayed from the
        lake: ``missing="replay"``.

        Example:
            >>> lake.redrive(app, signature="3f2a91c07b5d", subscriber="charge").moved
            17
        """
        choice = DeadChoice(
            signature=signature, event=event, subscriber=subscriber, since=since, until=until
        )
        options = ReplayOptions(replay_id=replay_id, progress=progress)
        return redrive(self, app, choice, dry_run=dry_run, missing=missing, options=options)

    def report(self, app: Application | SyncMatador | None = None) -> Report:
        """Health, slowest, failing, growing, dead letters and the accounts: to show, or as a page.

        An application is asked for what waits, as by ``reconcile``.
        """
        self._refreshed()
        return Report(find(self, self.reconcile(app)))

    def refresh(self) -> int:
        """Bring volume, health and triage up to date; how many batches were new.

        Reading them does so too, unless another process is at it.

        Raises:
            StorageLockedError: another process is at it.
        """
        return aggregates.update(self.spark, self.layout)

    def sql(self, query: str, *, unrestricted: bool = False) -> DataFrame:
        """Run a query over the tables by their names: one SELECT, which only reads.

        With a schema, each event is a table too, with the typed columns of ``events(…)``: that of
        ``order.placed`` is ``order_placed``.

        Other tables, files as tables, functions that call Java or read files, scripts, hints and
        every other statement are refused. With ``unrestricted`` the query may do whatever the
        session can: never give it a text that came from somebody else.

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
                if name.lower() in asked:  # bringing some of them up to date takes a while
                    frame().createOrReplaceTempView(name)
            return self.spark.sql(query)

    def _views(self) -> dict[str, Callable[[], DataFrame]]:
        events = () if self.schema is None else self.schema.events
        return {
            **{_NO_NAME.sub("_", one.key): partial(self.events, one) for one in events},
            **{table: partial(self.table, table) for table in TABLES},
            **self._aggregates(),
        }

    def _aggregates(self) -> dict[str, Callable[[], DataFrame]]:
        return {"volume": self.volume, "health": self.health, "triage": self.triage}

    def _refreshed(self) -> SparkSession:
        with contextlib.suppress(StorageLockedError):  # then what there is must do
            self.refresh()
        return self.spark
