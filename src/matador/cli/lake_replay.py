"""``matador lake replay`` and ``redrive``: count, confirm, show progress, report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.table import Table

from matador.cli.commands import (
    All,
    AppOrQueue,
    Common,
    Connecting,
    DryRun,
    Event,
    Subscriber,
    Yes,
    flag,
    option,
)
from matador.cli.completion import names_of
from matador.cli.connection import imported, missing_storage, require_shared
from matador.cli.output import (
    FAILED,
    CommandError,
    UsageError,
    complain,
    confirm,
    counting_progress,
    err,
    note,
    plural,
    table,
    warn,
    working,
    wrong_usage,
)
from matador.cli.resources import REDRIVE, failures_json
from matador.cli.spark import SparkOptions, show_spark_logs, start_spark
from matador.cli.store_options import LakeOptions, open_lake
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador
from matador.loading import load_target
from matador.transports.base import Transport

if TYPE_CHECKING:
    from matador.jobs import Queue
    from matador.spark import Lake
    from matador.spark.replay.ledger import ReplayCount
    from matador.spark.replay.redrive import RedriveResult
    from matador.spark.replay.replay import ReplayResult


_FROM_HERE = 100_000
"""Up to this many messages are sent by this process; above, each Spark core sends its share."""

WRONG = (ConfigurationError, EventNotRegisteredError)
"""Errors that count as wrong usage while a replay is chosen."""


def replay(
    app: AppOrQueue,
    *,
    lake: LakeOptions,
    filters: LakeFilters,
    where: Annotated[
        str | None, option("SQL", "Only where this is true: 'data.amount > 100'.")
    ] = None,
    everything: All = False,
    replays: Annotated[
        bool, flag("Include events that are replays themselves.", "--replays")
    ] = False,
    to: Annotated[
        str | None,
        option(
            "NAME",
            "Send to this queue or subscriber, or to 'all'.",
            autocompletion=names_of("queues", "subscribers"),
        ),
    ] = None,
    rate: Annotated[float | None, option("N", "At most this many per second.", min=0.001)] = None,
    replay_id: Annotated[
        str | None, option("ID", "Resume this replay, or give a new one this id.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    spark: SparkOptions,
    common: Connecting,
) -> None:
    """Send events of the lake again, each to its original subscriber unless --to is given.

    Given a job queue, its jobs are added again.

    Counts them first and asks for confirmation. The messages are new ones, marked as replays. An
    interrupted replay is resumed with --replay-id; nothing is sent twice if the transport supports
    deduplication.
    """
    target = load_replay_target(common, app)
    source = open_lake(lake, None if target.app is None else target.app.schema)
    check_filters(target, filters, to)
    begun = _begun(source, replay_id)
    if begun is None and not (everything or where or filters != LakeFilters()):
        unknown = "" if replay_id is None else f"there is no replay {replay_id} to resume; "
        raise UsageError(f"{unknown}choose what to replay: give a filter such as --event, or --all")
    choice: dict[str, Any] = {**asdict(filters), "where": where, "to": to, "replays": replays}
    common.reach(target.target)
    start_spark(source, spark)
    with wrong_usage(*WRONG), working("counting…"):
        plan = begun or source.replay(app, **choice, dry_run=True, replay_id=replay_id)
    if dry_run or not plan.total:
        _report_replay(common, plan, target.words, dry_run=dry_run)
        return
    err().print(*_counts_as_table(plan.counts, target.words, f"{target.words.one}s"))
    _warn_ignored(plan.ignored, target.words)
    left = plural(plan.total - plan.sent, target.words.one)
    if not yes:
        confirm(f"{target.words.send} {left}", f"{left} would be {target.words.sent}")
    name = plan.replay_id if begun else replay_id or str(uuid4())
    again = f"matador lake replay {app} --lake {lake} --replay-id {name}"
    note(f"replay {name}; to resume it after an interruption: {again}")
    many = rate is None and plan.total - plan.sent > _FROM_HERE
    sender = app if many else target.target
    try:
        with wrong_usage(*WRONG), counting_progress("replay") as show:
            done = source.replay(sender, **choice, rate=rate, replay_id=name, progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"resume with: {again}") from None
    _report_replay(common, done, target.words, dry_run=False)
    if done.failed:
        raise typer.Exit(FAILED)


def redrive(
    app: AppOrQueue,
    *,
    lake: LakeOptions,
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
    common: Connecting,
) -> None:
    """Send dead letters back to their queues, chosen by what the lake knows about their failures.

    Given a job queue, its failed jobs run again.

    Counts them first and asks for confirmation. Each is moved atomically and keeps its id: an
    interrupted redrive can be run again and repeats nothing.
    """
    target = load_replay_target(common, app)
    absent = missing_storage(target.transport)
    if absent is not None:
        raise CommandError(f"{absent} does not exist yet: there are no {target.words.dead}s")
    if not (everything or signature or filters != LakeFilters()):
        raise UsageError("choose what to redrive: give --signature or another filter, or --all")
    source = open_lake(lake, None if target.app is None else target.app.schema)
    check_filters(target, filters, None)
    choice: dict[str, Any] = {
        **asdict(filters),
        "signature": signature,
        "missing": "replay" if replay_missing else "leave",
    }
    common.reach(target.target)
    start_spark(source, spark)
    with wrong_usage(*WRONG), working("counting…"):
        plan = source.redrive(app, **choice, dry_run=True)
    replayable = plan.replayed.total if plan.replayed is not None else 0
    if dry_run or not plan.found + replayable:
        _report_redrive(common, plan, target.words, dry_run=dry_run)
        return
    err().print(*_counts_as_table(plan.counts, target.words, f"{target.words.dead}s"))
    if not yes:
        replayed = f" and {replayable:,} replayed" if replayable else ""
        also = f" and replay {replayable:,}" if replayable else ""
        what = plural(plan.found, target.words.dead)
        confirm(f"redrive {what}{also}", f"{what} would be redriven{replayed}")
    with wrong_usage(*WRONG), counting_progress("redrive") as show:
        done = source.redrive(target.target, **choice, progress=show)
    _report_redrive(common, done, target.words, dry_run=False)
    if done.replayed is not None and done.replayed.failed:
        raise typer.Exit(FAILED)


# -- before -------------------------------------------------------------------------------------


def _begun(lake: Lake, replay_id: str | None) -> ReplayResult | None:
    """The state of the replay with that id, if it was started."""
    from matador.spark.replay.ledger import Ledger
    from matador.spark.replay.replay import so_far

    if replay_id is None:
        return None
    with wrong_usage(*WRONG):
        return so_far(Ledger(lake.layout.ledger, replay_id))


# -- afterwards ---------------------------------------------------------------------------------


def _counts_as_table(counts: Sequence[ReplayCount], words: ReplayWords, what: str) -> list[Table]:
    made = table(*words.columns, what, right=(what,))
    for one in counts:
        made.add_row(one.event_key, one.subscriber, f"{one.count:,}")
    return [made] if counts else []


def _warn_ignored(ignored: Sequence[ReplayCount], words: ReplayWords) -> None:
    for one in ignored:
        count = plural(one.count, words.one)
        warn(f"{count} of {one.event_key} for {one.subscriber} left out: {words.left_out}")


def _report_replay(
    common: Common, result: ReplayResult, words: ReplayWords, *, dry_run: bool
) -> None:
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
        messages = plural(result.total, words.one)
        remark = f"{messages} would be {words.sent}" if result.total else f"no {words.found} match"
        made = _counts_as_table(result.counts, words, f"{words.one}s")
        common.show(value, *made, remark=remark)
        _warn_ignored(result.ignored, words)
    else:
        skipped = f"{plural(result.skipped, 'message')} skipped: the subscriber is not enabled"
        sent = f"{plural(result.sent, words.one)} {words.sent}"
        common.show(value, sent, remark=skipped if result.skipped else "")
    for problem in result.errors:
        complain(problem)
    if result.failed > len(result.errors):
        complain(f"{plural(result.failed, words.one)} could not be {words.sent} in total")


def _report_redrive(
    common: Common, result: RedriveResult, words: ReplayWords, *, dry_run: bool
) -> None:
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
        "failed": failures_json(result.failed),
    }
    if dry_run:
        remark = f"{plural(result.found, words.dead)} would be redriven"
        made = _counts_as_table(result.counts, words, f"{words.dead}s")
        common.show(value, *made, remark=remark)
    elif result.found or replayed:
        also = f", {replayed:,} replayed" if replayed else ""
        common.show(value, f"{plural(result.moved, words.dead)} redriven{also}")
    else:
        common.show(value, remark=f"no {words.dead}s match")
    if result.missing and not replayed:
        note(
            f"{result.missing:,} more are in the lake but no longer in the broker; "
            f"--replay-missing sends them again"
        )
    REDRIVE.report(result.failed, result.held, "dead letter")


def _as_json(counts: Sequence[ReplayCount]) -> list[dict[str, Any]]:
    return [{"event": c.event_key, "subscriber": c.subscriber, "count": c.count} for c in counts]


# -- what is replayed, and to what ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFilters:
    """The options that choose rows of the lake, named as ``Lake.replay`` names them."""

    event: Event = None
    subscriber: Subscriber = None
    name: Annotated[str | None, option("NAME", "Only jobs of this name, of a job queue.")] = None
    since: Annotated[
        str | None,
        option("TIME", "Only from this time on, such as 2026-11-01 or 2026-11-01T08:00Z."),
    ] = None
    until: Annotated[str | None, option("TIME", "Only before this time.")] = None


@dataclass(frozen=True, slots=True)
class ReplayWords:
    """The words that a command uses for events, or for jobs."""

    columns: tuple[str, str]
    one: str
    dead: str
    send: str
    sent: str
    found: str
    left_out: str


OF_EVENTS = ReplayWords(
    ("event", "subscriber"),
    one="message",
    dead="dead letter",
    send="send",
    sent="sent",
    found="events",
    left_out="the application has no such subscriber",
)
OF_JOBS = ReplayWords(
    ("job", "queue"),
    one="job",
    dead="failed job",
    send="add",
    sent="added",
    found="jobs",
    left_out="they need the results of other jobs, which the lake does not have",
)


@dataclass(frozen=True, slots=True)
class ReplayingTo:
    """Where events or jobs are sent: an application, or a job queue."""

    target: Matador | Queue
    app: Matador | None
    transport: Transport
    words: ReplayWords


def load_replay_target(common: Common, reference: str) -> ReplayingTo:
    """The application or the job queue that a command names.

    Raises:
        UsageError: it is neither, or its messages are inside each process.
    """
    show_spark_logs(common.verbose)
    target = imported(lambda: load_target(reference), logging.WARNING)
    if isinstance(target, Matador):
        require_shared(target)
        return ReplayingTo(target, target, target.transport, OF_EVENTS)
    from matador.spark.replay.jobs import check_shared

    with wrong_usage(*WRONG):
        transport = check_shared(target).provider.transport
    return ReplayingTo(target, None, transport, OF_JOBS)


def check_filters(target: ReplayingTo, filters: LakeFilters, to: str | None) -> None:
    """Check the options before Spark starts, which takes a while.

    Raises:
        UsageError: one of them is invalid.
    """
    from matador.spark.replay.selection import check_subscriber, moment, target_of

    app = target.app
    if app is not None and filters.name is not None:
        raise UsageError("--name is for the jobs of a queue: select events with --event")
    for option_, value in (
        ("event", filters.event),
        ("subscriber", filters.subscriber),
        ("to", to),
    ):
        if app is None and value is not None:
            raise UsageError(f"--{option_} is for events: select the jobs of a queue with --name")
    with wrong_usage(*WRONG):
        for name, given in (("--since", filters.since), ("--until", filters.until)):
            if given is not None:
                moment(given, name)
        if app is None:
            return
        if filters.event is not None:
            app.schema.event(filters.event)
        if filters.subscriber is not None:
            check_subscriber(app, filters.subscriber)
        target_of(app, to)
