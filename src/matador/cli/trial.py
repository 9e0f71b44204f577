"""``matador send-test-event``: one event through the real subscribers, inside this process."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from matador.cli.connecting import run_within
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose
from matador.cli.output import (
    FAILED,
    CommandError,
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
from matador.cli.parcels import Parcel, read_parcel
from matador.cli.samples import sample_payload
from matador.cli.tracing import Tracing
from matador.errors import EventNotRegisteredError
from matador.events.app import Matador
from matador.events.checkpoints import MemoryCheckpointStore
from matador.events.fanout import Order
from matador.events.hooks import EnqueueSuccess, Hooks, WorkerError, WorkerSuccess
from matador.events.loading import Loaded
from matador.model.envelope import Envelope
from matador.model.event import event_type_of, is_event
from matador.model.schema import Schema
from matador.model.sending import SendOptions
from matador.model.subscriber import SubscriberStub
from matador.policy.retry import RetryLater, SendToDeadLetters
from matador.transports.memory import MemoryTransport


@dataclass(slots=True)
class _Run:
    """What became of one message of the trial; None: nothing yet."""

    event: str
    subscriber: str
    fine: bool | None = None
    milliseconds: float | None = None
    remark: str = ""


class _Trial(Hooks):
    """Watches every message until its first attempt is over."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self.over = asyncio.Event()

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        """See ``Hooks``. May be told after the message was handled."""
        self._of(event.envelope)
        self._look()

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """See ``Hooks``."""
        self._finished(event, True, "")

    def on_worker_error(self, event: WorkerError) -> None:
        """See ``Hooks``."""
        match event.decision:
            case RetryLater(delay):
                then = f"a worker would try again after {delay:g} s"
            case SendToDeadLetters(kind, _):
                then = f"a worker would keep it among the {kind} dead letters"
            case _:
                then = "a worker would discard it"
        self._finished(event, False, f"{type(event.error).__name__}: {event.error}; {then}")

    def _of(self, envelope: Envelope[Any]) -> _Run:
        docket = envelope.docket
        return self.runs.setdefault(envelope.id, _Run(docket.event_key, docket.target_subscriber))

    def _finished(self, event: WorkerSuccess | WorkerError, fine: bool, remark: str) -> None:
        run = self._of(event.envelope)
        if run.fine is None:
            run.fine, run.milliseconds, run.remark = fine, event.duration_ms, remark
        self._look()

    def _look(self) -> None:
        if all(one.fine is not None for one in self.runs.values()):
            self.over.set()
        else:
            self.over.clear()


@reported
def send_test_event(
    app: App,
    *,
    event: Annotated[
        str | None, typer.Option(metavar="KEY", help="This event, with a made-up payload.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the event and who would get it; run nothing.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Give up after this long.")
    ] = 5.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run one event through its real subscribers, inside this process.

    The event is the module's test_event (a payload, or {"event_key": …, "data": …}); without one,
    a payload is made up for its first event. It goes over an in-process transport: the broker is
    not touched, but the subscribers do what they do. Each message is tried once, those that
    subscribers send meanwhile too; stubs are left out. --verbose shows every hook.
    """
    loaded = load(app)
    show_logs(logging.DEBUG if verbose else logging.CRITICAL)
    target = loaded.app
    try:
        parcel = _parcel(loaded, event)
        known = target.schema.event(parcel.key)
    except EventNotRegisteredError as error:
        raise UsageError(str(error)) from None
    stubs = [
        one.name for one in target.schema.subscribers(known) if isinstance(one, SubscriberStub)
    ]
    trial = _prepare(target, verbose)
    if dry_run:
        plan = target.plan_send(known.key, parcel.data, options=SendOptions(**parcel.options))
        _show_plan(run_within(plan, timeout, "the dry run"), parcel, stubs, as_json)
        return
    in_time = run_within(_run(target, trial, parcel, timeout), timeout + 5, "the trial")
    _show(trial, known.key, stubs, in_time, timeout, as_json)


def _parcel(loaded: Loaded, event: str | None) -> Parcel:
    given: Any = getattr(loaded.module, "test_event", None)
    if event is None and given is not None:
        if isinstance(given, dict):
            parcel = read_parcel(cast("dict[str, Any]", given), "test_event")
            # It is tried out now, whatever its delay.
            return replace(parcel, options={**parcel.options, "delay": None})
        payload = cast("type[Any]", type(given))
        if not is_event(payload):
            raise CommandError("test_event is neither a payload nor a dict with event_key and data")
        return Parcel(event_type_of(payload).key, given, {})
    if event is None and not loaded.app.schema.events:
        raise CommandError("the schema has no events")
    chosen = loaded.app.schema.event(event) if event else loaded.app.schema.events[0]
    return Parcel(chosen.key, sample_payload(chosen), {})


def _prepare(app: Matador, verbose: bool) -> _Trial:
    """Have the application run in this process alone."""
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
        hooks=[Tracing(err()), trial] if verbose else [trial],
        send_errors="raise",
    )
    return trial


async def _run(app: Matador, trial: _Trial, parcel: Parcel, timeout: float) -> bool:
    """Send the event and wait for the first outcome of every message; False: not in time."""
    await app.start()
    try:
        async with asyncio.timeout(timeout):
            await app.send(parcel.key, parcel.data, **parcel.options)
            if trial.runs:
                await trial.over.wait()
    except TimeoutError:
        return False
    finally:
        await app.shutdown(0)
    return True


def _show_plan(order: Order, parcel: Parcel, stubs: list[str], as_json: bool) -> None:
    names = [one.target.subscriber.name for one in order.outgoing]
    if as_json:
        listed = {"event": order.event.key, "dry_run": True, "data": parcel.data}
        say_json({**listed, "would_run": names, "stubs": stubs, "skipped": order.skipped})
        return
    say(Text.assemble((order.event.key, "bold"), f" {parcel.data}"))
    say(f"would run {', '.join(names) or 'nobody'}")
    _note_left_out(stubs)


def _show(
    trial: _Trial, key: str, stubs: list[str], in_time: bool, timeout: float, as_json: bool
) -> None:
    runs = list(trial.runs.values())
    words = {True: "handled", False: "failed", None: "unfinished"}
    if as_json:
        listed = [
            {
                "event": one.event,
                "subscriber": one.subscriber,
                "outcome": words[one.fine],
                "duration_ms": one.milliseconds,
                "remark": one.remark or None,
            }
            for one in runs
        ]
        say_json({"event": key, "in_time": in_time, "stubs": stubs, "runs": listed})
    else:
        made = table("", "event", "subscriber", "", "ms", "remark", right=("ms",))
        marks = {True: ("✓", "green"), False: ("✗", "red"), None: ("!", "yellow")}
        for one in runs:
            took = "" if one.milliseconds is None else f"{one.milliseconds:,.1f}"
            mark = Text(*marks[one.fine])
            made.add_row(mark, one.event, one.subscriber, words[one.fine], took, one.remark)
        if runs:
            say(made)
        else:
            warn(f"nobody here subscribes to {key}")
        _note_left_out(stubs)
    if not in_time:
        unfinished = sum(one.fine is None for one in runs)
        raise CommandError(
            f"{plural(unfinished, 'message')} unfinished after {timeout:g} s (--timeout)"
        )
    if not all(one.fine for one in runs):
        raise typer.Exit(FAILED)


def _note_left_out(stubs: list[str]) -> None:
    if stubs:
        note(f"left out, as their code is elsewhere: {', '.join(stubs)}")
