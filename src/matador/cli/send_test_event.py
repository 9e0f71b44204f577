"""``matador run`` and ``matador send-test-event``: one event through the real subscribers, here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from matador.cli.commands import App, Common, DryRun, Timeout, option
from matador.cli.completion import names_of
from matador.cli.connection import run_within
from matador.cli.event_input import (
    EventArgument,
    EventInput,
    PayloadArgument,
    event_input,
    read_event,
)
from matador.cli.output import FAILED, CommandError, err, mark, plural, table, warn, wrong_usage
from matador.cli.sample_payloads import sample_payload
from matador.cli.send import hook_trace, plan
from matador.errors import EventNotRegisteredError
from matador.events.app import Matador
from matador.events.fanout import Order
from matador.loading import Loaded
from matador.model.event import event_type_of, is_event
from matador.model.schema import Schema
from matador.model.subscriber import SubscriberStub
from matador.observe import Journal
from matador.observe.history import History
from matador.policy.retry import RetryLater, SendToDeadLetters
from matador.runtime.checkpoints import MemoryCheckpointStore
from matador.runtime.facts import Attempt, Sent
from matador.runtime.hooks import Hooks
from matador.transports.memory import MemoryTransport


@dataclass(slots=True)
class _Run:
    """The first attempt at one message; ``fine`` is None until it ends."""

    event: str
    subscriber: str
    fine: bool | None = None
    milliseconds: float | None = None
    remark: str = ""


class _Trial(Hooks):
    """Watches all messages until the first attempt at each has ended."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self.over = asyncio.Event()

    def on_sent(self, batch: Sequence[Sent]) -> None:
        """Expect the messages. May be called after they were handled."""
        for sent in batch:
            self._of(sent)
        self._check_over()

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        for attempt in batch:
            run = self._of(attempt)
            if run.fine is None:
                run.fine, run.milliseconds = attempt.error is None, attempt.duration_ms
                run.remark = "" if run.fine else _remark(attempt)
        self._check_over()

    def _of(self, message: Sent | Attempt) -> _Run:
        return self.runs.setdefault(message.id, _Run(message.name, message.receiver))

    def _check_over(self) -> None:
        if all(one.fine is not None for one in self.runs.values()):
            self.over.set()
        else:
            self.over.clear()


def _remark(attempt: Attempt) -> str:
    match attempt.decision:
        case RetryLater(delay):
            then = f"a worker would retry it after {delay:g} s"
        case SendToDeadLetters(kind, _):
            then = f"a worker would move it to the {kind} dead letters"
        case _:
            then = "a worker would discard it"
    return f"{attempt.error_type}: {attempt.error}; {then}"


def run(
    app: App,
    event: EventArgument,
    data: PayloadArgument = None,
    *,
    dry_run: DryRun = False,
    timeout: Timeout = 5.0,
    common: Common,
) -> None:
    """Run one event through its subscribers, here and now. Nothing is sent or stored.

    The broker, the checkpoint store, the journal and the history are not used, but the subscribers
    really run. Each message gets one attempt, including those that subscribers send; stubs are left
    out, and delays are not waited for. --verbose prints every hook that is called.
    """
    sent = event_input(event, data, {}, "run")
    loaded = common.load(app, logging.CRITICAL)
    options = {**sent.options, "delay": None}
    _try(loaded.app, replace(sent, options=options), dry_run, timeout, common)


def send_test_event(
    app: App,
    *,
    event: Annotated[
        str | None,
        option("KEY", "This event, with a generated payload.", autocompletion=names_of("events")),
    ] = None,
    dry_run: DryRun = False,
    timeout: Timeout = 5.0,
    common: Common,
) -> None:
    """Run one event through its real subscribers, inside this process.

    The event is the module's test_event (a payload, or {"event_key": …, "data": …}); without one,
    a payload is generated for the first event of the schema. The broker is not used, but the
    subscribers really run. Each message gets one attempt, including those that subscribers send;
    stubs are left out. --verbose prints every hook that is called.
    """
    loaded = common.load(app, logging.CRITICAL)
    with wrong_usage(EventNotRegisteredError):
        sent = _event(loaded, event)
    _try(loaded.app, sent, dry_run, timeout, common)


