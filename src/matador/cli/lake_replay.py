"""``matador lake replay`` and ``redrive``: count, confirm, show progress, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.table import Table

from matador.cli.commands import (
    All,
    App,
    Common,
    DryRun,
    Event,
    LakeFolder,
    Subscriber,
    Yes,
    flag,
    option,
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
    table,
    warn,
    wrong_usage,
)
from matador.cli.spark_options import SparkOptions
from matador.cli.spark_session import open_lake, show_spark_logs, start_spark
from matador.cli.stored_messages import complain_about, warn_held
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador

if TYPE_CHECKING:
    from matador.spark import Lake
    from matador.spark.replay.ledger import ReplayCount
    from matador.spark.replay.redrive import RedriveResult
    from matador.spark.replay.replay import ReplayResult

_WRONG = (ConfigurationError, EventNotRegisteredError)
_FROM_HERE = 100_000
"""Up to this many messages are sent by this process; above, each Spark core sends its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFilters:
    """The options that choose rows of the lake, named as ``Lake.replay`` names them."""

    event: Event = None
    subscriber: Subscriber = None
    since: Annotated[
        str | None,
        option("TIME", "Only from this time on, such as 2026-11-01 or 2026-11-01T08:00Z."),
    ] = None
    until: Annotated[str | None, option("TIME", "Only before this time.")] = None


