"""What ``matador doctor`` checks in a database file: permissions, free space, log, clock."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from matador.model.message import Finding
from matador.transports.sqlite.clock import DatabaseClock, Machine
from matador.transports.sqlite.database import OLDEST_SQLITE, log_size

_LITTLE_ROOM = 500 << 20
_NO_ROOM = 20 << 20
_LARGE_LOG = 256 << 20
_CLOCKS_APART = 60.0


def examine_file(path: Path) -> Iterator[Finding]:
    """The database file, before it is opened."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        text = f"library {sqlite3.sqlite_version} is older than {needed}"
        yield Finding("sqlite", text, "use a newer Python or operating system", serious=True)
    folder = path.parent
    if not folder.is_dir():
        text = f"the folder {folder} does not exist"
        yield Finding("file", text, f"mkdir -p {folder}", serious=True)
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"no permission to write in {folder}, where SQLite also keeps its log"
        yield Finding("file", text, "change its owner or mode", serious=True)
    yield from _check_room(folder)
    if not path.exists():
        text = f"{path} does not exist yet"
        yield Finding("file", text, "a worker, a send or `matador topology apply` creates it")
    elif not os.access(path, os.R_OK | os.W_OK):
        text = f"no permission to read and write {path}"
        yield Finding("file", text, "change its owner or mode", serious=True)
    else:
        yield Finding("file", f"{path}, {_size(path.stat().st_size)}")
        if (log := log_size(path)) > _LARGE_LOG:
            text = f"the write-ahead log is {_size(log)} large"
            advice = "find the process that keeps a transaction open, such as a shell or a backup"
            yield Finding("log", text, advice)


def examine_clock(path: Path) -> Iterator[Finding]:
    """The clock in the file compared with the machine's. The file must exist."""
    now = time.time()
    ahead = path.stat().st_mtime - now
    if ahead > _CLOCKS_APART:
        text = f"the file's modification time is {ahead:,.0f} s in the future"
        yield Finding("clock", text, "the machine's clock was set back")
    clock = DatabaseClock(Machine())
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        clock.anchor(connection)
    apart = clock.now() / 1000 - now
    if abs(apart) > _CLOCKS_APART:
        yield Finding(
            "clock",
            f"the file's clock is {apart:+,.0f} s off: the machine's clock was changed",
            "delays still end on time; a reboot aligns both clocks",
        )


def _check_room(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    advice = "free disk space" if free < _LITTLE_ROOM else ""
    if free < _NO_ROOM:
        advice += ": sends will soon be refused"
    yield Finding("disk", f"{_size(free)} free", advice, serious=free < _NO_ROOM)


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
