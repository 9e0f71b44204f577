"""``matador worker``: consumes an application's queues until a signal stops it."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.table import Table

from matador.cli.commands import App, AsJson, Verbose
from matador.cli.connection import load
from matador.cli.output import FAILED, UsageError, err, say_json_line, table
from matador.cli.supervisor import stop_with_supervisor, supervise
from matador.cli.worker_counts import WorkerCounts, display, summaries
from matador.errors import QueueNotFoundError
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
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Queues to consume, separated by commas. Default: consume_from."
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Number of processes. Those that die are restarted."),
    ] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Messages of each queue handled at once, per process."
        ),
    ] = None,
    process: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Consume queues and run subscribers, until Ctrl-C or SIGTERM.

    The first signal lets running callbacks finish; the second one cancels them. Counts are shown
    live on a terminal, and as a log line every ten seconds elsewhere. --json prints one line each
    for "started", "counts" and "stopped".
    """
    target = load(app, verbose, level=logging.INFO).app
    names = _queues(target, queues)
    target.configure(consume_from=names)
    console = err()
    if process is None and not as_json:
        console.print(_subscriptions(target))
    if processes > 1:
        _supervise(app, names, processes, concurrency, as_json, verbose)
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


def _queues(app: Matador, given: str | None) -> list[str]:
    known = [queue.name for queue in app.topology.queues]
    if given is None:
        if not app.consume_from:
            raise UsageError(
                f"the application consumes no queue (consume_from is empty): "
                f"add --queues {','.join(known)}"
            )
        return list(app.consume_from)
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--queues is empty; the queues are {', '.join(known)}")
    try:
        return [app.topology.queue(name).name for name in names]
    except QueueNotFoundError as error:
        raise UsageError(str(error)) from None


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


def _supervise(
    app: str,
    names: list[str],
    processes: int,
    concurrency: int | None,
    as_json: bool,
    verbose: bool,
) -> None:
    command = [sys.executable, "-m", "matador", "worker", app, "--queues", ",".join(names)]
    if concurrency is not None:
        command += ["--concurrency", str(concurrency)]
    command += ["--json"] * as_json + ["--verbose"] * verbose
    if not supervise(command, processes, prefixed=not as_json):
        raise typer.Exit(FAILED)