def _try(target: Matador, sent: EventInput, dry_run: bool, timeout: float, common: Common) -> None:
    """Run an event through the subscribers of an application, and show the results.

    Raises:
        UsageError: there is no such event.
        CommandError: it took too long.
        typer.Exit: a subscriber failed.
    """
    with wrong_usage(EventNotRegisteredError):
        known = target.schema.event(sent.key)
    sent = replace(sent, key=known.key)
    stubs = [
        one.name for one in target.schema.subscribers(known) if isinstance(one, SubscriberStub)
    ]
    trial = _prepare(target, common.verbose)
    if dry_run:
        _show_plan(common, run_within(plan(target, sent), timeout, "the dry run"), sent, stubs)
        return
    in_time = run_within(_run(target, trial, sent, timeout), timeout + 5, "the test event")
    _show(common, trial, sent.key, stubs, in_time)
    if not in_time:
        unfinished = plural(sum(one.fine is None for one in trial.runs.values()), "message")
        raise CommandError(f"{unfinished} unfinished after {timeout:g} s (--timeout)")
    if not all(one.fine for one in trial.runs.values()):
        raise typer.Exit(FAILED)


def _event(loaded: Loaded, event: str | None) -> EventInput:
    given: Any = getattr(loaded.module, "test_event", None)
    if event is None and given is not None:
        if isinstance(given, dict):
            read = read_event(cast("dict[str, Any]", given), "test_event")
            return replace(read, options={**read.options, "delay": None})
        payload = cast("type[Any]", type(given))
        if not is_event(payload):
            raise CommandError("test_event is neither a payload nor a dict with event_key and data")
        return EventInput(event_type_of(payload).key, given, {})
    if event is None and not loaded.app.schema.events:
        raise CommandError("the schema has no events")
    chosen = loaded.app.schema.event(event) if event else loaded.app.schema.events[0]
    typed = chosen.typed_metadata
    options = {} if typed is None else {"metadata": sample_payload(typed)}
    return EventInput(chosen.key, sample_payload(chosen), options)


def _prepare(app: Matador, verbose: bool) -> _Trial:
    """Make the application run in this process alone."""
    app.schema.check(app.topology)
    trial = _Trial()
    runnable = Schema(
        {
            event.payload: [one for one in subscribers if not isinstance(one, SubscriberStub)]
            for event, subscribers in app.schema
        }
    )
    app.configure(
        transport=MemoryTransport(),
        schema=runnable,
        consume_from=[queue.name for queue in app.topology.queues],
        checkpoints=MemoryCheckpointStore(),
        deduplication=None,
        hooks=[
            *([hook_trace(err())] if verbose else []),
            trial,
            *(one for one in app.hooks if not isinstance(one, Journal | History)),
        ],
        replace_hooks=True,
        send_errors="raise",
    )
    return trial


async def _run(app: Matador, trial: _Trial, sent: EventInput, timeout: float) -> bool:
    """Send the event and wait for the first attempt at every message; False: it took too long."""
    await app.start()
    try:
        async with asyncio.timeout(timeout):
            await app.send(sent.key, sent.data, **sent.options)
            if trial.runs:
                await trial.over.wait()
    except TimeoutError:
        return False
    finally:
        await app.shutdown(0)
    return True


def _show_plan(common: Common, order: Order, sent: EventInput, stubs: list[str]) -> None:
    names = [one.target.subscriber.name for one in order.outgoing]
    value = {"event": sent.key, "dry_run": True, "data": sent.data, "would_run": names}
    common.show(
        {**value, "stubs": stubs, "skipped": order.skipped},
        Text.assemble((sent.key, "bold"), f" {sent.data}"),
        f"would run {', '.join(names) or 'no subscriber'}",
        remark=_left_out(stubs),
    )


def _show(common: Common, trial: _Trial, key: str, stubs: list[str], in_time: bool) -> None:
    made = table("", "event", "subscriber", "", "ms", "remark", right=("ms",))
    runs: list[dict[str, object]] = []
    for one in trial.runs.values():
        outcome = {True: "handled", False: "failed", None: "unfinished"}[one.fine]
        took = "" if one.milliseconds is None else f"{one.milliseconds:,.1f}"
        made.add_row(mark(one.fine), one.event, one.subscriber, outcome, took, one.remark)
        run = {"event": one.event, "subscriber": one.subscriber, "outcome": outcome}
        runs.append({**run, "duration_ms": one.milliseconds, "remark": one.remark or None})
    common.show(
        {"event": key, "in_time": in_time, "stubs": stubs, "runs": runs},
        *([made] if runs else []),
        remark=_left_out(stubs),
    )
    if not runs:
        warn(f"{key} has no subscribers in this application")


def _left_out(stubs: list[str]) -> str:
    return f"left out, because they are stubs: {', '.join(stubs)}" if stubs else ""
