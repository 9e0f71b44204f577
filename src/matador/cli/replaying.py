"""``matador lake replay`` and ``redrive``: count, ask, show how far it is, say what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from matador.cli.connecting import missing_file, reachable
from matador.cli.filters import All, Event, Subscriber
from matador.cli.lakes import (
    LakeFolder,
    on_spark,
    open_lake,
    quiet,
    start_spark,
    working,
)
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose, Yes
from matador.cli.output import (
    FAILED,
    CommandError,
    UsageError,
    complain,
    err,
    note,
    plural,
    reported,
    say,
    say_json,
    table,
    warn,
)
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador

if TYPE_CHECKING:
    from matador.spark import Lake
    from matador.spark.replay.ledger import ReplayCount
    from matador.spark.replay.redrive import RedriveResult
    from matador.spark.replay.replay import ReplayResult

Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="From then on, such as 2026-11-01 or 2026-11-01T08:00Z."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]

_FROM_HERE = 100_000
"""Up to so many messages this process sends; of more, each core of Spark sends its share."""


@reported
@on_spark
def replay(
    app: App,
    *,
    lake: LakeFolder,
    event: Event = None,
    subscriber: Subscriber = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="A condition, such as 'data.amount > 100'.")
    ] = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    replays: Annotated[
        bool, typer.Option("--replays", help="Those that are replays themselves, too.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="To another queue or subscriber, or to 'all' of them."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0.001, help="Messages a second, at most.")
    ] = None,
    replay_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with this one, or name a new one so.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send events of the lake again, each to the subscriber it was for, unless --to says otherwise.

    Counts first, and asks. The messages are new ones, marked as replays. One that was interrupted
    goes on with its --replay-id and sends nothing twice, if the transport can tell.
    """
    quiet(verbose)
    target = load(app).app
    reachable(target)
    choice: dict[str, Any] = {
        "event": event,
        "subscriber": subscriber,
        "where": where,
        "since": since,
        "until": until,
        "to": to,
        "replays": replays,
    }
    source = open_lake(lake, target.schema)
    _check(target, event, subscriber, since, until, to)
    begun = _begun(source, replay_id)
    chosen = everything or any((event, subscriber, where, since, until))
    if begun is None and not chosen:
        gone = "" if replay_id is None else f"there is no replay {replay_id} to go on with; "
        raise UsageError(f"{gone}which ones? Give --event or another filter, or --all")
    start_spark(source)
    with _usage(), working("counting…"):
        plan = begun or source.replay(app, **choice, dry_run=True, replay_id=replay_id)
    if dry_run or not plan.total:
        _report_replay(plan, as_json, dry_run=dry_run)
        return
    _show_counts(plan.counts, plan.ignored, "messages")
    left = plan.total - plan.sent
    if not yes:
        _ask(f"send {plural(left, 'message')}", f"{plural(left, 'message')} would be sent")
    name = plan.replay_id if begun else replay_id or str(uuid4())
    again = f"matador lake replay {app} --lake {lake} --replay-id {name}"
    note(f"replay {name}; if it is interrupted, go on with: {again}")
    sender = app if rate is None and left > _FROM_HERE else target
    try:
        with _usage(), _progress("replay") as show:
            done = source.replay(sender, **choice, rate=rate, replay_id=name, progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"go on with: {again}") from None
    _report_replay(done, as_json, dry_run=False)
    if done.failed:
        raise typer.Exit(FAILED)