def replay(
    app: App,
    *,
    lake: LakeFolder,
    filters: LakeFilters,
    where: Annotated[
        str | None, option("SQL", "Only where this is true: 'data.amount > 100'.")
    ] = None,
    everything: All = False,
    replays: Annotated[
        bool, flag("Include events that are replays themselves.", "--replays")
    ] = False,
    to: Annotated[
        str | None, option("NAME", "Send to this queue or subscriber, or to 'all'.")
    ] = None,
    rate: Annotated[float | None, option("N", "At most this many per second.", min=0.001)] = None,
    replay_id: Annotated[
        str | None, option("ID", "Resume this replay, or give a new one this id.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    spark: SparkOptions,
    common: Common,
) -> None:
    """Send events of the lake again, each to its original subscriber unless --to is given.

    Counts them first and asks for confirmation. The messages are new ones, marked as replays. An
    interrupted replay is resumed with --replay-id; nothing is sent twice if the transport supports
    deduplication.
    """
    target = _load(common, app)
    source = open_lake(lake, target.schema)
    _check(target, filters, to)
    begun = _begun(source, replay_id)
    if begun is None and not (everything or where or filters != LakeFilters()):
        unknown = "" if replay_id is None else f"there is no replay {replay_id} to resume; "
        raise UsageError(f"{unknown}choose what to replay: give a filter such as --event, or --all")
    choice: dict[str, Any] = {**asdict(filters), "where": where, "to": to, "replays": replays}
    start_spark(source, spark.master, spark.settings())
    with wrong_usage(*_WRONG), working("counting…"):
        plan = begun or source.replay(app, **choice, dry_run=True, replay_id=replay_id)
    if dry_run or not plan.total:
        _report_replay(common, plan, dry_run=dry_run)
        return
    err().print(*_counts_as_table(plan.counts, "messages"))
    _warn_ignored(plan.ignored)
    left = plan.total - plan.sent
    if not yes:
        confirm(f"send {plural(left, 'message')}", f"{plural(left, 'message')} would be sent")
    name = plan.replay_id if begun else replay_id or str(uuid4())
    again = f"matador lake replay {app} --lake {lake} --replay-id {name}"
    note(f"replay {name}; to resume it after an interruption: {again}")
    sender = app if rate is None and left > _FROM_HERE else target
    try:
        with wrong_usage(*_WRONG), counting_progress("replay") as show:
            done = source.replay(sender, **choice, rate=rate, replay_id=name, progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"resume with: {again}") from None
    _report_replay(common, done, dry_run=False)
    if done.failed:
        raise typer.Exit(FAILED)


def redrive(
    app: App,
    *,
    lake: LakeFolder,
    signature: Annotated[
        str | None, option("ID", "Only this signature of the triage table.")
    ] = None,
    filters: LakeFilters,
    everything: All = False,
    replay_missing: Annotated[
        bool, flag("Replay dead letters that are no longer in the broker.", "--replay-missing")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    spark: SparkOptions,
    common: Common,
) -> None:
    """Send dead letters back to their queues, chosen by what the lake knows about their failures.

    Counts them first and asks for confirmation. Each is moved atomically and keeps its id: an
    interrupted redrive can be run again and repeats nothing.
    """
    target = _load(common, app)
    absent = missing_storage(target.transport)
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
    start_spark(source, spark.master, spark.settings())
    with wrong_usage(*_WRONG), working("counting…"):
        plan = source.redrive(app, **choice, dry_run=True)
    replayable = plan.replayed.total if plan.replayed is not None else 0
    if dry_run or not plan.found + replayable:
        _report_redrive(common, plan, dry_run=dry_run)
        return
    err().print(*_counts_as_table(plan.counts, "dead letters"))
    if not yes:
        replayed = f" and {replayable:,} replayed" if replayable else ""
        also = f" and replay {replayable:,}" if replayable else ""
        what = plural(plan.found, "dead letter")
        confirm(f"redrive {what}{also}", f"{what} would be redriven{replayed}")
    with wrong_usage(*_WRONG), counting_progress("redrive") as show:
        done = source.redrive(target, **choice, progress=show)
    _report_redrive(common, done, dry_run=False)
    if done.failed or done.held or (done.replayed is not None and done.replayed.failed):
        raise typer.Exit(FAILED)


# -- before -------------------------------------------------------------------------------------


def _load(common: Common, app: str) -> Matador:
    show_spark_logs(common.verbose)
    target = load(app).app
    require_shared(target)
    return target


def _check(app: Matador, filters: LakeFilters, to: str | None) -> None:
    """Check the options before Spark starts, which takes a while.

    Raises:
        UsageError: one of them is invalid.
    """
    from matador.spark.replay.selection import check_subscriber, moment, target_of

    with wrong_usage(*_WRONG):
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
    with wrong_usage(*_WRONG):
        return so_far(Ledger(lake.layout.ledger, replay_id))


# -- afterwards ---------------------------------------------------------------------------------


def _counts_as_table(counts: Sequence[ReplayCount], what: str) -> list[Table]:
    made = table("event", "subscriber", what, right=(what,))
    for one in counts:
        made.add_row(one.event_key, one.subscriber, f"{one.count:,}")
    return [made] if counts else []


def _warn_ignored(ignored: Sequence[ReplayCount]) -> None:
    for one in ignored:
        warn(
            f"{plural(one.count, 'message')} of {one.event_key} for {one.subscriber} left out: "
            f"the application has no such subscriber"
        )


def _report_replay(common: Common, result: ReplayResult, *, dry_run: bool) -> None:
    value = {
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
    if dry_run or not result.total:
        messages = plural(result.total, "message")
        remark = f"{messages} would be sent" if result.total else "no events match"
        common.show(value, *_counts_as_table(result.counts, "messages"), remark=remark)
        _warn_ignored(result.ignored)
    else:
        skipped = f"{plural(result.skipped, 'message')} skipped: the subscriber is not enabled"
        sent = f"{plural(result.sent, 'message')} sent"
        common.show(value, sent, remark=skipped if result.skipped else "")
    for problem in result.errors:
        complain(problem)
    if result.failed > len(result.errors):
        complain(f"{plural(result.failed, 'message')} could not be sent in total")


def _report_redrive(common: Common, result: RedriveResult, *, dry_run: bool) -> None:
    replayed = 0 if result.replayed is None else result.replayed.sent
    value = {
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
    if dry_run:
        remark = f"{plural(result.found, 'dead letter')} would be redriven"
        common.show(value, *_counts_as_table(result.counts, "dead letters"), remark=remark)
    elif result.found or replayed:
        also = f", {replayed:,} replayed" if replayed else ""
        common.show(value, f"{plural(result.moved, 'dead letter')} redriven{also}")
    else:
        common.show(value, remark="no dead letters match")
    if result.missing and not replayed:
        note(
            f"{result.missing:,} more are in the lake but no longer in the broker; "
            f"--replay-missing sends them again"
        )
    warn_held(result.held, "dead letter")
    complain_about(result.failed, "redriven")


def _as_json(counts: Sequence[ReplayCount]) -> list[dict[str, Any]]:
    return [{"event": c.event_key, "subscriber": c.subscriber, "count": c.count} for c in counts]
