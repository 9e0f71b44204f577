"""``matador spark``: runs subscribers on a Spark cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from matador.cli.commands import (
    App,
    Commands,
    Common,
    Concurrency,
    Connecting,
    Queues,
    UntilEmpty,
    flag,
    option,
)
from matador.cli.connection import load, queues_to_consume
from matador.cli.interaction import progress_bar, working
from matador.cli.output import table
from matador.cli.spark_options import SparkOptions
from matador.cli.spark_session import show_spark_logs

if TYPE_CHECKING:
    from matador.spark.workers.worker import SparkWorkerReport

spark = Commands("Run subscribers on a Spark cluster.")


@spark.add(
    "matador spark worker shop.py --master local[2] --queues events",
    "matador spark worker shop.app:app --master spark://host:7077 --py-files models.py",
    "matador spark worker shop.app:app --remote sc://host:15002 --tasks 4",
)
def worker(
    app: App,
    *,
    queues: Queues = None,
    tasks: Annotated[
        int | None, option("N", "Parallel workers. Default: one per core.", min=1)
    ] = None,
    concurrency: Concurrency = None,
    slice_seconds: Annotated[
        float, option("SECONDS", "How long each Spark task receives messages.", min=0.1)
    ] = 30.0,
    until_empty: UntilEmpty = False,
    py_files: Annotated[
        list[Path] | None,
        option("FILE", "A file or zip that the application imports. Can be repeated."),
    ] = None,
    spark: SparkOptions,
    common: Connecting,
) -> None:
    """Consume queues on a Spark cluster, until Ctrl-C. Each Spark task is a worker."""
    show_spark_logs(common.verbose)
    settings = spark.settings()
    target = load(app).app
    names = queues_to_consume(target, queues)
    common.reach(target)
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
            master=spark.master,
            remote=spark.remote,
            config=settings,
            queues=names,
            tasks=tasks,
            concurrency=concurrency,
            slice_seconds=slice_seconds,
            until_empty=until_empty,
            py_files=py_files or (),
            progress=show,
        )
    made = table("queue", "event", "subscriber", "outcome", "messages", right=("messages",))
    for row in done.outcomes:
        made.add_row(row.queue, row.event_key, row.subscriber, row.outcome, f"{row.count:,}")
    remark = f"{done.slices:,} slices, {done.lost:,} lost"
    common.show(msgspec.to_builtins(done), made, remark=remark)


@spark.add("matador spark prepare")
def prepare(
    *,
    again: Annotated[bool, flag("Repeat it if it was done before.", "--again")] = False,
    common: Common,
) -> None:
    """Make Spark start in half the time on this machine. Takes about a minute, once.

    Writes an archive of the Java classes that Spark loads, about 200 MB, to the folder in
    MATADOR_CACHE, or to the user's cache folder.
    """
    show_spark_logs(common.verbose)
    from matador.spark import prepare as prepare_spark  # slow to import, perhaps not installed

    with working("running typical Spark jobs…"):
        made = prepare_spark(again=again)
    size = made.stat().st_size
    value = {"file": str(made), "bytes": size}
    common.show(value, remark=f"{made}: {size / 1e6:,.0f} MB")
