"""Sends events of a lake or of any DataFrame again: planned, resumable, each once.

Rows are selected and fixed in a ledger first; then they are sent, chunk by chunk. An application
given by its reference (``module:attribute``) is loaded by the executors, which send in parallel;
one given as an object sends from the driver.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from matador.errors import ClusterError, ConfigurationError
from matador.events.app import Matador, SyncMatador
from matador.jobs import Queue
from matador.loading import load_application
from matador.model.event import EventType
from matador.spark.replay.jobs import (
    addable,
    check_shared,
    choose_jobs,
    counted_jobs,
    load_queue,
)
from matador.spark.replay.ledger import Chunk, Ledger, ReplayCount, ReplayPlan
from matador.spark.replay.selection import Choice, choose, counted, groups_of, target_of
from matador.spark.replay.send import (
    Pace,
    Resending,
    open_sender,
    rare_collections,
    scope_of,
    send_chunk,
)
from matador.spark.runtime.compat import Py4JError
from matador.spark.runtime.executors import parallelism, run_tasks, ship
from matador.spark.runtime.messages import spark_error
from matador.spark.runtime.session import runs_here
from matador.spark.source.publish import check_columns
from matador.spark.tables.object_files import write_rows
from matador.spark.tables.reader import LakeTables
from matador.storage import FolderStorage
from matador.transports.base import Transport

AnyApp: TypeAlias = "Matador | SyncMatador | str"
AnyTarget: TypeAlias = "Matador | SyncMatador | Queue | str"
"""Where a replay goes: an application or a job queue, or a reference to one of them."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of messages sent so far, and the total."""

_CHUNK_ROWS = 10_000  # where the transport stores no row twice
_SMALL_CHUNK_ROWS = 1_000  # elsewhere: at most so many are sent twice when a task is killed
_LOOK_AGAIN = 0.25
_MOST_ERRORS = 10


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay, or of a dry run.

    Attributes:
        replay_id: resumes the replay if it was interrupted.
        counts: the messages to send, per event and subscriber.
        ignored: rows that no longer have a receiver, per event and original subscriber.
        sent: the messages sent, including those of earlier runs; 0 for a dry run.
        skipped: the messages not sent because their subscriber is disabled.
        failed: the rows that could not be sent; the same call tries them again.
        errors: the first few reasons.
        dry_run: nothing was sent.
        resumed: an earlier run had started.
    """

    replay_id: str
    counts: tuple[ReplayCount, ...]
    ignored: tuple[ReplayCount, ...] = ()
    sent: int = 0
    skipped: int = 0
    failed: int = 0
    errors: tuple[str, ...] = ()
    dry_run: bool = False
    resumed: bool = False

    @property
    def total(self) -> int:
        """The number of messages to send."""
        return sum(one.count for one in self.counts)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a replay is sent."""

    rate: float | None = None
    replay_id: str | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise ConfigurationError(f"rate must be positive, got {self.rate!r} messages/s")


def replay(
    lake: LakeTables,
    app: AnyApp,
    choice: Choice,
    *,
    to: str | None = None,
    dry_run: bool = False,
    options: ReplayOptions,
    among: DataFrame | None = None,
) -> ReplayResult:
    """See ``Lake.replay``; ``among`` has the ids to which the selection is restricted."""
    known = application_of(app)
    target = target_of(known, to)
    replay_id = options.replay_id or str(uuid.uuid4())
    asked = choice.request(to)

    def rows() -> DataFrame:
        found = choose(lake, known, choice, target)
        return found if among is None else found.join(among, "id", "left_semi")

    if dry_run:
        counts, ignored = counted(groups_of(rows()), known, target)
        return ReplayResult(replay_id, tuple(counts), tuple(ignored), dry_run=True)

    def plan(ledger: Ledger) -> ReplayPlan:
        chunks = _written(rows(), ledger, known.transport)
        counts, ignored = counted(ledger.groups(chunks), known, target)
        chosen = (target.subscriber, target.queue, target.everybody)
        return ReplayPlan("replay", asked, chunks, tuple(counts), tuple(ignored), *chosen)

    return _run(lake, app, replay_id, asked, plan, options)


def replay_jobs(
    lake: LakeTables,
    target: Queue | str,
    choice: Choice,
    *,
    dry_run: bool = False,
    options: ReplayOptions,
    among: DataFrame | None = None,
) -> ReplayResult:
    """``replay`` for the jobs of a queue, given as an object or by its reference."""
    queue = check_shared(load_queue(target) if isinstance(target, str) else target)
    replay_id = options.replay_id or str(uuid.uuid4())
    asked = {"jobs": queue.name, **choice.request(None)}
    asked.pop("subscriber", None)

    def rows() -> DataFrame:
        found = choose_jobs(lake, queue, choice)
        return found if among is None else found.join(among, "id", "left_semi")

    if dry_run:
        counts, ignored = counted_jobs(rows())
        return ReplayResult(replay_id, tuple(counts), tuple(ignored), dry_run=True)

    def plan(ledger: Ledger) -> ReplayPlan:
        chosen = rows()
        _, ignored = counted_jobs(chosen)
        chunks = _written(addable(chosen), ledger, queue.provider.transport)
        counts = [ReplayCount(*who, n) for who, n in sorted(ledger.groups(chunks).items())]
        return ReplayPlan("jobs", asked, chunks, tuple(counts), tuple(ignored))

    return _run(lake, target, replay_id, asked, plan, options)


