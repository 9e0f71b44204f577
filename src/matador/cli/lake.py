"""``matador lake``: builds tables of events, queries them and sends events again."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn
from rich.table import Table

from matador.cli.commands import (
    App,
    Commands,
    Common,
    Connecting,
    DryRun,
    OptionalApp,
    Yes,
    a_location,
    a_path,
    choice,
    flag,
    option,
    spark_message,
)
from matador.cli.completion import names_of
from matador.cli.connection import stopped_by_signals
from matador.cli.lake_replay import redrive, replay
from matador.cli.output import (
    UsageError,
    confirm,
    note,
    out,
    plural,
    progress_bar,
    say_json,
    table,
    working,
)
from matador.cli.spark import SparkOptions, show_spark_logs, start_spark, start_spark_if_needed
from matador.cli.store_options import LakeOptions, open_lake
from matador.errors import ConfigurationError
from matador.model.options import suggestion
from matador.storage.paths import remote_url

if TYPE_CHECKING:
    from matador import Matador
    from matador.spark.tables.ingest import IngestProgress, IngestResult
    from matador.spark.tables.maintenance import ExpireResult


AppForTypes = Annotated[
    str | None,
    option("APP", "The application: makes each of its events a table.", "--app"),
]
_MOST_ROWS = 1000
_TABLES = ("events", "deliveries", "quarantine", "volume", "health", "triage")

lake = Commands("Turn journals into tables, query them, and send events again. Needs Spark.")


@lake.add(
    "matador lake ingest shop.py --journal journal/ --lake lake/",
    "matador lake ingest shop.py --journal journal/ --lake lake/ --follow",
    "matador lake ingest shop.py --kafka --lake lake/ --queues events,billing --follow",
    "matador lake ingest shop.app:app --journal journal/ --lake lake/ --master spark://host:7077",
    "matador lake ingest shop.app:app --journal journal/ --lake lake/ --remote sc://host:15002",
    "matador lake ingest --journal journal/ --lake lake/",
    "matador lake ingest shop.py --journal s3://shop/journal --lake s3://shop/lake",
)
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
    loaded = None if app is None else common.load(app).app
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
    """Check the options, and return the journal or the application to read."""
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
    """Reject queues that cannot be read, before Spark starts."""
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


@lake.add(
    'matador lake query --lake lake/ "SELECT event_key, count(*) AS n FROM events GROUP BY 1"',
    'matador lake query --lake lake/ "SELECT * FROM triage" --json',
)
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A query in Spark SQL.")],
    *,
    lake: LakeOptions,
    app: AppForTypes = None,
    limit: Annotated[int, option("N", "Show at most this many rows.", min=1)] = _MOST_ROWS,
    unrestricted: Annotated[
        bool, flag("Allow any SQL, including files, writes and Java functions.", "--unrestricted")
    ] = False,
    spark: SparkOptions,
    common: Common,
) -> None:
    """Query the tables events, deliveries, quarantine, volume, health and triage.

    The query is one SELECT that only reads; --unrestricted allows anything Spark can do.
    """
    show_spark_logs(common.verbose)
    target = open_lake(lake, None if app is None else common.load(app).app.schema)
    start_spark(target, spark, brief=target.is_small())
    with working("querying…"):
        from matador.spark.runtime.messages import first_rows  # Spark is running

        try:
            frame = target.sql(sql, unrestricted=unrestricted)
        except ConfigurationError as error:
            raise UsageError(f"{error} (--unrestricted allows any SQL)") from error
        except Exception as error:
            raise _wrong_query(error) from error
        found = first_rows(frame, limit)
    common.show(
        {"columns": found.columns, "rows": found.rows, "more": found.more},
        _as_table(found.columns, found.rows),
        remark=f"the first {limit:,} rows; --limit shows more" if found.more else "",
    )


def _wrong_query(error: Exception) -> Exception:
    """The error for an invalid query, in one line, with a suggestion."""
    said = spark_message(error)
    if said is None:
        return error
    unknown = re.search(r"table or view `(\w+)` cannot be found", said)
    if unknown is not None:
        known = ", ".join(_TABLES)
        return UsageError(
            f"unknown table {unknown[1]!r} (tables: {known}, and with --app one per event, "
            f"such as order_placed){suggestion(unknown[1], _TABLES)}"
        )
    return UsageError(f"invalid query: {said}")


def _as_table(columns: list[str], rows: list[dict[str, Any]]) -> Table:
    numbers = tuple(
        name for name in columns if rows and all(isinstance(r[name], int | float) for r in rows)
    )
    made = table(*columns, right=numbers)
    for row in rows:
        made.add_row(*("" if row[name] is None else str(row[name]) for name in columns))
    return made


@lake.add("matador lake report --lake lake/", "matador lake report --lake lake/ --html report.html")
def report(
    *,
    lake: LakeOptions,
    app: Annotated[
        str | None, option("APP", "The application: adds the depths of its queues.")
    ] = None,
    html: Annotated[
        Path | None, option("FILE", "Also write an HTML page with charts.", parser=a_path)
    ] = None,
    spark: SparkOptions,
    common: Common,
) -> None:
    """Report on health, slow and failing subscribers, growth, dead letters and reconciliation.

    Job queues are shown beside subscribers. Spark is started for a large lake only.
    """
    show_spark_logs(common.verbose)
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"--html: the folder {html.parent} does not exist")
    target = start_spark_if_needed(open_lake(lake), spark)
    with working("computing…"):
        made = target.report(None if app is None else common.load(app).app)
    if common.as_json:
        reconciliation = made.findings.reconciliation
        say_json({**asdict(made.findings), "adds_up": reconciliation.adds_up})
    else:
        made.show(out())
    if html is not None:
        made.html(html)
        note(f"wrote {html}")


@lake.add("matador lake compact --lake lake/")
def compact(*, lake: LakeOptions, spark: SparkOptions, common: Common) -> None:
    """Merge many small files into a few large ones."""
    show_spark_logs(common.verbose)
    result = start_spark(open_lake(lake), spark).compact()
    remark = f"{result.files_before:,} files before, {result.files_after:,} after"
    common.show(asdict(result), remark=remark)


@lake.add("matador lake vacuum --lake lake/", "matador lake vacuum --lake lake/ --keep-days 2")
def vacuum(
    *,
    lake: LakeOptions,
    keep_days: Annotated[
        float, option("DAYS", "Keep files that a version of so many days needs.", min=1 / 24)
    ] = 7,
    spark: SparkOptions,
    common: Common,
) -> None:
    """Delete files that are no longer needed: replaced by others, or left by killed runs."""
    show_spark_logs(common.verbose)
    target = start_spark_if_needed(open_lake(lake), spark)
    result = target.vacuum(timedelta(days=keep_days))
    common.show(asdict(result), remark=f"deleted {plural(result.files, 'file')}")


@lake.add("matador lake publish shop.py --lake lake/")
def publish(app: App, *, lake: LakeOptions, spark: SparkOptions, common: Common) -> None:
    """Bring the typed tables up to date: one for each event, in the folder typed of the lake."""
    show_spark_logs(common.verbose)
    added = start_spark(open_lake(lake, common.load(app).app.schema), spark).publish()
    made = table("table", "new rows", right=("new rows",))
    for name, count in added.items():
        made.add_row(f"typed/{name}", f"{count:,}")
    common.show(added, made)


@lake.add("matador lake release shop.py --lake lake/")
def release(app: App, *, lake: LakeOptions, spark: SparkOptions, common: Common) -> None:
    """Take events out of quarantine that are valid under the application's current schema."""
    show_spark_logs(common.verbose)
    result = start_spark(open_lake(lake, common.load(app).app.schema), spark).release()
    remark = f"released {plural(result.released, 'row')}; {result.left:,} left in quarantine"
    common.show(asdict(result), remark=remark)


