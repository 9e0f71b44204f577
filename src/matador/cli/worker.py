"""``matador worker``: consumes an application's queues until a signal stops it."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.table import Table

from matador.cli.commands import App, Common, Concurrency, Queues, option
from matador.cli.connection import queues_to_consume
from matador.cli.output import FAILED, err, say_json_line, table
from matador.cli.supervisor import stop_with_supervisor, supervise
from matador.cli.worker_counts import WorkerCounts, display, summaries
from matador.events.app import Matador
from matador.events.hooks import Hooks
from matador.runtime.process import run


class _Concurrency(Hooks):
    def __init__(self, number: int) -> None:
        self._number = number

    def get_queue_concurrency(self, queue: str) -> int:
        return self._number


def worker(
    app: App,
    *,
    queues: Queues = None,
    processes: Annotated[
        int, option("N", "Number of processes. Those that die are restarted.", min=1)
    ] = 1,
    concurrency: Concurrency = None,
    process: Annotated[int | None, option("N", "Which process this is.", hidden=True)] = None,
    common: Common,
) -> None:
    """Consume queues and run subscribers, until Ctrl-C or SIGTERM.

    The first signal lets running callbacks finish; the second one cancels them. Counts are shown
    live on a terminal, and as a log line every ten seconds elsewhere. --json prints one line each
    for "started", "counts" and "stopped".
    """
    as_json = common.as_json
    target = common.load(app, logging.INFO).app
    names = queues_to_consume(target, queues)
    target.configure(consume_from=names)
    console = err()
    if process is None and not as_json:
        console.print(_subscriptions(target))
    if processes > 1:
        command = [sys.executable, "-m", "matador", "worker", app, "--queues", ",".join(names)]
        command += [] if concurrency is None else ["--concurrency", str(concurrency)]
        command += ["--json"] * as_json + ["--verbose"] * common.verbose
        if not supervise(command, processes, prefixed=not as_json):
            raise typer.Exit(FAILED)
        return
    if process is not None:
        stop_with_supervisor()
    counts = WorkerCounts([target.topology.full_name(name) for name in names])
    more = [] if concurrency is None else [_Concurrency(concurrency)]
    target.configure(hooks=[counts.counter, *more])
    live = console.is_terminal and not as_json and process is None
    meanwhile = (
        display(target, counts, console)
        if live
        else summaries(counts, as_json=as_json, process=process)
    )
    if as_json:
        say_json_line({"type": "started", "process": process, "queues": list(counts.queues)})
    run(target, meanwhile=meanwhile)
    if as_json:
        say_json_line({"type": "stopped", "process": process})


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
