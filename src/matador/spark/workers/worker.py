"""``run_spark_worker``: an application's ordinary subscribers on the cores of a Spark cluster.

Spark only schedules: its tasks consume the queues and settle each message themselves, so that a
lost task, executor or driver loses no more than a lost worker. Messages it was working on are
delivered again, as the transport guarantees.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from matador.errors import ClusterError, ConfigurationError, MatadorError
from matador.events.app import Matador
from matador.loading import load_application
from matador.model.options import Seconds, seconds, whole_number
from matador.observe.counters import OutcomeCount
from matador.spark.runtime.connect import is_connect, own_address
from matador.spark.runtime.executors import parallelism, run_tasks, ship
from matador.spark.runtime.messages import reason_of
from matador.spark.runtime.session import session_for
from matador.spark.runtime.shutdown import StopAddress, StopLine, signals_set
from matador.spark.workers.task import Slice, SliceReport, run_slice
from matador.transports.base import Measuring
from matador.transports.kit.errors import queues_paused

log = logging.getLogger("matador.spark")

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 30.0
_GIVE_UP_AFTER = 5


@dataclass(frozen=True, slots=True)
class SparkWorkerReport:
    """The results so far.

    Attributes:
        slices: how many slices have ended.
        lost: how many were lost with their task; ``outcomes`` lacks their counts.
        outcomes: the counts of messages, by queue, event, subscriber and outcome.
    """

    slices: int = 0
    lost: int = 0
    outcomes: tuple[OutcomeCount, ...] = ()

    @property
    def handled(self) -> int:
        """Messages that were handled successfully."""
        return self._sum("success")

    @property
    def failed(self) -> int:
        """Attempts that failed and are retried."""
        return self._sum("retry")

    @property
    def dead_letters(self) -> int:
        """Messages that became dead letters."""
        return self._sum("dead-letter")

    def _sum(self, outcome: str) -> int:
        return sum(row.count for row in self.outcomes if row.outcome == outcome)


Progress = Callable[[SparkWorkerReport], None]


def run_spark_worker(
    app_reference: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    queues: Sequence[str] | None = None,
    tasks: int | None = None,
    concurrency: int | None = None,
    slice_seconds: Seconds = 30.0,
    drain_seconds: Seconds = 30.0,
    until_empty: bool = False,
    py_files: Sequence[str | Path] = (),
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> SparkWorkerReport:
    """Consume queues on a Spark cluster until SIGTERM, SIGINT or ``stop``; returns the results.

    Args:
        app_reference: ``module:attribute``, importable on the executors, or ``file.py:attribute``,
            which is sent to them.
        master: the cluster for a new session: ``local[2]``, ``spark://host:7077``, …
        remote: a Spark Connect server for a new session instead: ``sc://host:15002``.
        config: settings of Spark, for a new session.
        queues: the queues to consume; by default those of the application.
        tasks: how many workers run in parallel; by default one per core.
        concurrency: how many messages of a queue each handles at a time; by default as in the
            topology.
        slice_seconds: how long a task receives before it reports.
        drain_seconds: how long its callbacks may continue after that before they are canceled.
        until_empty: stop once no message is waiting, delayed or in progress. If the only ones left
            are in paused queues, that is an error.
        py_files: other files, or zips, that the application imports.
        spark: a session; by default the running one. Neither is stopped. If there is none, a new
            one is started, and stopped at the end.
        stop: set it to stop; tasks then finish what has started and give the rest back.
        progress: called with the results so far whenever a slice has ended.

    Raises:
        ConfigurationError: the application cannot run on a cluster, or an option is invalid.
        ClusterError: slices failed repeatedly; the message has the last reason.
        QueuePausedError: with ``until_empty``, nothing is left but messages of paused queues.
    """
    loaded = load_application(app_reference)
    names = _check(loaded.app, queues, until_empty)
    work = Slice(
        reference=app_reference,
        queues=names,
        concurrency=_positive(concurrency, "concurrency"),
        seconds=seconds(slice_seconds, "slice_seconds", minimum=0.1),
        drain=seconds(drain_seconds, "drain_seconds"),
        until_empty=until_empty,
        stop=None,
    )
    lanes = _positive(tasks, "tasks")
    stopping = stop or threading.Event()
    name = f"matador worker {app_reference}"
    with session_for(spark, master, remote=remote, app_name=name, config=config) as session:
        work = replace(work, reference=ship(session, app_reference, py_files))
        with signals_set(stopping), _stop_address(session, stopping) as address:
            runner = _Lanes(session, replace(work, stop=address), stopping, progress)
            return runner.run(lanes or max(1, parallelism(session)))


def _positive(number: int | None, name: str) -> int | None:
    return None if number is None else whole_number(number, name, minimum=1)


def _check(app: Matador, queues: Sequence[str] | None, until_empty: bool) -> tuple[str, ...]:
    """The queues to consume, after checking that the application can run on executors."""
    names = tuple(
        app.consume_from if queues is None else (app.topology.queue(one).name for one in queues)
    )
    if not names:
        known = ", ".join(queue.name for queue in app.topology.queues)
        raise ConfigurationError(f"no queue to consume: choose from {known}")
    if app.transport.capabilities.in_process:
        raise ConfigurationError(
            f"{app.transport.name} exists in one process only, so executors cannot read it; use "
            "SQLite on one machine, or a broker"
        )
    if until_empty and not isinstance(app.transport, Measuring):
        raise ConfigurationError(
            f"until_empty: {app.transport.name} does not report how many messages wait"
        )
    app.configure(consume_from=names)
    app.check()
    return names


@contextlib.contextmanager
def _stop_address(spark: SparkSession, stop: threading.Event) -> Generator[StopAddress | None]:
    """Where tasks learn that they must stop; None if they cannot reach this process."""
    try:
        bind, host = _listening(spark)
        line = StopLine(bind, stop)
    except OSError as error:
        log.warning("tasks cannot be stopped before their slice ends: %s", error)
        yield None
        return
    with line:
        yield line.address(host)


def _listening(spark: SparkSession) -> tuple[str, str]:
    """The address to listen on, and the one by which executors know this machine."""
    if is_connect(spark):
        host = own_address(spark)
        if host is None:
            raise OSError("the address of the Spark Connect server is not known")
        return host, host
    settings = spark.sparkContext.getConf()
    host = settings.get("spark.driver.host") or "127.0.0.1"
    return settings.get("spark.driver.bindAddress") or host, host


class _Lanes:
    """Runs slices in parallel lanes: each lane starts one slice after the other."""

    def __init__(
        self, spark: SparkSession, work: Slice, stop: threading.Event, progress: Progress | None
    ) -> None:
        self._spark = spark
        self._work = work
        self._stop = stop
        self._progress = progress
        self._lock = threading.Lock()
        self._report = SparkWorkerReport()
        self._failure: MatadorError | None = None

    def run(self, lanes: int) -> SparkWorkerReport:
        log.info("%d tasks consume %s", lanes, ", ".join(self._work.queues or ()))
        threads = [threading.Thread(target=self._lane, daemon=True) for _ in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # in short waits, so that signals are handled
                thread.join(0.2)
        if self._failure is not None:
            raise self._failure
        return self._report

    def _lane(self) -> None:
        failures = 0
        while not self._stop.is_set():
            problem = self._slice()
            if problem is None:
                failures = 0
                continue
            failures += 1
            if failures >= _GIVE_UP_AFTER:
                self._failure = ClusterError(f"{failures} slices failed in a row: {problem}")
                self._stop.set()
                return
            pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
            log.warning("a slice was lost; the next starts in %.1f s: %s", pause, problem)
            self._stop.wait(pause)

    def _slice(self) -> str | None:
        """Run one slice; returns why it failed, or None."""
        try:
            (answer,) = run_tasks(self._spark, partial(run_slice, self._work), 1)
        except Exception as error:  # noqa: BLE001 - a lane must not end silently
            self._add(lost=1)
            return reason_of(error)
        report = msgspec.json.decode(answer, type=SliceReport)
        if report.paused:
            self._failure = queues_paused(report.paused)
        if report.empty or report.paused:
            self._stop.set()
        self._add(slices=1, counts=report.counts)
        return report.problem

    def _add(self, *, slices: int = 0, lost: int = 0, counts: Sequence[OutcomeCount] = ()) -> None:
        with self._lock:
            before = self._report
            added = _added_up([*before.outcomes, *counts])
            self._report = SparkWorkerReport(before.slices + slices, before.lost + lost, added)
            if self._progress is not None:
                self._progress(self._report)


def _added_up(counts: Sequence[OutcomeCount]) -> tuple[OutcomeCount, ...]:
    """The counts of several slices, by queue, event, subscriber and outcome."""
    found: dict[tuple[str, str, str, str], OutcomeCount] = {}
    for one in counts:
        key = (one.queue, one.event_key, one.subscriber, one.outcome)
        before = found.get(key)
        found[key] = one if before is None else before.plus(one)
    return tuple(found[key] for key in sorted(found))
