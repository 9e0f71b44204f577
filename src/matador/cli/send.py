"""``matador send``: sends one event, and consumes nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from matador.cli.connecting import reachable, run_within
from matador.cli.json_input import read_json, read_json_object
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose
from matador.cli.output import (
    FAILED,
    UsageError,
    err,
    note,
    plural,
    reported,
    say,
    say_json,
    show_logs,
    table,
    warn,
)
from matador.cli.parcels import Parcel, parcel_of
from matador.cli.tracing import Tracing
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador
from matador.events.fanout import Order
from matador.model.sending import SendOptions, SendResult


@reported
def send(
    app: App,
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT",
            help="The event's key; or a file that holds the whole event, - for stdin.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON", help="The payload as JSON; - reads it from stdin.", show_default=False
        ),
    ] = None,
    *,
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds until it may be handled.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Travels with all that follows from it.")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="Metadata, a JSON object.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="Higher first, on queues with priorities.")
    ] = None,
    ordering_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Handled in order with others of this key.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="JSON", help="The earlier state, for change events.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check it and show who would get it; send nothing.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Give up after this long.")
    ] = 5.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send an event to its subscribers' queues.

    Returns once every message is safely stored. A file holds
    {"event_key": …, "data": …, "before"?: …, "options"?: {"delay", "correlation_id", "metadata",
    "priority", "ordering_key"}}; options on the command line win over it. --verbose shows
    every hook.
    """
    given = {
        "metadata": None if metadata is None else read_json_object(metadata, "--metadata"),
        "correlation_id": correlation_id,
        "delay": delay,
        "before": None if before is None else read_json(before, "--before"),
        "priority": priority,
        "ordering_key": ordering_key,
    }
    parcel = parcel_of(event, data, {k: v for k, v in given.items() if v is not None})
    loaded = load(app)
    show_logs(logging.DEBUG if verbose else logging.ERROR)
    target = loaded.app
    try:
        known = target.schema.event(parcel.key)
        if dry_run:
            target.schema.check(target.topology)
            plan = target.plan_send(known.key, parcel.data, options=SendOptions(**parcel.options))
            _show_plan(run_within(plan, timeout, "the dry run"), as_json)
            return
        reachable(target)
        hooks = [Tracing(err())] if verbose else []
        target.configure(consume_from=(), hooks=hooks, send_errors="report")
        result = run_within(_send(target, replace(parcel, key=known.key)), timeout, "sending")
    except (EventNotRegisteredError, ConfigurationError) as error:
        raise UsageError(str(error)) from error
    _show_result(result, as_json)


async def _send(app: Matador, parcel: Parcel) -> SendResult:
    # Everything is checked before anything is connected to, or made.
    await app.plan_send(parcel.key, parcel.data, options=SendOptions(**parcel.options))
    async with app:
        return await app.send(parcel.key, parcel.data, **parcel.options)


def _show_plan(order: Order, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "event": order.event.key,
                "dry_run": True,
                "skipped": order.skipped,
                "would_send": [
                    {
                        "subscriber": one.target.subscriber.name,
                        "queue": one.target.names[0],
                        "bytes": None if one.message is None else len(one.message.body),
                        "error": None if one.error is None else str(one.error),
                        "warnings": list(one.warnings),
                    }
                    for one in order.outgoing
                ],
            }
        )
    else:
        say(Text.assemble((order.event.key, "bold"), " would be sent to"))
        listed = table("", "subscriber", "queue", "bytes", "remark", right=("bytes",))
        for one in order.outgoing:
            size = "" if one.message is None else f"{len(one.message.body):,}"
            remark = "; ".join(one.warnings) if one.error is None else str(one.error)
            mark = _mark(one.error is None)
            listed.add_row(mark, one.target.subscriber.name, one.target.names[0], size, remark)
        say(listed if order.outgoing else "nobody")
        _note_skipped(order.skipped)
    if any(one.error is not None for one in order.outgoing):
        raise typer.Exit(FAILED)


def _show_result(result: SendResult, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "event": result.event_key,
                "sent": [
                    {"subscriber": one.subscriber, "queue": one.queue, "id": one.id}
                    for one in result.messages
                ],
                "skipped": result.skipped,
                "errors": [
                    {"subscriber": one.subscriber, "queue": one.queue, "error": str(one)}
                    for one in result.errors
                ],
            }
        )
    else:
        number = plural(result.sent, "subscriber")
        say(Text.assemble((result.event_key, "bold"), f" sent to {number}"))
        listed = table("", "subscriber", "queue", "id")
        for one in result.messages:
            listed.add_row(_mark(True), one.subscriber, one.queue, one.id)
        for error in result.errors:
            reason = str(error.__cause__ or error)
            listed.add_row(_mark(False), error.subscriber, error.queue, reason)
        if listed.row_count:
            say(listed)
        _note_skipped(result.skipped)
        if not (result.sent or result.skipped or result.errors):
            warn(f"nobody subscribes to {result.event_key}: nothing was sent")
    if result.errors:
        raise typer.Exit(FAILED)


def _mark(fine: bool) -> Text:
    return Text("✓", "green") if fine else Text("✗", "red")


def _note_skipped(number: int) -> None:
    if number:
        note(f"{plural(number, 'subscriber')} skipped: not enabled")
