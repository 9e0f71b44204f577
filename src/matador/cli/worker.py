"""``matador worker``: consumes an application's queues until a signal stops it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated

from rich.table import Table

from matador.cli.commands import App, Common, Concurrency, Queues, option
from matador.cli.connection import queues_to_consume
from matador.cli.observing import Observing
from matador.cli.output import err, say_json_line, table
from matador.cli.reload import Reloading, WorkersFailed
from matador.cli.supervisor import stop_with_supervisor, supervise
from matador.cli.worker_counts import QueueWatch, WorkerCounts, display, summaries
from matador.events.app import Matador
from matador.events.hooks import Hooks
from matador.observe.counters import OutcomeCounter
from matador.runtime.process import Runnable, run
from matador.transports.base import Measuring

Processes = Annotated[int, option("N", "Number of processes. Those that die are restarted.", min=1)]
Process = Annotated[int | None, option("N", "Which process this is.", hidden=True)]


class _Concurrency(Hooks):
    def __init__(self, number: int) -> None:
        self._number = number

    def get_queue_concurrency(self, queue: str) -> int:
        return self._number


def worker(
    app: App,
    *,
    queues: Queues = None,
    processes: Processes = 1,
    concurrency: Concurrency = None,
    process: Process = None,
    reloading: Reloading,
    observing: Observing,
    common: Common,
) -> None:
    """Consume queues and run subscribers, until Ctrl-C or SIGTERM.

    The first signal lets running callbacks finish; the second one cancels them. Counts are shown
    live on a terminal, and as a log line every ten seconds elsewhere. --json prints one line each
    for "started", "counts" and "stopped".
    """
    line = [sys.executable, "-m", "matador", "worker", app]
    if reloading.reload:
        again = line + (["--queues", queues] if queues is not None else [])
        again += [] if processes == 1 else ["--processes", str(processes)]
        reloading.run(app, with_options(again, processes, concurrency, common, observing))
        return
    reloading.start()
    target = common.load(app, logging.INFO).app
    observing.check()
    observing.start_logs(process)
    work(target, line, queues, processes, concurrency, process, common, observing)


def work(
    target: Matador,
    line: Sequence[str],
    queues: str | None,
    processes: int,
    concurrency: int | None,
    process: int | None,
    common: Common,
    observing: Observing | None = None,
) -> None:
    """Run an application as a worker until a signal; ``line`` starts another process of it.

    Raises:
        WorkersFailed: one of several processes failed.
    """
    observing = observing or Observing()
    names = queues_to_consume(target, queues)
    target.configure(consume_from=names)
    if process is None and not common.as_json and not observing.as_json:
        err().print(_subscriptions(target))
    if processes > 1:
        line = [*line, "--queues", ",".join(names)]
        run_processes(line, processes, concurrency, common, observing)
        return
    metrics, is_new = observing.metrics_among(target.hooks)
    if metrics is not None:
        metrics.watch(target)
    counter = OutcomeCounter()
    more: list[Hooks] = [] if concurrency is None else [_Concurrency(concurrency)]
    more += [metrics] if metrics is not None and is_new else []
    history = observing.history_among(target.hooks)
    more += [] if history is None else [history]
    target.configure(hooks=[counter, *more])
    counts = WorkerCounts([target.topology.full_name(name) for name in names], counter)
    served = observing.served(target, metrics, process)
    run_counted(served, counts, _watch(target), process, common, observing)


def run_processes(
    command: Sequence[str],
    processes: int,
    concurrency: int | None,
    common: Common,
    observing: Observing,
) -> None:
    """Run a command line in several processes until a signal.

    Raises:
        WorkersFailed: one of them failed.
    """
    line = with_options(command, processes, concurrency, common, observing)
    # A line of JSON says itself which process it is from.
    results, logs = not common.as_json, not observing.as_json
    if not supervise(line, processes, prefixed=results, prefixed_logs=logs):
        raise WorkersFailed


def with_options(
    command: Sequence[str],
    processes: int,
    concurrency: int | None,
    common: Common,
    observing: Observing,
) -> list[str]:
    """The command line of another process with the same options."""
    line = [*command]
    line += [] if concurrency is None else ["--concurrency", str(concurrency)]
    line += ["--json"] * common.as_json + ["--verbose"] * common.verbose
    return line + observing.arguments(processes)


def run_counted(
    worker: Runnable,
    counts: WorkerCounts,
    watch: QueueWatch,
    process: int | None,
    common: Common,
    observing: Observing,
) -> None:
    """Run a worker until a signal, and show what it does."""
    if process is not None:
        stop_with_supervisor()
    console, as_json = err(), common.as_json
    live = console.is_terminal and not (as_json or observing.as_json) and process is None
    meanwhile = (
        display(watch, counts, console)
        if live
        else summaries(counts, as_json=as_json, process=process)
    )
    if as_json:
        say_json_line({"type": "started", "process": process, "queues": list(counts.queues)})
    run(worker, meanwhile=meanwhile)
    if as_json:
        say_json_line({"type": "stopped", "process": process})


def _watch(app: Matador) -> QueueWatch:
    transport = app.transport

    async def waiting(queue: str) -> int | None:
        if not transport.capabilities.depth or not isinstance(transport, Measuring):
            return None
        depth = await transport.depth(queue)
        return depth.ready + depth.delayed

    def in_progress() -> dict[str, int]:
        return {one.queue: one.running + one.waiting for one in app.health().queues}

    return QueueWatch(waiting, in_progress)


def _subscriptions(app: Matador) -> Table:
    """The subscribers of the consumed queues."""
    made = table("event", "subscriber", "queue")
    for event, subscribers in app.schema:
        shown = ""
        for one in subscribers:
            queue = app.topology.queue(one.queue or app.topology.default_queue.name)
            if queue.name in app.consume_from:
                key = event.key if event.key != shown else ""
                made.add_row(key, one.name, app.topology.full_name(queue.name))
                shown = event.key
    return made
