"""``matador doctor`` and ``matador channels check``: check a configuration, and say what to fix.

The transports examine their own storage and broker (``LocalStorage``, ``Examining``).
"""

from __future__ import annotations

import asyncio
import logging
import platform
import sqlite3
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from rich.text import Text

from matador.cli.commands import Commands, Common, Connecting, File, flag
from matador.cli.connection import connect, in_process, run_within
from matador.cli.output import FAILED, CommandError, UsageError, mark, plural, table, warn
from matador.cli.receivers import contents_of, find
from matador.cli.topology import look_for_queues, users_of
from matador.errors import MatadorError, SubscriberIsStubError, UnsupportedError
from matador.events.app import Matador
from matador.model.message import Finding
from matador.model.subscriber import SubscriberStub
from matador.observe.sources import Source, sources
from matador.transports.base import Examining, LocalStorage, Transport
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from matador.channels import Settings


Status: TypeAlias = Literal["ok", "warning", "problem"]

_TAKE_OVER = "fine if intended; otherwise delete the queue when it is empty and apply the topology"
_FIRST_SANE_TIME = 1_704_067_200.0  # 2024, before which this did not exist
_DEAD = "see `matador dead-letters list`, then redrive or purge them"
_UNHANDLED = (
    "unhandled ones have another application in the same namespace (give each its own: "
    "Topology('shop', …)), a renamed event (aliases=[…]) or a worker that was not updated; fix "
    "that first, then redrive them"
)
_FINE = {"ok": True, "warning": None, "problem": False}
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    text: str
    fix: str = ""


def doctor(file: File, *, common: Connecting) -> None:
    """Check everything in a file, its brokers and this machine, and say what to fix.

    ✓ is fine, ! is a warning, ✗ is a problem. Exits with 1 if there is a problem. Creates nothing.
    """
    checks = list(check_machine())
    try:
        found = find(file, common.level(logging.CRITICAL))
    except UsageError:
        raise
    except CommandError as error:
        if common.verbose:
            raise
        fix = "run with --verbose for the traceback"
        checks.append(Check("application", "problem", str(error), fix))
    else:
        checks.append(Check("application", "ok", f"{file} loads"))
        seen = sources(found.receivers)
        for source in seen:
            checks += _named(source, seen, check_source(source))
        work = _check_transports(seen, common.wait)
        checks += run_within(work, _PATIENCE + (common.wait or 0.0), "checking the broker")
    _show(common, checks)
    if any(one.status == "problem" for one in checks):
        raise typer.Exit(FAILED)


def check_source(source: Source) -> Iterator[Check]:
    """Check a source without connecting to its broker."""
    app = source.app
    if app is not None:
        yield from check_schema(app)
        yield from check_fit(app)
        return
    handlers = contents_of([source.service]).receivers
    if handlers or source.jobs is not None:
        names = ", ".join(one.name for one in handlers) or "no declared jobs"
        yield Check("handlers", "ok", f"{', '.join(source.queues)}: {names}")
    else:
        yield Check("handlers", "problem", "there are no handlers", "add one before it starts")


def _named(source: Source, seen: Sequence[Source], checks: Iterable[Check]) -> Iterator[Check]:
    """Put the name of the source before each check if there are several sources."""
    for one in checks:
        yield one if len(seen) == 1 else replace(one, name=f"{source.name}: {one.name}")


async def _check_transports(seen: Sequence[Source], wait: float | None) -> list[Check]:
    checks: list[Check] = []
    for source in seen:
        checks += _named(source, seen, await _check_transport(source, wait))
    return checks


async def _check_transport(source: Source, wait: float | None) -> list[Check]:
    if in_process(source.service):
        text = "messages live inside each process and are lost when it ends"
        return [Check("transport", "warning", text, "use another transport in production")]
    transport = source.transport
    checks: list[Check] = []
    if isinstance(transport, LocalStorage):
        checks += map(as_check, await asyncio.to_thread(transport.examine_storage))
        if transport.missing_storage or any(one.status == "problem" for one in checks):
            return checks
    return [*checks, *[check async for check in check_broker(source, wait)]]


