"""``matador send``: sends one event, and consumes nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from matador.cli.commands import App, AsJson, DryRun, Timeout, Verbose
from matador.cli.connection import connect, load, require_shared, run_within
from matador.cli.event_input import EventInput, event_input, read_json, read_json_object
from matador.cli.hook_trace import hook_trace
from matador.cli.output import (
    FAILED,
    UsageError,
    err,
    mark,
    note,
    plural,
    say,
    say_json,
    table,
    warn,
)
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador
from matador.events.fanout import Order
from matador.model.sending import SendOptions, SendResult


def send(
    app: App,
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT",
            help="The event's key; or a .json file with the whole event (- for stdin).",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON", help="The payload as JSON (- for stdin).", show_default=False
        ),
    ] = None,
    *,
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Deliver it after this many seconds.")
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Passed on to every event that follows from this one."),
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="Metadata, as a JSON object.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", help="Higher is delivered first, on queues with priorities."),
    ] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Messages with the same key are handled in order."),
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="JSON", help="The previous state, for change events.")
    ] = None,
    dry_run: DryRun = False,
    timeout: Timeout = 5.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send an event to its subscribers' queues.

    Returns once every message is stored safely. A file contains
    {"event_key": …, "data": …, "before"?: …, "options"?: {"delay", "correlation_id", "metadata",
    "priority", "ordering_key"}}; options on the command line override it. --verbose prints
    every hook that is called.
    """
    given = {
        "metadata": None if metadata is None else read_json_object(metadata, "--metadata"),
        "correlation_id": correlation_id,
        "delay": delay,
        "before": None if before is None else read_json(before, "--before"),
        "priority": priority,
        "ordering_key": ordering_key,
    }
    sent = event_input(event, data, {k: v for k, v in given.items() if v is not None})
    target = load(app, verbose).app
    try:
        known = target.schema.event(sent.key)
        if dry_run:
            target.schema.check(target.topology)
            plan = target.plan_send(known.key, sent.data, options=SendOptions(**sent.options))
            _show_plan(run_within(plan, timeout, "the dry run"), as_json)
            return
        require_shared(target)
        hooks = [hook_trace(err())] if verbose else []
        target.configure(consume_from=(), hooks=hooks, send_errors="report")
        ready = threading.Event()
        result = run_within(
            _send(target, replace(sent, key=known.key), ready),
            timeout,
            "sending",
            lambda: _after_timeout(target, ready),
        )
    except (EventNotRegisteredError, ConfigurationError) as error:
        raise UsageError(str(error)) from error
    _show_result(result, as_json)


def _after_timeout(app: Matador, ready: threading.Event) -> str:
    if ready.is_set():
        return " (--timeout); the event may or may not have been sent"
    return f" (--timeout); {app.transport.name} could not be reached and nothing was sent"


async def _send(app: Matador, sent: EventInput, ready: threading.Event) -> SendResult:
    # Check everything before connecting or creating anything.
    await app.plan_send(sent.key, sent.data, options=SendOptions(**sent.options))
    await connect(app)
    ready.set()
    async with app:
        return await app.send(sent.key, sent.data, **sent.options)


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
            listed.add_row(
                mark(one.error is None),
                one.target.subscriber.name,
                one.target.names[0],
                size,
                remark,
            )
        say(listed if order.outgoing else "no subscribers")
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
            listed.add_row(mark(True), one.subscriber, one.queue, one.id)
        for error in result.errors:
            reason = str(error.__cause__ or error)
            listed.add_row(mark(False), error.subscriber, error.queue, reason)
        if listed.row_count:
            say(listed)
        _note_skipped(result.skipped)
        if not (result.sent or result.skipped or result.errors):
            warn(f"{result.event_key} has no subscribers: nothing was sent")
    if result.errors:
        raise typer.Exit(FAILED)


def _note_skipped(number: int) -> None:
    if number:
        note(f"{plural(number, 'subscriber')} skipped: not enabled")
