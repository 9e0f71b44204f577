"""``matador jobs worker``: runs a ``matador.jobs.Worker`` until a signal stops it."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from matador.cli.commands import Common, option
from matador.cli.observing import Observing, flat
from matador.cli.reload import Reloading
from matador.cli.worker import Process, Processes, run_counted, run_processes, with_options
from matador.cli.worker_counts import QueueWatch, WorkerCounts
from matador.policy.retry import Outcome

if TYPE_CHECKING:
    from matador.jobs import JobCompleted, JobFailed, Worker


def jobs_worker(
    worker: Annotated[
        str,
        typer.Argument(
            metavar="WORKER",
            help="The worker: module:attribute or file.py[:attribute]. "
            "The attribute defaults to worker.",
            show_default=False,
        ),
    ],
    *,
    processes: Processes = 1,
    concurrency: Annotated[
        int | None, option("N", "Jobs that run at once, per process. Default: the worker's.", min=1)
    ] = None,
    process: Process = None,
    reloading: Reloading,
    observing: Observing,
    common: Common,
) -> None:
    """Run jobs, until Ctrl-C or SIGTERM.

    The first signal lets running jobs finish; the second one cancels them, and they will run
    again. Counts are shown live on a terminal, and as a log line every ten seconds elsewhere.
    --json prints one line each for "started", "counts" and "stopped".
    """
    from matador.jobs import Worker  # other commands start without it

    line = [sys.executable, "-m", "matador", "jobs", "worker", worker]
    if reloading.reload:
        again = line + ([] if processes == 1 else ["--processes", str(processes)])
        reloading.run(worker, with_options(again, processes, concurrency, common, observing))
        return
    reloading.start()
    found = common.load_object(worker, Worker, "Worker of matador.jobs", "worker")
    observing.check()
    observing.start_logs(process)
    if processes > 1:
        run_processes(line, processes, concurrency, common, observing)
        return
    if concurrency is not None:
        found.concurrency = concurrency
    counter = JobCounter()
    found.on("completed", counter.completed)
    found.on("failed", counter.failed)
    metrics, is_new = observing.metrics_among(flat(found.recorder))
    if metrics is not None:
        metrics.watch(found)
        if is_new:
            found.add_recorder(metrics)
    history = observing.history_among(flat(found.recorder))
    if history is not None:
        found.add_recorder(history)
    served, counts = observing.served(found, metrics, process), WorkerCounts([found.queue], counter)
    run_counted(served, counts, _watch(found), process, common, observing)


class JobCounter:
    """Counts the outcomes of a worker's attempts."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Outcome]] = Counter()

    def total(self, queue: str | None = None, *outcomes: Outcome) -> int:
        """The number of attempts with these outcomes (default: any), on one queue or on all."""
        return sum(
            count
            for (name, outcome), count in self._counts.items()
            if queue in (None, name) and (not outcomes or outcome in outcomes)
        )

    def completed(self, event: JobCompleted) -> None:
        """A job has completed."""
        self._counts[event.queue, "success"] += 1

    def failed(self, event: JobFailed) -> None:
        """An attempt has failed."""
        self._counts[event.queue, "retry" if event.will_retry else "dead-letter"] += 1


def _watch(worker: Worker) -> QueueWatch:
    async def waiting(queue: str) -> int | None:
        provider = worker.provider
        if provider is None or not provider.capabilities.counts:
            return None
        counts = await provider.store.count_jobs(await provider.store.open_jobs(queue))
        return counts.waiting + counts.delayed

    return QueueWatch(waiting, lambda: {worker.queue: worker.active_jobs})
