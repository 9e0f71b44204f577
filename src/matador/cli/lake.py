"""``matador lake``: events as tables, in the terminal."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from matador.cli import replaying
from matador.cli.journal import JournalFolder, a_path
from matador.cli.lakes import (
    LakeFolder,
    on_spark,
    open_lake,
    quiet,
    spark_error,
    start_spark,
    stopped_by_signals,
    working,
)
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose, examples
from matador.cli.output import (
    UsageError,
    err,
    note,
    out,
    plural,
    reported,
    say,
    say_json,
    table,
)
from matador.errors import ConfigurationError
from matador.model.options import suggestion

if TYPE_CHECKING:
    from matador.spark.tables.ingest import IngestProgress, IngestResult

AppForTypes = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP", help="The application: each of its events is a table then."
    ),
]
_MOST_ROWS = 1000
_TABLES = ("events", "deliveries", "quarantine", "volume", "health", "triage")

lake = typer.Typer(
    no_args_is_help=True,
    help="Make tables of journals, ask them questions, and send events again. Runs on Spark.",
)


@lake.command(
    epilog=examples(
        "matador lake ingest shop.py --journal journal/ --lake lake/",
        "matador lake ingest shop.py --journal journal/ --lake lake/ --follow",
    )
)
@reported
@on_spark
def ingest(
    app: App,
    *,
    journal: JournalFolder,
    lake: LakeFolder,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Add what is new in a journal to the tables. Each row is added once, whatever is killed."""
    quiet(verbose)
    target = open_lake(lake, load(app).app.schema, make=True)
    if not journal.is_dir():
        raise UsageError(f"there is no journal in {journal}")
    if not (follow or verbose):  # what it would say is said at the end
        logging.getLogger("matador.lake").setLevel(logging.ERROR)
    start_spark(target)
    with _progress() as bar, stopped_by_signals() as stop:
        task = bar.add_task("reading", total=None)

        def show(progress: IngestProgress) -> None:
            rows = progress.result.events + progress.result.deliveries
            bar.update(
                task,
                description=f"{rows:,} rows",
                completed=progress.bytes_done,
                total=progress.bytes_total,
            )

        result = target.ingest(journal, follow=follow, stop=stop, progress=show)
    if as_json:
        say_json(asdict(result))
    else:
        _show_ingest(result)


def _show_ingest(result: IngestResult) -> None:
    made = table("", "rows", right=("rows",))
    for name in ("events", "deliveries", "quarantined", "duplicates"):
        made.add_row(name, f"{getattr(result, name):,}")
    say(made)
    note(f"{plural(result.records, 'record')} of {plural(result.segments, 'segment')}")
    for problem in result.problems:
        where = f" of {problem.event_key}" if problem.event_key else ""
        note(
            f"quarantined {problem.count:,}{where} as {problem.kind}: {problem.reason}",
            style="yellow",
        )
    if result.dropped:
        note(f"the journal says it lost {plural(result.dropped, 'record')}", style="red")


