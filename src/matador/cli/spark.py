"""``matador spark``: runs subscribers on a Spark cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from matador.cli.commands import App, AsJson, Commands, Verbose
from matador.cli.connection import load
from matador.cli.interaction import progress_bar, working
from matador.cli.output import UsageError, note, say, say_json, table
from matador.cli.spark_session import show_spark_logs
from matador.errors import QueueNotFoundError
from matador.events.app import Matador

if TYPE_CHECKING:
    from matador.spark.workers.worker import SparkWorkerReport

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")

spark = Commands("Run subscribers on a Spark cluster.")


@spark.add(
    "matador spark worker shop.py --master local[2] --queues events",
    "matador spark worker shop.app:app --master spark://host:7077 --py-files models.py",
)
def worker(
    app: App,
    *,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The cluster, such as local[2] or spark://host:7077."),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Queues to consume, separated by commas. Default: consume_from."
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Parallel workers. Default: one per core."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Messages of each queue handled at once, per worker."
        ),
    ] = None,
    slice_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, help="How long each Spark task receives messages."
        ),
    ] = 30.0,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when the queues are empty.")
    ] = False,
    py_files: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A file or zip that the application imports. Can be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Consume queues on a Spark cluster, until Ctrl-C. Each Spark task is a worker."""
    show_spark_logs(verbose)
    names = None if queues is None else [one.strip() for one in queues.split(",") if one.strip()]
    _check(load(app).app, master, names)
    from matador.spark import run_spark_worker  # slow to import, and perhaps not installed

    with progress_bar() as bar:
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


@spark.add("matador spark prepare")
def prepare(
    *,
    again: Annotated[
        bool, typer.Option("--again", help="Repeat it if it was done before.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Make Spark start in half the time on this machine. Takes about a minute, once.

    Writes an archive of the Java classes that Spark loads, about 200 MB, to the folder in
    MATADOR_CACHE, or to the user's cache folder.
    """
    show_spark_logs(verbose)
    from matador.spark import prepare as prepare_spark  # slow to import, perhaps not installed

    with working("running typical Spark jobs…"):
        made = prepare_spark(again=again)
    size = made.stat().st_size
    if as_json:
        say_json({"file": str(made), "bytes": size})
    else:
        note(f"{made}: {size / 1e6:,.0f} MB")


def _check(app: Matador, master: str | None, queues: Sequence[str] | None) -> None:
    """Check the options before Spark starts, which takes a while.

    Raises:
        UsageError: one of them is invalid.
    """
    if master is not None and not _MASTER.fullmatch(master):
        raise UsageError(
            f"--master {master!r} is invalid: use local[2], spark://host:7077, yarn or k8s://…"
        )
    try:
        for queue in queues or ():
            app.topology.queue(queue)
    except QueueNotFoundError as unknown:
        raise UsageError(str(unknown)) from None
