"""``matador lake``: events as tables, in the terminal."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Generator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from matador.cli.journal import JournalFolder
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose, examples
from matador.cli.output import (
    UsageError,
    err,
    note,
    plural,
    reported,
    say,
    say_json,
    show_logs,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from matador.spark import Lake
    from matador.spark.ingest import IngestProgress, IngestResult

LakeFolder = Annotated[Path, typer.Option("--lake", metavar="FOLDER", help="Where the tables are.")]
AppForTypes = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="The application, for typed columns of its events."),
]
_MOST_ROWS = 1000

lake = typer.Typer(
    no_args_is_help=True,
    help="Make tables of journals, ask them questions, and send events again. Runs on Spark.",
)


def open_lake(folder: Path, app: str | None, *, make: bool = False) -> Lake:
    """The lake in a folder, with the schema of an application if one is given.

    Raises:
        UsageError: there is no such lake.
    """
    from matador.spark import Lake  # Spark takes long to import, and may not be there

    if not make and not folder.is_dir():
        raise UsageError(
            f"there is no lake in {folder}: make one with "
            f"`matador lake ingest APP --journal journal/ --lake {folder}`"
        )
    return Lake(folder, schema=None if app is None else load(app).app.schema)


def quiet(verbose: bool) -> None:
    """Log what is worth it; the rest of what Spark says only with ``--verbose``."""
    show_logs(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)


@lake.command(
    epilog=examples(
        "matador lake ingest shop.py --journal journal/ --lake lake/",
        "matador lake ingest shop.py --journal journal/ --lake lake/ --follow",
    )
)
@reported
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
    target = open_lake(lake, app, make=True)
    with _progress() as bar, _stopped_by_signals() as stop:
        task = bar.add_task("starting Spark", total=None)

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
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Ask the tables: events, deliveries, quarantine, volume, health, triage."""
    quiet(verbose)
    frame = open_lake(lake, app).sql(sql)
    rows, more = _rows(frame, limit)
    if as_json:
        say_json({"columns": frame.columns, "rows": rows, "more": more})
        return
    say(_as_table(frame.columns, rows))
    if more:
        note(f"the first {limit:,} rows; --limit shows more")


def _rows(frame: DataFrame, limit: int) -> tuple[list[dict[str, Any]], bool]:
    found = [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]
    return found[:limit], len(found) > limit


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
def report(
    *,
    lake: LakeFolder,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write it as one page with charts.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say how the events are doing: health, slowest, failing, growing, dead letters, the sums."""
    quiet(verbose)
    made = open_lake(lake, None).report()
    if as_json:
        say_json(made.as_dict())
    else:
        made.show()
    if html is not None:
        made.html(html)
        note(f"written: {html}")


@lake.command(epilog=examples("matador lake compact --lake lake/"))
@reported
def compact(*, lake: LakeFolder, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Merge the small files of many ingests into few large ones."""
    quiet(verbose)
    result = open_lake(lake, None).compact()
    if as_json:
        say_json(asdict(result))
    else:
        note(f"{result.files_before:,} files before, {result.files_after:,} now")


@lake.command(epilog=examples("matador lake expire --lake lake/ --days 90"))
@reported
def expire(
    *,
    lake: LakeFolder,
    days: Annotated[float, typer.Option(min=0, help="Remove rows recorded longer ago than that.")],
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Remove old rows. They do not come back with a later ingest."""
    quiet(verbose)
    result = open_lake(lake, None).expire(timedelta(days=days))
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


@contextlib.contextmanager
def _stopped_by_signals() -> Generator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that what runs can end in good order."""
    stop = threading.Event()

    def stopped(number: int, frame: object) -> None:
        stop.set()

    before = {number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
