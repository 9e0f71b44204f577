"""``matador spark``: subscribers on the cores of a Spark cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from matador.cli.lakes import on_spark, quiet
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose, examples
from matador.cli.output import UsageError, err, note, reported, say, say_json, table
from matador.errors import QueueNotFoundError
from matador.events.app import Matador

if TYPE_CHECKING:
    from matador.spark.workers.worker import SparkWorkerReport

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")

spark = typer.Typer(no_args_is_help=True, help="Run subscribers on a Spark cluster.")


@spark.command(
    epilog=examples(
        "matador spark worker shop.py --master local[2] --queues events",
        "matador spark worker shop.app:app --master spark://host:7077 --py-files models.py",
    )
)
@reported
@on_spark
def worker(
    app: App,
    *,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="The cluster: local[2], spark://host:7077, …")
    ] = None,
    queues: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Queues, separated by commas.")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Workers side by side; else one a core.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Messages of a queue each handles at once."),
    ] = None,
    slice_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long a task receives.")
    ] = 30.0,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop once nothing is left.")
    ] = False,
    py_files: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file or zip that the application imports."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Consume queues on a Spark cluster, until Ctrl-C. Spark schedules; each task is a worker."""
    quiet(verbose)
    names = None if queues is None else [one.strip() for one in queues.split(",") if one.strip()]
    _check(load(app).app, master, names)
    from matador.spark import run_spark_worker  # takes long, and may not be there

    console = err()
    with Progress(
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("starting Spark", total=None)

        def show(so_far: SparkWorkerReport) -> None:
            bar.update(
                task,
                description=f"{so_far.handled:,} handled, {so_far.failed:,} failed, "
                f"{so_far.dead_letters:,} dead letters, {so_far.lost:,} slices lost",
            )

        done = run_spark_worker(
            app,
            master=master,
            queues=names,
            tasks=tasks,
            concurrency=concurrency,
            slice_seconds=slice_seconds,
            until_empty=until_empty,
            py_files=py_files or (),
            progress=show,
        )
    if as_json:
        say_json(msgspec.to_builtins(done))
        return
    made = table("queue", "event", "subscriber", "outcome", "messages", right=("messages",))
    for row in done.outcomes:
        made.add_row(row.queue, row.event_key, row.subscriber, row.outcome, f"{row.count:,}")
    say(made)
    note(f"{done.slices:,} slices, {done.lost:,} lost")


@spark.command(epilog=examples("matador spark prepare"))
@reported
@on_spark
def prepare(
    *,
    again: Annotated[bool, typer.Option("--again", help="Also if it was done before.")] = False,
) -> None:
    """Let Spark start in half the time on this machine, from now on. Takes a minute, once.

    Keeps the Java classes that Spark loads in a file of about 200 MB: below MATADOR_CACHE, or in
    the user's folder for caches.
    """
    from matador.spark import prepare as prepare_spark  # takes long, and may not be there

    with err().status("rehearsing what is usually done with Spark …"):
        made = prepare_spark(again=again)
    note(f"{made}: {made.stat().st_size / 1e6:,.0f} MB")


def _check(app: Matador, master: str | None, queues: Sequence[str] | None) -> None:
    """Look at the options before Spark is started, which takes a while.

    Raises:
        UsageError: one of them cannot be.
    """
    if master is not None and not _MASTER.fullmatch(master):
        raise UsageError(
            f"--master {master!r} is none: local[2], spark://host:7077, yarn or k8s://…"
        )
    try:
        for queue in queues or ():
            app.topology.queue(queue)
    except QueueNotFoundError as unknown:
        raise UsageError(str(unknown)) from None