@lake.add(
    "matador lake expire --lake lake/ --days 90 --dry-run",
    "matador lake expire --lake lake/ --days 90 --yes",
)
def expire(
    *,
    lake: LakeOptions,
    days: Annotated[float, option("DAYS", "Delete rows older than this many days.", min=0)],
    dry_run: DryRun = False,
    yes: Yes = False,
    spark: SparkOptions,
    common: Common,
) -> None:
    """Delete old rows for good. A later ingest does not bring them back.

    Counts them first and asks for confirmation.
    """
    show_spark_logs(common.verbose)
    try:
        cutoff = datetime.now(UTC) - timedelta(days=days)
    except (OverflowError, ValueError) as error:
        raise UsageError(f"--days {days:g} is before the first date there is") from error
    target = start_spark(open_lake(lake), spark)
    with working("counting…"):
        old = target.expire(cutoff, dry_run=True)
    if dry_run:
        common.show({"dry_run": True, **asdict(old)}, remark=f"{_rows(old)} would be deleted")
        return
    if not yes and any(asdict(old).values()):
        confirm(f"delete {_rows(old)}", f"{_rows(old)} would be deleted")
    with working("deleting…"):
        gone = target.expire(cutoff)
    common.show({"dry_run": False, **asdict(gone)}, remark=f"deleted {_rows(gone)}")


def _rows(result: ExpireResult) -> str:
    deliveries = "delivery" if result.deliveries == 1 else "deliveries"
    return (
        f"{plural(result.events, 'event')}, {result.deliveries:,} {deliveries} and "
        f"{plural(result.quarantine, 'row')} in quarantine"
    )


lake.add(
    "matador lake replay shop.py --lake lake/ --event order.placed --dry-run",
    "matador lake replay shop.py --lake lake/ --event order.placed "
    "--where 'data.amount > 100' --since 2026-11-01 --rate 500",
    "matador lake replay shop.py --lake lake/ --replay-id 5c0e…",
    "matador lake replay jobs.py:queue --lake lake/ --name welcome --since 2026-11-01",
)(replay)
lake.add(
    "matador lake redrive shop.py --lake lake/ --signature 3f2a91c07b --dry-run",
    "matador lake redrive shop.py --lake lake/ --subscriber charge --yes",
    "matador lake redrive jobs.py:queue --lake lake/ --signature 3f2a91c07b",
)(redrive)