def _show(common: Common, checks: list[Check]) -> None:
    checks = [
        replace(one, text=without_secrets(one.text), fix=without_secrets(one.fix)) for one in checks
    ]
    numbers = Counter(one.status for one in checks)
    listed = [{**asdict(one), "fix": one.fix or None} for one in checks]
    made = table("", "", "")
    made.show_header = False
    for one in checks:
        said = Text(one.text)
        if one.fix:
            said.append(f"\n→ {one.fix}", "dim")
        made.add_row(mark(_FINE[one.status]), one.name, said)
    found = [plural(numbers[one], one) for one in ("problem", "warning") if numbers[one]]
    summary = Text(", ".join(found) if found else "everything is fine", "bold")
    common.show({"ok": not numbers["problem"], "checks": listed}, made, summary)


# -- the checks ---------------------------------------------------------------------------------


def check_machine() -> Iterator[Check]:
    """Check Python, SQLite, and the time of day."""
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("sqlite", "ok", f"library {sqlite3.sqlite_version}")
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _FIRST_SANE_TIME:
        yield Check("clock", "problem", f"the time is {text}", "set the machine's clock")
    else:
        yield Check("clock", "ok", text)


def check_schema(app: Matador) -> Iterator[Check]:
    """Check the schema for problems and warnings."""
    problems = app.schema.validate(app.topology)
    for problem in problems:
        yield Check("schema", "problem", problem, "fix it: workers do not start with this schema")
    for warning in app.schema.warnings():
        yield Check("schema", "warning", warning, "add a subscriber, or remove the event")
    if not len(app.schema):
        yield Check("schema", "warning", "no events", "add some: Schema({OrderPlaced: […]})")
    elif not problems:
        subscribers = sum(len(some) for _, some in app.schema)
        counted = f"{plural(len(app.schema), 'event')}, {plural(subscribers, 'subscriber')}"
        yield Check("schema", "ok", counted)


def check_fit(app: Matador) -> Iterator[Check]:
    """Check for unused queues, consumed stubs, delivery modes and checkpoints."""
    if app.schema.validate(app.topology):
        return
    idle = [queue.name for queue in app.topology.queues if not any(users_of(app, queue))]
    described = f"{app.topology.namespace}: {', '.join(q.name for q in app.topology.queues)}"
    if idle:
        text = f"no subscriber uses {', '.join(idle)}"
        yield Check("topology", "warning", text, "remove the queue, or add a subscriber")
    else:
        yield Check("topology", "ok", described)
    consumed = ", ".join(app.consume_from) or "no queue: the application only sends"
    yield Check("consumes", "ok", consumed)
    try:
        app.check()
    except SubscriberIsStubError as error:
        fix = "give the stub its own queue, which this application does not consume"
        yield Check("stubs", "problem", str(error), fix)
    except UnsupportedError as error:
        fix = "use another delivery mode or another transport"
        yield Check("delivery", "problem", str(error), fix)
    else:
        stubs = sum(isinstance(one, SubscriberStub) for _, some in app.schema for one in some)
        if stubs:
            yield Check("stubs", "ok", f"{plural(stubs, 'stub')}, none in a consumed queue")
    resumable = {
        one.name
        for _, subscribers in app.schema
        for one in subscribers
        if one.idempotent == "resumable" and not isinstance(one, SubscriberStub)
    }
    if resumable and not app.checkpoints.persistent:
        text = f"resumable without stored checkpoints: {', '.join(sorted(resumable))}"
        fix = "pass checkpoints=SqliteCheckpointStore('…') to Matador"
        yield Check("checkpoints", "warning", text, fix)


