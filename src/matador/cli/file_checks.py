"""What ``matador doctor`` looks at in a database file: permissions, room, log, clock."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from matador.cli.checks import Check
from matador.transports.sqlite import SqliteTransport
from matador.transports.sqlite.clock import DatabaseClock, ThisMachine
from matador.transports.sqlite.database import OLDEST_SQLITE

_LITTLE_ROOM = 500 << 20
_NO_ROOM = 20 << 20
_LARGE_LOG = 256 << 20
_CLOCKS_APART = 60.0


def check_file(transport: SqliteTransport) -> Iterator[Check]:
    """The file as it lies there, before it is opened. A last problem: it cannot be opened."""
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
        text = f"no permission to write in {folder}, where SQLite keeps its log too"
        yield Check("file", "problem", text, "change its owner or mode")
    yield from _check_room(folder)
    if not path.exists():
        text = f"{path} is not there yet"
        yield Check("file", "warning", text, "a worker, a send or `topology apply` makes it")
    elif not os.access(path, os.R_OK | os.W_OK):
        text = f"no permission to read and write {path}"
        yield Check("file", "problem", text, "change its owner or mode")
    else:
        yield Check("file", "ok", f"{path}, {_size(path.stat().st_size)}")
        yield from _check_log(path)


def check_file_clock(transport: SqliteTransport) -> Iterator[Check]:
    """The clock of the file against that of the machine. For a file that could be opened."""
    path = transport.path
    now = time.time()
    ahead = path.stat().st_mtime - now
    if ahead > _CLOCKS_APART:
        text = f"the file was changed {ahead:,.0f} s in the future"
        yield Check("clock", "warning", text, "the machine's clock was set back")
    clock = DatabaseClock(ThisMachine())
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        clock.anchor(connection)
    apart = clock.now() / 1000 - now
    if abs(apart) > _CLOCKS_APART:
        yield Check(
            "clock",
            "warning",
            f"the file's clock is {apart:+,.0f} s off the machine's, which was set meanwhile",
            "delays end as they were meant to; a reboot brings both together",
        )


def _check_room(folder: Path) -> Iterator[Check]:
    free = shutil.disk_usage(folder).free
    text = f"{_size(free)} free"
    if free < _NO_ROOM:
        yield Check("disk", "problem", text, "make room: sends will be refused soon")
    elif free < _LITTLE_ROOM:
        yield Check("disk", "warning", text, "make room")
    else:
        yield Check("disk", "ok", text)


def _check_log(path: Path) -> Iterator[Check]:
    log = path.with_name(f"{path.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _LARGE_LOG:
        yield Check(
            "log",
            "warning",
            f"the write-ahead log has {_size(size)}",
            "look for a process that keeps a transaction open: a shell, a backup",
        )


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