@reported
@on_spark
def redrive(
    app: App,
    *,
    lake: LakeFolder,
    signature: Annotated[
        str | None, typer.Option(metavar="ID", help="Of this group of the triage table.")
    ] = None,
    event: Event = None,
    subscriber: Subscriber = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    replay_missing: Annotated[
        bool,
        typer.Option(
            "--replay-missing", help="Replay those that the broker has lost or thrown away."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send dead letters back to their queues, chosen by what the lake knows of why they died.

    Counts first, and asks. Each is moved in one step and keeps its id: an interrupted redrive can
    be run again and repeats nothing.
    """
    quiet(verbose)
    target = load(app).app
    reachable(target)
    absent = missing_file(target)
    if absent is not None:
        raise CommandError(f"{absent} does not exist yet: there are no dead letters")
    if not (everything or any((signature, event, subscriber, since, until))):
        raise UsageError("which ones? Give --signature or another filter, or --all")
    source = open_lake(lake, target.schema)
    _check(target, event, subscriber, since, until, None)
    choice: dict[str, Any] = {
        "signature": signature,
        "event": event,
        "subscriber": subscriber,
        "since": since,
        "until": until,
        "missing": "replay" if replay_missing else "leave",
    }
    start_spark(source)
    with _usage(), working("counting…"):
        plan = source.redrive(app, **choice, dry_run=True)
    replayable = plan.replayed.total if plan.replayed is not None else 0
    if dry_run or not plan.found + replayable:
        _report_redrive(plan, as_json, dry_run=dry_run)
        return
    _show_counts(plan.counts, (), "dead letters")
    if not yes:
        replayed = f" and replay {replayable:,} of the lake" if replayable else ""
        what = plural(plan.found, "dead letter")
        _ask(f"redrive {what}{replayed}", f"{what} would be redriven{replayed}")
    with _usage(), _progress("redrive") as show:
        done = source.redrive(target, **choice, progress=show)
    _report_redrive(done, as_json, dry_run=False)
    if done.failed or done.held or (done.replayed is not None and done.replayed.failed):
        raise typer.Exit(FAILED)


# -- before -------------------------------------------------------------------------------------


def _check(
    app: Matador,
    event: str | None,
    subscriber: str | None,
    since: str | None,
    until: str | None,
    to: str | None,
) -> None:
    """Look at the options before Spark is started, which takes a while.

    Raises:
        UsageError: one of them cannot be.
    """
    from matador.spark.replay.selection import check_subscriber, moment, target_of

    with _usage():
        if event is not None:
            app.schema.event(event)
        if subscriber is not None:
            check_subscriber(app, subscriber)
        for name, given in (("--since", since), ("--until", until)):
            if given is not None:
                moment(given, name)
        target_of(app, to)


def _begun(lake: Lake, replay_id: str | None) -> ReplayResult | None:
    """The replay of that id as far as it is, if it was begun."""
    from matador.spark.replay.ledger import Ledger
    from matador.spark.replay.replay import so_far

    if replay_id is None:
        return None
    with _usage():
        return so_far(Ledger(lake.layout.ledger, replay_id))


@contextmanager
def _usage() -> Generator[None]:
    """What cannot be meant is wrong usage.

    Raises:
        UsageError: instead of what the library raises.
    """
    try:
        yield
    except (ConfigurationError, EventNotRegisteredError) as error:
        raise UsageError(str(error)) from error


def _ask(question: str, otherwise: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{otherwise}; add --yes to do it without asking")
    err().print(f"{question}? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


# -- meanwhile and afterwards -------------------------------------------------------------------


@contextmanager
def _progress(verb: str) -> Generator[Callable[[int, int], None]]:
    console = err()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show_counts(
    counts: Sequence[ReplayCount],
    ignored: Sequence[ReplayCount],
    what: str,
    *,
    result: bool = False,
) -> None:
    made = table("event", "subscriber", what, right=(what,))
    for one in counts:
        made.add_row(one.event_key, one.subscriber, f"{one.count:,}")
    if counts:
        if result:
            say(made)
        else:
            err().print(made)
    for one in ignored:
        warn(
            f"{one.count:,} of {one.event_key} for {one.subscriber} are left out: "
            f"the application has no such subscriber of it"
        )


def _report_replay(result: ReplayResult, as_json: bool, *, dry_run: bool) -> None:
    if as_json:
        say_json(
            {
                "replay_id": None if dry_run else result.replay_id,
                "dry_run": dry_run,
                "resumed": result.resumed,
                "counts": _as_json(result.counts),
                "ignored": _as_json(result.ignored),
                "total": result.total,
                "sent": result.sent,
                "skipped": result.skipped,
                "failed": result.failed,
                "errors": list(result.errors),
            }
        )
    elif dry_run or not result.total:
        _show_counts(result.counts, result.ignored, "messages", result=True)
        note(f"{plural(result.total, 'message')} would be sent" if result.total else "none match")
    else:
        say(f"{plural(result.sent, 'message')} sent")
        if result.skipped:
            note(f"{result.skipped:,} skipped: their subscribers are not enabled")
    for problem in result.errors:
        complain(problem)
    if result.failed > len(result.errors):
        complain(f"{result.failed:,} in all could not be sent")


def _report_redrive(result: RedriveResult, as_json: bool, *, dry_run: bool) -> None:
    replayed = 0 if result.replayed is None else result.replayed.sent
    if as_json:
        say_json(
            {
                "dry_run": dry_run,
                "counts": _as_json(result.counts),
                "chosen": result.chosen,
                "found": result.found,
                "redriven": result.moved,
                "held": result.held,
                "missing": result.missing,
                "replayed": replayed,
                "failed": [{"id": id_, "error": why} for id_, why in result.failed],
            }
        )
    elif dry_run:
        _show_counts(result.counts, (), "dead letters", result=True)
        note(f"{plural(result.found, 'dead letter')} would be redriven")
    elif not result.found and not replayed:
        note("no dead letters match")
    else:
        also = f", {replayed:,} replayed" if replayed else ""
        say(f"{plural(result.moved, 'dead letter')} redriven{also}")
    if result.missing and not replayed:
        note(
            f"{result.missing:,} more are in the lake, but not in the broker any more; "
            f"--replay-missing sends them again"
        )
    if result.held:
        warn(f"{result.held:,} are held by another process; run it again later")
    for id_, why in result.failed[:20]:
        complain(f"{id_}: {why}")


def _as_json(counts: Sequence[ReplayCount]) -> list[dict[str, Any]]:
    return [
        {"event": one.event_key, "subscriber": one.subscriber, "count": one.count} for one in counts
    ]