def backfill(
    lake: LakeTables,
    app: AnyApp,
    event: type[Any] | str | EventType,
    frame: DataFrame,
    options: ReplayOptions,
) -> ReplayResult:
    known = application_of(app)
    key = known.schema.event(event).key
    check_columns(frame.columns, known.schema, key)
    asked = {"backfill": key}

    def plan(ledger: Ledger) -> ReplayPlan:
        chunks = _written(frame, ledger, known.transport)
        count = ledger.count(chunks)
        counts = [ReplayCount(key, one.name, count) for one in known.schema.subscribers(key)]
        return ReplayPlan("backfill", asked, chunks, tuple(counts), event=key)

    return _run(lake, app, options.replay_id or str(uuid.uuid4()), asked, plan, options)


def so_far(ledger: Ledger) -> ReplayResult | None:
    """The progress of a replay that was started; None if its plan is not fixed yet."""
    plan = ledger.plan
    if plan is None:
        return None
    begun = ReplayResult(ledger.replay_id, plan.counts, plan.ignored, resumed=True)
    return _with_chunks(begun, ledger.chunks(plan))


def application_of(app: AnyApp) -> Matador:
    """The application itself, to inspect it."""
    if isinstance(app, str):
        return load_application(app).app
    return app.app if isinstance(app, SyncMatador) else app


# -- inside -------------------------------------------------------------------------------------


def _run(
    lake: LakeTables,
    app: AnyTarget,
    replay_id: str,
    asked: dict[str, str],
    make_plan: Callable[[Ledger], ReplayPlan],
    how: ReplayOptions,
) -> ReplayResult:
    ledger = Ledger(lake.layout.ledger, replay_id)
    with ledger.held() as check_held:
        plan = ledger.plan
        resumed = plan is not None
        if plan is None:
            ledger.clear()
            plan = make_plan(ledger)
            ledger.fix(plan)
        elif asked != plan.request and not _is_bare(asked, plan.request):
            raise ConfigurationError(
                f"replay {replay_id} was started with {_said(plan.request)}, not with "
                f"{_said(asked)}; use the same options, or another id"
            )
        result = ReplayResult(replay_id, plan.counts, plan.ignored, resumed=resumed)
        if isinstance(app, str):
            try:
                _from_executors(lake.spark, app, ledger, plan, how, result.total)
            except (PySparkException, Py4JError) as error:
                raise ClusterError(
                    f"replay {replay_id} is not finished; the same id resumes it: "
                    f"{spark_error(error)}"
                ) from error
        else:
            _from_here(app, ledger, plan, how, result.total, check_held)
        result = _with_chunks(result, ledger.chunks(plan))
        if how.progress is not None:
            how.progress(result.sent, result.total)
        if not result.failed:
            with open_sender(app, plan.kind) as sender:
                sender.seal(scope_of(ledger, len(plan.chunks)))
    return result


def _from_executors(
    spark: SparkSession, app: str, ledger: Ledger, plan: ReplayPlan, how: ReplayOptions, total: int
) -> None:
    count = len(plan.chunks)
    # The tasks that run at the same time share the rate.
    slots = min(count, parallelism(spark))
    rate = None if how.rate is None else how.rate / max(slots, 1)
    reference = app if runs_here(spark) else ship(spark, app)
    work = Resending(ledger, plan, reference, rate)
    if how.progress is None:
        run_tasks(spark, work, count)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="matador-replay") as background:
        running = background.submit(run_tasks, spark, work, count)
        ended = threading.Event()
        running.add_done_callback(lambda _: ended.set())
        while not ended.wait(_LOOK_AGAIN):
            how.progress(sum(chunk.sent for chunk in ledger.chunks(plan)), total)
        running.result()


def _from_here(
    app: Matador | SyncMatador | Queue,
    ledger: Ledger,
    plan: ReplayPlan,
    how: ReplayOptions,
    total: int,
    check_held: Callable[[], None],
) -> None:
    sent = sum(chunk.sent for chunk in ledger.chunks(plan))

    def report(more: int) -> None:
        nonlocal sent
        sent += more
        if how.progress is not None:
            how.progress(sent, total)

    pace = Pace(how.rate)
    with open_sender(app, plan.kind) as sender, rare_collections():
        for name in plan.chunks:
            if not ledger.is_done(name):
                check_held()
                send_chunk(sender, ledger, plan, name, pace, report)


def _written(rows: DataFrame, ledger: Ledger, transport: Transport) -> tuple[str, ...]:
    """Write the rows into the ledger; returns the names of its chunks."""
    most = _CHUNK_ROWS if transport.capabilities.once else _SMALL_CHUNK_ROWS
    if not isinstance(ledger.rows, FolderStorage):
        return write_rows(rows, ledger.rows, most)
    # The quickest way. Most values differ: looking for those that do not takes a third of the time.
    options = {"maxRecordsPerFile": most, "parquet.enable.dictionary": "false"}
    rows.write.options(**options).parquet(str(ledger.rows.path))
    names = [one.name for one in ledger.rows.files()]
    return tuple(one for one in names if one.startswith("part-") and one.endswith(".parquet"))


def _with_chunks(result: ReplayResult, chunks: list[Chunk]) -> ReplayResult:
    failures = [failure for chunk in chunks for failure in chunk.failed]
    return replace(
        result,
        sent=sum(chunk.sent for chunk in chunks),
        skipped=sum(chunk.skipped for chunk in chunks),
        failed=len(failures),
        errors=tuple(failure.why for failure in failures[:_MOST_ERRORS]),
    )


def _is_bare(asked: dict[str, str], request: dict[str, str]) -> bool:
    """Whether nothing but the kind of the replay, and its queue, was asked for."""
    return set(asked) <= {"jobs"} and asked.get("jobs") == request.get("jobs")


def _said(request: dict[str, str]) -> str:
    return msgspec.json.encode(request).decode()
