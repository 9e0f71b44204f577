"""The checks of ``matador doctor``: each says what it found, and how to fix it."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from matador.cli.connection import connect
from matador.cli.output import CommandError, plural
from matador.cli.queues import count
from matador.cli.topology import differences, look_for_queues, users_of
from matador.errors import MatadorError, SubscriberIsStubError, UnsupportedError
from matador.events.app import Matador
from matador.model.subscriber import SubscriberStub
from matador.transports.base import Examining
from matador.transports.sqlite import SqliteTransport
from matador.transports.sqlite.clock import DatabaseClock, ThisMachine
from matador.transports.sqlite.database import OLDEST_SQLITE

Status: TypeAlias = Literal["ok", "warning", "problem"]

_TAKE_OVER = "fine if intended; otherwise delete the queue when it is empty and apply the topology"
_FIRST_SANE_TIME = 1_704_067_200.0  # 2024, before which this did not exist
_LITTLE_ROOM = 500 << 20
_NO_ROOM = 20 << 20
_LARGE_LOG = 256 << 20
_CLOCKS_APART = 60.0


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


async def _check_settings(app: Matador) -> list[Check]:
    """The transport's own findings."""
    if not isinstance(app.transport, Examining):
        return []
    try:
        findings = await app.transport.examine()
    except MatadorError as error:
        return [Check("broker", "warning", f"could not be checked: {error}")]
    return [
        Check(
            one.subject,
            "problem" if one.serious else "warning" if one.fix else "ok",
            one.text,
            one.fix,
        )
        for one in findings
    ]


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


# -- the file of a SQLite transport ---------------------------------------------------------------


def check_file(transport: SqliteTransport) -> Iterator[Check]:
    """The database file, before it is opened."""
    path = transport.path
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        text = f"library {sqlite3.sqlite_version} is older than {needed}"
        yield Check("sqlite", "problem", text, "use a newer Python or operating system")
    folder = path.parent
    if not folder.is_dir():
        yield Check("file", "problem", f"the folder {folder} does not exist", f"mkdir -p {folder}")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"no permission to write in {folder}, where SQLite also keeps its log"
        yield Check("file", "problem", text, "change its owner or mode")
    yield from _check_room(folder)
    if not path.exists():
        text = f"{path} does not exist yet"
        yield Check(
            "file", "warning", text, "a worker, a send or `matador topology apply` creates it"
        )
    elif not os.access(path, os.R_OK | os.W_OK):
        text = f"no permission to read and write {path}"
        yield Check("file", "problem", text, "change its owner or mode")
    else:
        yield Check("file", "ok", f"{path}, {_size(path.stat().st_size)}")
        yield from _check_log(path)


def check_file_clock(transport: SqliteTransport) -> Iterator[Check]:
    """The clock in the file compared with the machine's. The file must exist."""
    path = transport.path
    now = time.time()
    ahead = path.stat().st_mtime - now
    if ahead > _CLOCKS_APART:
        text = f"the file's modification time is {ahead:,.0f} s in the future"
        yield Check("clock", "warning", text, "the machine's clock was set back")
    clock = DatabaseClock(ThisMachine())
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        clock.anchor(connection)
    apart = clock.now() / 1000 - now
    if abs(apart) > _CLOCKS_APART:
        yield Check(
            "clock",
            "warning",
            f"the file's clock is {apart:+,.0f} s off: the machine's clock was changed",
            "delays still end on time; a reboot aligns both clocks",
        )


def _check_room(folder: Path) -> Iterator[Check]:
    free = shutil.disk_usage(folder).free
    text = f"{_size(free)} free"
    if free < _NO_ROOM:
        yield Check("disk", "problem", text, "free disk space: sends will soon be refused")
    elif free < _LITTLE_ROOM:
        yield Check("disk", "warning", text, "free disk space")
    else:
        yield Check("disk", "ok", text)


def _check_log(path: Path) -> Iterator[Check]:
    log = path.with_name(f"{path.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _LARGE_LOG:
        yield Check(
            "log",
            "warning",
            f"the write-ahead log is {_size(size)} large",
            "find the process that keeps a transaction open, such as a shell or a backup",
        )


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