async def check_broker(source: Source, wait: float | None = None) -> AsyncIterator[Check]:
    """Check the connection, broker settings, queues and dead letters. Connects and disconnects."""
    transport, started = source.transport, time.perf_counter()
    try:
        await connect(transport, wait)
    except MatadorError as error:
        yield Check("connection", "problem", str(error), error.description)
        return
    try:
        took = (time.perf_counter() - started) * 1000
        yield Check("connection", "ok", f"{transport.name}, in {took:.0f} ms")
        for check in (*await _check_settings(transport), *await _check_queues(source)):
            yield check
    finally:
        await transport.disconnect()


async def _check_settings(transport: Transport) -> list[Check]:
    """Run the checks of the transport itself."""
    if not isinstance(transport, Examining):
        return []
    try:
        findings = await transport.examine()
    except MatadorError as error:
        return [Check("broker", "warning", f"could not be checked: {error}")]
    return [as_check(one) for one in findings]


def as_check(finding: Finding) -> Check:
    """A finding of a transport as a check."""
    status = "problem" if finding.serious else "warning" if finding.fix else "ok"
    return Check(finding.subject, status, finding.text, finding.fix)


async def _check_queues(source: Source) -> list[Check]:
    try:
        found = await look_for_queues(source)
        missing = [one.shown for one in found if not one.exists]
        if missing:
            fix = "run `matador topology apply`, or start a worker"
            return [Check("queues", "warning", f"missing: {', '.join(missing)}", fix)]
        checks = [Check("queues", "ok", f"all {len(found)} exist")]
        checks += [
            Check(one.queue or "topology", "warning", one.text, _TAKE_OVER)
            for one in await source.differences()
        ]
        dead = {
            f"{one.queue}.{kind}": number
            for one in await source.counts()
            for kind, number in one.dead_letters.items()
            if number
        }
    except (CommandError, MatadorError) as error:
        return [Check("queues", "warning", str(error))]
    if dead:
        text = ", ".join(f"{number:,} in {name}" for name, number in dead.items())
        fix = _UNHANDLED if any(name.endswith(".unhandled") for name in dead) else _DEAD
        return [*checks, Check("dead letters", "warning", text, fix)]
    return [*checks, Check("dead letters", "ok", "none")]


channels = Commands("Check the settings of a queue service with channels.")

# -- settings of a queue service ------------------------------------------------------------------


_File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The TOML file. Without it, only environment variables count.",
        show_default=False,
    ),
]


@channels.add(
    "matador channels check matador.toml", "matador channels check matador.toml --connect"
)
def check(
    file: _File = None,
    *,
    connect: Annotated[bool, flag("Also connect to the broker.", "--connect")] = False,
    common: Connecting,
) -> None:
    """Check a settings file and the MATADOR_ variables, and show the settings in effect."""
    from matador.channels import RedisModeWarning, Settings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RedisModeWarning)
        settings = Settings.load(file)
    if connect:
        asyncio.run(_connect(settings, common.wait or 0.0))
    found = _as_json(settings)
    lines = table("setting", "value")
    for section, values in found.items():
        for name, value in values.items():
            lines.add_row(f"{section}.{name}", "" if value is None else str(value))
    remark = "the settings are valid" + (", and the broker answers" if connect else "")
    common.show(found, lines, remark=remark)
    for one in caught:
        warn(str(one.message))


async def _connect(settings: Settings, wait: float) -> None:
    from matador.channels import QueueService

    async with QueueService(settings, connect_timeout=wait):
        pass


def _as_json(settings: Settings) -> dict[str, dict[str, object]]:
    """The settings by section, without passwords."""
    found: dict[str, dict[str, object]] = {}
    for one in fields(settings):
        section = getattr(settings, one.name)
        found[one.name] = {field.name: getattr(section, field.name) for field in fields(section)}
    found["queue"]["url"] = without_secrets(settings.queue.url)
    return found
