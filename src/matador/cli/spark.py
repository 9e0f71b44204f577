"""``matador spark``, and what all commands that use Spark have: options, sessions and logs."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from matador.cli.output import UsageError, progress_bar, show_logs, table, working
from matador.cli.receivers import consume, consumes_nothing

if TYPE_CHECKING:
    from matador.spark import Lake
    from matador.spark.workers.worker import SparkWorkerReport

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_REMOTE = re.compile(
    r"sc://[^\s/;:]+(:\d{1,5})?(/(;[^\s;=]+=[^\s;]*)*)?|sc://\[[0-9a-f:]+\](:\d{1,5})?"
)


def show_spark_logs(verbose: bool) -> None:
    """Print warnings; with ``--verbose`` more of what Spark logs."""
    show_logs(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where Spark runs, and its settings."""

    master: Annotated[
        str | None, option("URL", "Where Spark runs, such as spark://host:7077.  [local[*]]")
    ] = None
    remote: Annotated[
        str | None,
        option("URL", "A Spark Connect server, such as sc://host:15002; Java is not needed here."),
    ] = None
    conf: Annotated[
        list[str] | None,
        option("NAME=VALUE", "A setting of Spark, such as spark.executor.memory=2g; repeatable."),
    ] = None

    def settings(self) -> dict[str, str]:
        """The settings by name.

        Raises:
            UsageError: an option is invalid, or two of them exclude each other.
        """
        if self.master is not None and self.remote is not None:
            raise UsageError("--master and --remote exclude each other: give one of them")
        if self.master is not None and not _MASTER.fullmatch(self.master):
            raise UsageError(
                f"--master {self.master!r} is invalid: use local[2], spark://host:7077, yarn or "
                "k8s://… (a Spark Connect server is given with --remote)"
            )
        if self.remote is not None and not _REMOTE.fullmatch(self.remote):
            # Not repeated: it may contain a token.
            raise UsageError("--remote is invalid: use sc://host:15002, or sc://host:443/;token=…")
        found: dict[str, str] = {}
        for one in self.conf or ():
            name, is_given, value = one.partition("=")
            if not (is_given and name.startswith("spark.")):
                raise UsageError(f"--conf {one!r} is invalid: use spark.name=value")
            found[name] = value
        return found


def start_spark(lake: Lake, options: SparkOptions, *, brief: bool = False) -> Lake:
    """Start Spark, or connect to one, with a spinner. ``brief``: see ``spark_session``.

    Raises:
        UsageError: an option is invalid.
        ConfigurationError: Java is missing; the message says how to install it.
        ClusterError: the server does not answer.
    """
    lake.start_later(partial(_session, options, options.settings(), brief))
    with working("starting Spark…" if options.remote is None else "connecting to Spark…"):
        lake.spark  # noqa: B018 - starts it
    return lake


def start_spark_if_needed(lake: Lake, options: SparkOptions) -> Lake:
    """Start Spark when the lake needs it. A small lake may not.

    Raises:
        UsageError: an option is invalid.
    """
    lake.start_later(partial(_session, options, options.settings(), False))
    return lake


def _session(options: SparkOptions, settings: Mapping[str, str], brief: bool) -> Any:
    """The Spark session. Only ``matador.spark`` knows its type."""
    from matador.spark import spark_session  # slow to import, and perhaps not installed
    from matador.spark.runtime.messages import silence

    spark = spark_session(options.master, remote=options.remote, config=settings, brief=brief)
    silence(spark)
    return spark


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
    target = common.load(app).app
    if queues is not None:
        consume([target], queues)
    elif not target.consume_from:
        raise UsageError(consumes_nothing("the application", target))
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
            queues=target.consume_from,
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
