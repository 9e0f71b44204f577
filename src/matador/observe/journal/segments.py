"""Segments: files that are appended to under a hidden name, and appear whole by a rename.

A reader sees finished segments only, and those never change. While a segment is open its writer
holds a lock on it, which the kernel lets go when the process dies, however it dies; whoever starts
next finishes what was abandoned, up to its last whole line.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("matador.journal")

SUFFIX = ".jsonl"
_OPEN = ".open-"  # Spark, and everybody who lists files, passes over names that start with a dot
_READ = 1 << 16


def writer_name() -> str:
    """A name for this writer, different for every process that ever writes: host, pid, random."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def finished(folder: Path) -> Iterator[Path]:
    """All finished segments of a folder, oldest first."""
    yield from sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))


class Segment:
    """One open segment. Used by one thread."""

    def __init__(self, folder: Path, writer: str, number: int) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._name = f"{stamp}-{writer}-{number:06d}{SUFFIX}"
        self._path = folder / f"{_OPEN}{self._name}"
        self._folder = folder
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.size = 0
        self._opened_at = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._opened_at

    def append(self, lines: bytes) -> None:
        """Append whole lines. What was written before stays readable if this fails.

        Raises:
            OSError: not all could be written; the segment was cut back to where it was.
        """
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(lines)

    def sync(self) -> None:
        """Have what was appended on the disk: should we die now, the next start recovers it."""
        os.fsync(self._file)

    def finish(self) -> Path | None:
        """Make it durable, and let it appear; None if it was empty and is gone."""
        try:
            if self.size == 0:
                self._path.unlink(missing_ok=True)
                return None
            os.fsync(self._file)
            return _appear(self._path, self._folder / self._name)
        finally:
            os.close(self._file)


def recover(folder: Path) -> list[Path]:
    """Finish the segments of writers that are gone; those of living ones are left alone."""
    found: list[Path] = []
    for path in sorted(folder.glob(f"{_OPEN}*{SUFFIX}")):
        with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
            recovered = _recover(path)
            if recovered is not None:
                found.append(recovered)
    return found


def _recover(path: Path) -> Path | None:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # its writer lives
        if not path.exists():
            return None  # finished while we waited for the lock
        whole = _end_of_last_line(file)
        if whole == 0:
            path.unlink()
            return None
        os.ftruncate(file, whole)
        os.fsync(file)
        target = _appear(path, path.with_name(path.name.removeprefix(_OPEN)))
        log.warning("recovered a segment that its writer left behind: %s", target)
        return target
    finally:
        os.close(file)


def _end_of_last_line(file: int) -> int:
    """Where the last whole line ends; 0 if there is none."""
    position = os.fstat(file).st_size
    while position > 0:
        start = max(0, position - _READ)
        newline = os.pread(file, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def _appear(path: Path, target: Path) -> Path:
    path.rename(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # the name, too, is on the disk
    finally:
        os.close(folder)
    return target
