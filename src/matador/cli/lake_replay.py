"""``matador lake replay`` and ``redrive``: count, confirm, show progress, report."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from matador.cli.commands import (
    All,
    App,
    AsJson,
    DryRun,
    Event,
    LakeFolder,
    Subscriber,
    Verbose,
    Yes,
)
from matador.cli.connection import load, missing_storage, require_shared
from matador.cli.interaction import confirm, counting_progress, working
from matador.cli.output import (
    FAILED,
    CommandError,
    UsageError,
    complain,
    err,
    note,
    plural,
    say,
    say_json,
    table,
    warn,
)
from matador.cli.spark_session import open_lake, show_spark_logs, start_spark
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador

if TYPE_CHECKING:
    from matador.spark import Lake
    from matador.spark.replay.ledger import ReplayCount
    from matador.spark.replay.redrive import RedriveResult
    from matador.spark.replay.replay import ReplayResult

_FROM_HERE = 100_000
"""Up to this many messages are sent by this process; above, each Spark core sends its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFilters:
    """The options that choose rows of the lake, named as ``Lake.replay`` names them."""

    event: Event = None
    subscriber: Subscriber = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only from this time on, such as 2026-11-01 or 2026-11-01T08:00Z."
        ),
    ] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only before this time.")] = None


def replay(
    app: App,
    *,
    lake: LakeFolder,
    filters: LakeFilters,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only where this is true: 'data.amount > 100'."),
    ] = None,
    everything: All = False,
    replays: Annotated[
        bool, typer.Option("--replays", help="Include events that are replays themselves.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Send to this queue or subscriber, or to 'all'."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0.001, help="At most this many per second.")
    ] = None,
    replay_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Resume this replay, or give a new one this id."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send events of the lake again, each to its original subscriber unless --to is given.

    Counts them first and asks for confirmation. The messages are new ones, marked as replays. An
    interrupted replay is resumed with --replay-id; nothing is sent twice if the transport supports
    deduplication.
    """
    show_spark_logs(verbose)
    target = load(app).app
    require_shared(target)
    source = open_lake(lake, target.schema)
    _check(target, filters, to)
    begun = _begun(source, replay_id)
    if begun is None and not (everything or where or filters != LakeFilters()):
        unknown = "" if replay_id is None else f"there is no replay {replay_id} to resume; "
        raise UsageError(f"{unknown}choose what to replay: give a filter such as --event, or --all")
    choice: dict[str, Any] = {**asdict(filters), "where": where, "to": to, "replays": replays}
    start_spark(source)
    with _usage(), working("counting…"):
        plan = begun or source.replay(app, **choice, dry_run=True, replay_id=replay_id)
    if dry_run or not plan.total:
        _report_replay(plan, as_json, dry_run=dry_run)
        return
    _show_counts(plan.counts, plan.ignored, "messages")
    left = plan.total - plan.sent
    if not yes:
        confirm(f"send {plural(left, 'message')}", f"{plural(left, 'message')} would be sent")
    name = plan.replay_id if begun else replay_id or str(uuid4())
    again = f"matador lake replay {app} --lake {lake} --replay-id {name}"
    note(f"replay {name}; to resume it after an interruption: {again}")
    sender = app if rate is None and left > _FROM_HERE else target
    try:
        with _usage(), counting_progress("replay") as show:
            done = source.replay(sender, **choice, rate=rate, replay_id=name, progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"resume with: {again}") from None
    _report_replay(done, as_json, dry_run=False)
    if done.failed:
        raise typer.Exit(FAILED)


def redrive(
    app: App,
    *,
    lake: LakeFolder,
    signature: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this signature of the triage table.")
    ] = None,
    filters: LakeFilters,
    everything: All = False,
    replay_missing: Annotated[
        bool,
        typer.Option(
            "--replay-missing", help="Replay dead letters that are no longer in the broker."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send dead letters back to their queues, chosen by what the lake knows about their failures.

    Counts them first and asks for confirmation. Each is moved atomically and keeps its id: an
    interrupted redrive can be run again and repeats nothing.
    """
    show_spark_logs(verbose)
    target = load(app).app
    require_shared(target)
    absent = missing_storage(target)
    if absent is not None:
        raise CommandError(f"{absent} does not exist yet: there are no dead letters")
    if not (everything or signature or filters != LakeFilters()):
        raise UsageError("choose what to redrive: give --signature or another filter, or --all")
    source = open_lake(lake, target.schema)
    _check(target, filters, None)
    choice: dict[str, Any] = {
        **asdict(filters),
        "signature": signature,
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
        replayed = f" and {replayable:,} replayed" if replayable else ""
        also = f" and replay {replayable:,}" if replayable else ""
        what = plural(plan.found, "dead letter")
        confirm(f"redrive {what}{also}", f"{what} would be redriven{replayed}")
    with _usage(), counting_progress("redrive") as show:
        done = source.redrive(target, **choice, progress=show)
    _report_redrive(done, as_json, dry_run=False)
    if done.failed or done.held or (done.replayed is not None and done.replayed.failed):
        raise typer.Exit(FAILED)


# -- before -------------------------------------------------------------------------------------


def _check(app: Matador, filters: LakeFilters, to: str | None) -> None:
    """Check the options before Spark starts, which takes a while.

    Raises:
        UsageError: one of them is invalid.
    """
    from matador.spark.replay.selection import check_subscriber, moment, target_of

    with _usage():
        if filters.event is not None:
            app.schema.event(filters.event)
        if filters.subscriber is not None:
            check_subscriber(app, filters.subscriber)
        for name, given in (("--since", filters.since), ("--until", filters.until)):
            if given is not None:
                moment(given, name)
        target_of(app, to)


def _begun(lake: Lake, replay_id: str | None) -> ReplayResult | None:
    """The state of the replay with that id, if it was started."""
    from matador.spark.replay.ledger import Ledger
    from matador.spark.replay.replay import so_far

    if replay_id is None:
        return None
    with _usage():
        return so_far(Ledger(lake.layout.ledger, replay_id))


@contextmanager
def _usage() -> Generator[None]:
    """Errors in the options are wrong usage.

    Raises:
        UsageError: in place of the library's error.
    """
    try:
        yield
    except (ConfigurationError, EventNotRegisteredError) as error:
        raise UsageError(str(error)) from error


# -- afterwards ---------------------------------------------------------------------------------


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
            f"{plural(one.count, 'message')} of {one.event_key} for {one.subscriber} left out: "
            f"the application has no such subscriber"
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
        note(
            f"{plural(result.total, 'message')} would be sent"
            if result.total
            else "no events match"
        )
    else:
        say(f"{plural(result.sent, 'message')} sent")
        if result.skipped:
            note(f"{plural(result.skipped, 'message')} skipped: the subscriber is not enabled")
    for problem in result.errors:
        complain(problem)
    if result.failed > len(result.errors):
        complain(f"{plural(result.failed, 'message')} could not be sent in total")


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
            f"{result.missing:,} more are in the lake but no longer in the broker; "
            f"--replay-missing sends them again"
        )
    if result.held:
        warn(f"{plural(result.held, 'dead letter')} held by another process; run this again later")
    for id_, why in result.failed[:20]:
        complain(f"{id_}: {why}")


def _as_json(counts: Sequence[ReplayCount]) -> list[dict[str, Any]]:
    return [{"event": c.event_key, "subscriber": c.subscriber, "count": c.count} for c in counts]
