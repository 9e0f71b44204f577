"""``matador lake ingest``: adds what is new in a journal, or in the topics of Kafka, to a lake."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import BarColumn

from matador.cli.commands import Common, Connecting, OptionalApp, a_location, choice, flag, option
from matador.cli.completion import names_of
from matador.cli.connection import load
from matador.cli.interaction import progress_bar
from matador.cli.output import UsageError, note, plural, table
from matador.cli.spark_options import SparkOptions, start_spark
from matador.cli.spark_session import show_spark_logs, stopped_by_signals
from matador.cli.store_options import LakeOptions, open_lake
from matador.errors import ConfigurationError
from matador.storage.paths import remote_url

if TYPE_CHECKING:
    from matador import Matador
    from matador.spark.tables.ingest import IngestProgress, IngestResult


def ingest(
    app: OptionalApp = None,
    *,
    journal: Annotated[
        str | None,
        option(
            "FOLDER",
            "The journal's folder, or where it was shipped to: s3://bucket/journal.",
            "--journal",
            parser=a_location,
        ),
    ] = None,
    kafka: Annotated[
        bool, flag("Read the topics of the application on Kafka instead.", "--kafka")
    ] = False,
    lake: LakeOptions,
    queues: Annotated[
        str | None,
        option(
            "NAMES",
            "With --kafka: only these queues, separated by commas.",
            "--queues",
            autocompletion=names_of("queues", several=True),
        ),
    ] = None,
    since: Annotated[
        str | None,
        option(
            "WHEN",
            "With --kafka: where to begin in topics that the lake has not read before: "
            "earliest (the default), latest or a time.",
            "--since",
        ),
    ] = None,
    missing: Annotated[
        str | None,
        choice(
            "fail|skip",
            "With --kafka: what to do if messages were deleted unread. The default is fail.",
            "--missing",
            ("fail", "skip"),
        ),
    ] = None,
    follow: Annotated[bool, flag("Keep running until Ctrl-C.", "--follow")] = False,
    spark: SparkOptions,
    common: Connecting,
) -> None:
    """Add new records of a journal, or new messages of Kafka, to the tables.

    Each is added exactly once, even after a crash. Without an application, as for a journal that
    has jobs only, payloads are not checked.
    """
    show_spark_logs(common.verbose)
    given: dict[str, Any] = {"queues": queues, "since": since, "missing": missing}
    loaded = None if app is None else load(app).app
    source = _source(loaded, journal, kafka, given)
    if queues is not None:
        given["queues"] = [name for one in queues.split(",") if (name := one.strip())]
    target = open_lake(lake, None if loaded is None else loaded.schema, create=True)
    if kafka:
        _check_queues(source, given["queues"])
    if loaded is not None and kafka:
        common.reach(loaded)
    if not (follow or common.verbose):  # the summary says the same
        logging.getLogger("matador.lake").setLevel(logging.ERROR)
    start_spark(target, spark)
    with progress_bar(BarColumn()) as bar, stopped_by_signals() as stop:
        task = bar.add_task("reading", total=None)

        def show(progress: IngestProgress) -> None:
            rows = progress.result.events + progress.result.deliveries
            lag = f", {progress.total - progress.done:,} messages behind" if kafka else ""
            bar.update(
                task,
                description=f"{rows:,} rows{lag}",
                completed=progress.done,
                total=progress.total,
            )

        result = target.ingest(source, **given, follow=follow, stop=stop, progress=show)
    _report(result, kafka, common)


def _source(
    app: Matador | None, journal: str | None, kafka: bool, given: dict[str, Any]
) -> str | Matador:
    """What to ingest, checked."""
    if journal is not None and kafka:
        raise UsageError("--journal and --kafka cannot be combined: run one after the other")
    if kafka:
        if app is None:
            raise UsageError("--kafka needs the application, whose topics are read")
        return app
    for option_, value in given.items():
        if value is not None:
            raise UsageError(f"--{option_} needs --kafka")
    if journal is None:
        raise UsageError("nothing to ingest: name a --journal, or the application and --kafka")
    if remote_url(journal, "--journal") is None and not Path(journal).is_dir():
        raise UsageError(f"there is no journal in {journal}")
    return journal


def _check_queues(app: str | Matador, queues: list[str] | None) -> None:
    """Refuse what cannot be read, before Spark is started."""
    from matador.spark.tables.log_ingest import log_source, queues_of

    assert not isinstance(app, str)
    try:
        log_source(app)
        queues_of(app, queues)
    except ConfigurationError as error:
        raise UsageError(str(error)) from error


def _report(result: IngestResult, kafka: bool, common: Common) -> None:
    made = table("", "rows", right=("rows",))
    for name in ("events", "deliveries", "quarantined", "duplicates"):
        if not (kafka and name == "deliveries"):
            made.add_row(name, f"{getattr(result, name):,}")
    read = f"{plural(result.records, 'record')} of {plural(result.segments, 'segment')}"
    common.show(asdict(result), made, remark=plural(result.records, "message") if kafka else read)
    if common.as_json:
        return
    for problem in result.problems:
        where = f" of {problem.event_key}" if problem.event_key else ""
        note(
            f"quarantined {problem.count:,}{where} as {problem.kind}: {problem.reason}",
            style="yellow",
        )
    if result.dropped:
        note(f"the journal reports {plural(result.dropped, 'lost record')}", style="red")
    if result.missed:
        gone = plural(result.missed, "message")
        note(f"Kafka had deleted {gone} before they were read", style="red")
