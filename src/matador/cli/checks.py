"""The checks of ``matador doctor``: each says what it found, and how to fix it."""

from __future__ import annotations

import platform
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from matador.cli.connection import connect
from matador.cli.output import CommandError, plural
from matador.cli.queues import count
from matador.cli.topology import differences, look_for_queues, users_of
from matador.errors import MatadorError, SubscriberIsStubError, UnsupportedError
from matador.events.app import Matador
from matador.model.message import Finding
from matador.model.subscriber import SubscriberStub
from matador.transports.base import Examining

Status: TypeAlias = Literal["ok", "warning", "problem"]

_TAKE_OVER = "fine if intended; otherwise delete the queue when it is empty and apply the topology"
_FIRST_SANE_TIME = 1_704_067_200.0  # 2024, before which this did not exist


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    text: str
    fix: str = ""


def check_machine() -> Iterator[Check]:
    """Python, SQLite, and the time of day."""
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("sqlite", "ok", f"library {sqlite3.sqlite_version}")
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _FIRST_SANE_TIME:
        yield Check("clock", "problem", f"the time is {text}", "set the machine's clock")
    else:
        yield Check("clock", "ok", text)


def check_schema(app: Matador) -> Iterator[Check]:
    """Problems and warnings of the schema."""
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
    """Unused queues, stubs, delivery modes and checkpoints."""
    if app.schema.validate(app.topology):
        return
    idle = [queue.name for queue in app.topology.queues if not any(users_of(app, queue))]
    described = f"{app.topology.namespace}: {', '.join(q.name for q in app.topology.queues)}"
    if idle:
        text = f"no subscriber uses {', '.join(idle)}"
        yield Check("topology", "warning", text, "remove the queue, or add a subscriber")
    else:
        yield Check("topology", "ok", described)
    if app.consume_from:
        yield Check("consumes", "ok", ", ".join(app.consume_from))
    else:
        yield Check("consumes", "ok", "no queue: the application only sends")
    try:
        app.check()
    except SubscriberIsStubError as error:
        fix = "give the stub its own queue, which this application does not consume"
        yield Check("stubs", "problem", str(error), fix)
    except UnsupportedError as error:
        yield Check(
            "delivery", "problem", str(error), "use another delivery mode or another transport"
        )
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
        yield Check(
            "checkpoints",
            "warning",
            f"resumable without stored checkpoints: {', '.join(sorted(resumable))}",
            "pass checkpoints=SqliteCheckpointStore('…') to Matador",
        )


async def check_broker(app: Matador) -> AsyncIterator[Check]:
    """Connection, broker settings, queues and dead letters. Connects and disconnects."""
    started = time.perf_counter()
    try:
        await connect(app)
    except MatadorError as error:
        yield Check("connection", "problem", str(error), error.description)
        return
    try:
        took = (time.perf_counter() - started) * 1000
        yield Check("connection", "ok", f"{app.transport.name}, in {took:.0f} ms")
        for check in (*await _check_settings(app), *await _check_queues(app)):
            yield check
    finally:
        await app.transport.disconnect()


def as_checks(findings: Sequence[Finding]) -> list[Check]:
    """What a transport found, as checks."""
    return [
        Check(
            one.subject,
            "problem" if one.serious else "warning" if one.fix else "ok",
            one.text,
            one.fix,
        )
        for one in findings
    ]


async def _check_settings(app: Matador) -> list[Check]:
    """The transport's own findings."""
    if not isinstance(app.transport, Examining):
        return []
    try:
        findings = await app.transport.examine()
    except MatadorError as error:
        return [Check("broker", "warning", f"could not be checked: {error}")]
    return as_checks(findings)


async def _check_queues(app: Matador) -> list[Check]:
    try:
        found = await look_for_queues(app)
        missing = [one.name for one in found if not one.exists]
        if missing:
            fix = "run `matador topology apply`, or start a worker"
            return [Check("queues", "warning", f"missing: {', '.join(missing)}", fix)]
        checks = [Check("queues", "ok", f"all {len(found)} exist")]
        checks += [
            Check(one.queue or "topology", "warning", one.text, _TAKE_OVER)
            for one in await differences(app)
        ]
        dead = {
            f"{one.queue}.{kind}": number
            for one in await count(app)
            for kind, number in one.dead_letters.items()
            if number
        }
    except (CommandError, MatadorError) as error:
        return [Check("queues", "warning", str(error))]
    if dead:
        text = ", ".join(f"{number:,} in {name}" for name, number in dead.items())
        fix = "see `matador dead-letters list`, then redrive or purge them"
        return [*checks, Check("dead letters", "warning", text, fix)]
    return [*checks, Check("dead letters", "ok", "none")]
