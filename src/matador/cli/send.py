"""``matador send``: sends one event, and consumes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from matador.cli.commands import App, Common, Connecting, DryRun, Timeout, option
from matador.cli.connection import connect, require_shared, run_within
from matador.cli.event_input import (
    EventArgument,
    EventInput,
    PayloadArgument,
    event_input,
    read_json,
    read_json_object,
)
from matador.cli.output import FAILED, err, mark, plural, table, warn, wrong_usage
from matador.cli.terminal import tidy
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador
from matador.events.fanout import Order
from matador.model.sending import SendOptions, SendResult
from matador.runtime.hooks import Hooks


def send(
    app: App,
    event: EventArgument,
    data: PayloadArgument = None,
    *,
    delay: Annotated[float | None, option("SECONDS", "Deliver it after this many seconds.")] = None,
    correlation_id: Annotated[
        str | None, option("ID", "Passed on to every event that follows from this one.")
    ] = None,
    metadata: Annotated[str | None, option("JSON", "Metadata, as a JSON object.")] = None,
    priority: Annotated[
        int | None, option("N", "Higher is delivered first, on queues with priorities.")
    ] = None,
    ordering_key: Annotated[
        str | None, option("KEY", "Messages with the same key are handled in order.")
    ] = None,
    before: Annotated[str | None, option("JSON", "The previous state, for change events.")] = None,
    dry_run: DryRun = False,
    timeout: Timeout = 5.0,
    common: Connecting,
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
    target = common.load(app).app
    with wrong_usage(EventNotRegisteredError, ConfigurationError):
        sent = replace(sent, key=target.schema.event(sent.key).key)
        if dry_run:
            target.schema.check(target.topology)
            _show_plan(common, run_within(plan(target, sent), timeout, "the dry run"))
            return
        require_shared(target)
        hooks = [hook_trace(err())] if common.verbose else []
        target.configure(consume_from=(), hooks=hooks, send_errors="report")
        ready = threading.Event()
        result = run_within(
            _send(target, sent, ready, common.wait),
            timeout + (common.wait or 0.0),
            "sending",
            lambda: _after_timeout(target, ready),
        )
    _show_result(common, result)


async def plan(app: Matador, sent: EventInput) -> Order:
    """The result of a dry run. Raises the errors that sending would raise."""
    return await app.plan_send(sent.key, sent.data, options=SendOptions(**sent.options))


def _after_timeout(app: Matador, ready: threading.Event) -> str:
    if ready.is_set():
        return " (--timeout); the event may or may not have been sent"
    return f" (--timeout); {app.transport.name} could not be reached and nothing was sent"


async def _send(
    app: Matador, sent: EventInput, ready: threading.Event, wait: float | None
) -> SendResult:
    # Check everything before connecting or creating anything.
    await plan(app, sent)
    await connect(app.transport, wait)
    ready.set()
    async with app:
        return await app.send(sent.key, sent.data, **sent.options)


def _show_plan(common: Common, order: Order) -> None:
    listed = table("", "subscriber", "queue", "bytes", "remark", right=("bytes",))
    would_send: list[dict[str, object]] = []
    for one in order.outgoing:
        name, queue = one.target.subscriber.name, one.target.names[0]
        size = len(one.message.body) or None
        error = None if one.error is None else str(one.error)
        remark = error or "; ".join(one.warnings)
        listed.add_row(mark(error is None), name, queue, f"{size:,}" if size else "", remark)
        planned = {"subscriber": name, "queue": queue, "bytes": size, "error": error}
        would_send.append({**planned, "warnings": list(one.warnings)})
    key, skipped = order.event.key, order.skipped
    common.show(
        {"event": key, "dry_run": True, "skipped": skipped, "would_send": would_send},
        Text.assemble((key, "bold"), " would be sent to"),
        listed if order.outgoing else "no subscribers",
        remark=_skipped(skipped),
    )
    if any(one.error is not None for one in order.outgoing):
        raise typer.Exit(FAILED)


def _show_result(common: Common, result: SendResult) -> None:
    listed = table("", "subscriber", "queue", "id")
    for one in result.messages:
        listed.add_row(mark(True), one.subscriber, one.queue, one.id)
    for error in result.errors:
        listed.add_row(mark(False), error.subscriber, error.queue, str(error.__cause__ or error))
    value = {
        "event": result.event_key,
        "sent": [
            {
                "subscriber": one.subscriber,
                "queue": one.queue,
                "id": one.id,
                "transport": one.transport,
            }
            for one in result.messages
        ],
        "skipped": result.skipped,
        "errors": [
            {"subscriber": one.subscriber, "queue": one.queue, "error": str(one)}
            for one in result.errors
        ],
    }
    title = f" sent to {plural(result.sent, 'subscriber')}"
    common.show(
        value,
        Text.assemble((result.event_key, "bold"), title),
        *([listed] if listed.row_count else []),
        remark=_skipped(result.skipped),
    )
    if not (listed.row_count or result.skipped):
        warn(f"{result.event_key} has no subscribers: nothing was sent")
    if result.errors:
        raise typer.Exit(FAILED)


def _skipped(number: int) -> str:
    return f"{plural(number, 'subscriber')} skipped: not enabled" if number else ""


# -- hooks, for --verbose -------------------------------------------------------------------------


_DETAILS: dict[str, Callable[[Any], str]] = {
    "on_enqueue_success": lambda event: f"stored in {event.queue}",
    "on_enqueue_warning": lambda event: event.text,
    "on_enqueue_error": lambda event: str(event.error),
    "on_transport_fallback": lambda event: f"{event.failed} → {event.next}: {event.error}",
    "on_worker_before_process": lambda event: f"from {event.queue}",
    "on_worker_success": lambda event: f"{event.duration_ms:.1f} ms, returned {event.result!r}",
    "on_worker_error": lambda event: (
        f"{type(event.error).__name__}: {event.error}; {event.decision}"
    ),
    "on_decode_error": lambda event: f"{event.queue}: {event.error}",
    "on_connection_state_change": lambda event: f"{event.transport}: {event.state.status}",
    "on_checkpoint_loaded": lambda event: f"{event.subscriber}: {event.steps} steps",
    "on_checkpoint_hit": lambda event: f"{event.subscriber}: {event.step}",
    "on_checkpoint_miss": lambda event: f"{event.subscriber}: {event.step}",
    "on_checkpoint_cleared": lambda event: f"{event.subscriber}: {event.reason}",
}
"""What is printed of each hook's event."""


def hook_trace(console: Console) -> Hooks:
    """Hooks that print one line per call."""

    def printing(hook: str, details: Callable[[Any], str]) -> Callable[[Hooks, Any], None]:
        def print_line(_: Hooks, event: Any) -> None:
            envelope = getattr(event, "envelope", None)
            of = ""
            if envelope is not None and hook != "on_decode_error":
                of = f"{envelope.docket.event_key} → {envelope.docket.target_subscriber}: "
            line = Text.assemble((f"{hook:<27}", "cyan"), of, tidy(details(event)))
            console.print(line, soft_wrap=True)

        return print_line

    methods = {hook: printing(hook, details) for hook, details in _DETAILS.items()}
    return type("HookTrace", (Hooks,), methods)()
