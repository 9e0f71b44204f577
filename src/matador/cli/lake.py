"""``matador lake``: builds tables of events, queries them and sends events again."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from matador.cli.commands import (
    App,
    Commands,
    Common,
    DryRun,
    Yes,
    a_path,
    flag,
    option,
)
from matador.cli.connection import load
from matador.cli.interaction import confirm, working
from matador.cli.lake_ingest import ingest
from matador.cli.lake_replay import redrive, replay
from matador.cli.output import UsageError, note, out, plural, say_json, table
from matador.cli.spark_options import SparkOptions, start_spark, start_spark_if_needed
from matador.cli.spark_session import (
    show_spark_logs,
    spark_message,
)
from matador.cli.store_options import LakeOptions, open_lake
from matador.errors import ConfigurationError
from matador.model.options import suggestion

if TYPE_CHECKING:
    from matador.spark.tables.maintenance import ExpireResult

AppForTypes = Annotated[
    str | None,
    option("APP", "The application: makes each of its events a table.", "--app"),
]
_MOST_ROWS = 1000
_TABLES = ("events", "deliveries", "quarantine", "volume", "health", "triage")

lake = Commands("Turn journals into tables, query them, and send events again. Needs Spark.")


lake.add(
    "matador lake ingest shop.py --journal journal/ --lake lake/",
    "matador lake ingest shop.py --journal journal/ --lake lake/ --follow",
    "matador lake ingest shop.py --kafka --lake lake/ --queues events,billing --follow",
    "matador lake ingest shop.app:app --journal journal/ --lake lake/ --master spark://host:7077",
    "matador lake ingest shop.app:app --journal journal/ --lake lake/ --remote sc://host:15002",
    "matador lake ingest --journal journal/ --lake lake/",
    "matador lake ingest shop.py --journal s3://shop/journal --lake s3://shop/lake",
)(ingest)


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
    target = open_lake(lake, None if app is None else load(app).app.schema)
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
        made = target.report(None if app is None else load(app).app)
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
    added = start_spark(open_lake(lake, load(app).app.schema), spark).publish()
    made = table("table", "new rows", right=("new rows",))
    for name, count in added.items():
        made.add_row(f"typed/{name}", f"{count:,}")
    common.show(added, made)


@lake.add("matador lake release shop.py --lake lake/")
def release(app: App, *, lake: LakeOptions, spark: SparkOptions, common: Common) -> None:
    """Take events out of quarantine that are valid under the application's current schema."""
    show_spark_logs(common.verbose)
    result = start_spark(open_lake(lake, load(app).app.schema), spark).release()
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