@lake.command(
    epilog=examples(
        'matador lake query --lake lake/ "SELECT event_key, count(*) AS n FROM events GROUP BY 1"',
        'matador lake query --lake lake/ "SELECT * FROM triage" --json',
    )
)
@reported
@on_spark
def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="A query over the tables, in Spark SQL.")
    ],
    *,
    lake: LakeFolder,
    app: AppForTypes = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Show at most so many rows.")
    ] = _MOST_ROWS,
    unrestricted: Annotated[
        bool,
        typer.Option("--unrestricted", help="Allow any SQL: files, other tables, writing, Java."),
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Ask the tables: events, deliveries, quarantine, volume, health, triage.

    One SELECT, which only reads; --unrestricted allows whatever Spark can do.
    """
    quiet(verbose)
    target = start_spark(open_lake(lake, None if app is None else load(app).app.schema))
    with working("asking…"):
        from matador.spark.runtime.messages import first_rows  # Spark is there by now

        try:
            frame = target.sql(sql, unrestricted=unrestricted)
        except ConfigurationError as error:
            raise UsageError(f"{error} (--unrestricted allows any SQL)") from error
        except Exception as error:
            raise _wrong_query(error) from error
        rows, more = first_rows(frame, limit)
    if as_json:
        say_json({"columns": frame.columns, "rows": rows, "more": more})
        return
    say(_as_table(frame.columns, rows))
    if more:
        note(f"the first {limit:,} rows; --limit shows more")


def _wrong_query(error: Exception) -> Exception:
    """A query that cannot be meant, in one line and with what may have been meant."""
    said = spark_error(error)
    if said is None:
        return error
    unknown = re.search(r"table or view `(\w+)` cannot be found", said)
    if unknown is not None:
        known = ", ".join(_TABLES)
        return UsageError(
            f"there is no table {unknown[1]!r} (there are {known}, and with --app each event, "
            f"such as order_placed){suggestion(unknown[1], _TABLES)}"
        )
    return UsageError(f"the query: {said}")


def _as_table(columns: list[str], rows: list[dict[str, Any]]) -> Table:
    numbers = tuple(
        name for name in columns if rows and all(isinstance(r[name], int | float) for r in rows)
    )
    made = table(*columns, right=numbers)
    for row in rows:
        made.add_row(*("" if row[name] is None else str(row[name]) for name in columns))
    return made


@lake.command(
    epilog=examples(
        "matador lake report --lake lake/", "matador lake report --lake lake/ --html report.html"
    )
)
@reported
@on_spark
def report(
    *,
    lake: LakeFolder,
    app: Annotated[
        str | None,
        typer.Option(metavar="APP", help="The application: its broker is asked for what waits."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=a_path, help="Also write it as one page with charts."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say how the events are doing: health, slowest, failing, growing, dead letters, the sums."""
    quiet(verbose)
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {html.parent} for the page")
    target = start_spark(open_lake(lake))
    with working("looking…"):
        made = target.report(None if app is None else load(app).app)
    if as_json:
        reconciliation = made.findings.reconciliation
        say_json({**asdict(made.findings), "adds_up": reconciliation.adds_up})
    else:
        made.show(out())
    if html is not None:
        made.html(html)
        note(f"written: {html}")


@lake.command(epilog=examples("matador lake compact --lake lake/"))
@reported
@on_spark
def compact(*, lake: LakeFolder, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Merge the small files of many ingests into few large ones."""
    quiet(verbose)
    result = start_spark(open_lake(lake)).compact()
    if as_json:
        say_json(asdict(result))
    else:
        note(f"{result.files_before:,} files before, {result.files_after:,} now")


@lake.command(epilog=examples("matador lake expire --lake lake/ --days 90"))
@reported
@on_spark
def expire(
    *,
    lake: LakeFolder,
    days: Annotated[float, typer.Option(min=0, help="Remove rows recorded longer ago than that.")],
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Remove old rows. They do not come back with a later ingest."""
    quiet(verbose)
    result = start_spark(open_lake(lake)).expire(timedelta(days=days))
    if as_json:
        say_json(asdict(result))
    else:
        note(
            f"removed {plural(result.events, 'event')}, {result.deliveries:,} deliveries, "
            f"{result.quarantine:,} in quarantine"
        )


def _progress() -> Progress:
    console = err()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


lake.command(
    epilog=examples(
        "matador lake replay shop.py --lake lake/ --event order.placed --dry-run",
        "matador lake replay shop.py --lake lake/ --event order.placed "
        "--where 'data.amount > 100' --since 2026-11-01 --rate 500",
        "matador lake replay shop.py --lake lake/ --replay-id 5c0e…",
    )
)(replaying.replay)
lake.command(
    epilog=examples(
        "matador lake redrive shop.py --lake lake/ --signature 3f2a91c07b --dry-run",
        "matador lake redrive shop.py --lake lake/ --subscriber charge --yes",
    )
)(replaying.redrive)
