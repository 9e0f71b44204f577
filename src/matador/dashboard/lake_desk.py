"""The lake: its report and replays, for which Spark runs in a thread; queries have processes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from matador.dashboard.audit import AuditLog
from matador.dashboard.lake_query import LakePlace, LakeQueries, explained
from matador.dashboard.options import DashboardOptions
from matador.errors import ConfigurationError, MatadorError
from matador.events.app import Matador
from matador.runtime.threads import Threads
from matador.storage import open_storage

if TYPE_CHECKING:
    from matador.spark import Lake
    from matador.spark.replay.replay import ReplayResult

T = TypeVar("T")

_MOST_KEPT = 20
_STOP_SECONDS = 10.0

ReplayState: TypeAlias = Literal["counting", "counted", "running", "done", "failed"]


@dataclass(slots=True)
class Replay:
    """A replay: counted first, then confirmed, then carried out."""

    id: str
    choice: dict[str, str]
    state: ReplayState = "counting"
    counts: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    total: int = 0
    sent: int = 0
    failed: int = 0
    problem: str | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class LakeDesk:
    """Works on a lake. Spark starts with the first operation, which takes a few seconds."""

    def __init__(self, app: Matador, options: DashboardOptions, audit: AuditLog) -> None:
        assert options.lake is not None
        self._app = app
        self._options = options
        self._storage = open_storage(options.lake, "dashboard: lake", options.storage_options)
        self._audit = audit
        self._thread = Threads(1, "matador-lake")  # never keeps the process from ending
        self._lake: Lake | None = None
        self._started_spark = False
        self._replays: OrderedDict[str, Replay] = OrderedDict()
        self._making: asyncio.Task[None] | None = None
        self._reads = LakePlace.of(options, self.place, app.schema)
        self.queries = LakeQueries(self._reads)
        self.report: str | None = None
        self.report_at: float | None = None
        self.problem: str | None = None

    @property
    def place(self) -> str:
        """The path or URL of the lake."""
        return self._storage.root

    @property
    def is_empty(self) -> bool:
        """Whether it is known that nothing was ingested. Does not contact an object store."""
        return self._storage.is_local and not Path(self.place, "events").is_dir()

    @property
    def replays(self) -> list[Replay]:
        """The replays of this process, the latest first."""
        return list(reversed(self._replays.values()))

    @property
    def is_making_report(self) -> bool:
        """Whether a report is being made."""
        return self._making is not None and not self._making.done()

    def find(self, replay_id: str) -> Replay | None:
        """The replay with that id."""
        return self._replays.get(replay_id)

    async def stop(self) -> None:
        """Stop Spark, if the dashboard started it."""
        await self.queries.stop()
        tasks = [one.task for one in self._replays.values()] + [self._making]
        for task in tasks:
            if task is not None:
                task.cancel()
        lake, self._lake = self._lake, None
        if lake is not None and self._started_spark:
            # In a separate thread: this ends running work, so it must not wait for it.
            stopping = Threads(1, "matador-lake-stop")
            await asyncio.wait([stopping.start(lake.spark.stop)], timeout=_STOP_SECONDS)
            stopping.close()
        self._thread.close()

    def make_report(self) -> None:
        """Start to make a report, unless one is being made."""
        if not self.is_making_report:
            self._making = asyncio.create_task(self._make_report())

    def begin_replay(self, choice: dict[str, str]) -> Replay:
        """Start to count the messages to send. Nothing is sent before ``confirm``."""
        replay = Replay(secrets.token_hex(8), choice)
        self._replays[replay.id] = replay
        while len(self._replays) > _MOST_KEPT:
            self._replays.popitem(last=False)

        def counted(result: ReplayResult) -> None:
            replay.counts = [(one.event_key, one.subscriber, one.count) for one in result.counts]
            replay.total = result.total
            replay.state = "counted"

        replay.task = asyncio.create_task(self._replay(replay, counted, dry_run=True))
        return replay

    def confirm(self, replay: Replay, who: str) -> bool:
        """Start a replay. False if it does not wait for confirmation."""
        if replay.state != "counted":
            return False
        self._audit.add(who, "replay", replay=replay.id, choice=replay.choice, total=replay.total)
        replay.state = "running"

        def done(result: ReplayResult) -> None:
            replay.sent, replay.failed = result.sent, result.failed
            replay.problem = "; ".join(result.errors) or None
            replay.state = "done"
            self._audit.add(who, "replay done", replay=replay.id, sent=replay.sent)

        replay.task = asyncio.create_task(self._replay(replay, done, dry_run=False))
        return True

    # -- internals --------------------------------------------------------------------------------

    async def _make_report(self) -> None:
        from matador.dashboard.lake_report import report_page

        try:
            self.report = await self._with_lake(report_page)
            self.report_at, self.problem = time.time(), None
        except Exception as error:  # noqa: BLE001 - shown on the page
            self.problem = _said(error)

    async def _replay(
        self, replay: Replay, finish: Callable[[ReplayResult], None], *, dry_run: bool
    ) -> None:
        options: dict[str, Any] = {name: value for name, value in replay.choice.items() if value}

        def progress(sent: int, total: int) -> None:
            replay.sent = sent

        def run(lake: Lake) -> ReplayResult:
            # A copy with its own connection, because this is another thread.
            target = self._app.with_(consume_from=())
            if target.transport is self._app.transport:
                raise ConfigurationError(
                    "the application was made with a transport object, whose connection cannot be "
                    "shared; make it with a URL, or use `matador lake replay`"
                )
            return lake.replay(
                target, **options, dry_run=dry_run, replay_id=replay.id, progress=progress
            )

        try:
            finish(await self._with_lake(run))
        except Exception as error:  # noqa: BLE001 - shown on the page
            replay.state, replay.problem = "failed", _said(error)

    async def _with_lake(self, work: Callable[[Lake], T]) -> T:
        """Run ``work`` with the lake, in its thread.

        Raises:
            MatadorError: it failed; errors of Spark are wrapped.
        """

        def run() -> T:
            try:
                if self._lake is None:
                    from matador.spark.runtime.session import running_session

                    self._started_spark = running_session() is None
                    self._lake = self._reads.open(self._app.schema)
                return work(self._lake)
            except Exception as error:
                raise explained(error) from error

        return (await self._thread.start(run)).get()


def _said(error: Exception) -> str:
    known = isinstance(error, MatadorError)
    return str(error) if known else f"unexpected {type(error).__name__}: {error}"
