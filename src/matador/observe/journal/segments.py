"""Segments: files that are appended to under a hidden name, and appear whole by a rename.

A reader sees finished segments only, and those never change. While a segment is open its writer
holds a lock on it, which the kernel lets go when the process dies, however it dies; whoever starts
next finishes what was abandoned, up to its last whole line.

One rule keeps processes apart: an open segment is renamed or removed only by whoever holds its
lock, and only while its name still means that file. A writer uses a segment only once both are true
for itself. Links are never followed: whoever may write to the folder must not be able to make us
read, cut or rename a file elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("matador.journal")

SUFFIX = ".jsonl"
_OPEN = ".open-"  # Spark, and everybody who lists files, passes over names that start with a dot
_READ = 1 << 16
# A named pipe would have us wait for its other end.
_CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def writer_name() -> str:
    """A name for this writer, different for every process that ever writes: host, pid, random."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def make_folder(folder: Path) -> None:
    """Make the folder of a journal, for its owner alone; one that is there is left as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def finished(folder: Path) -> Iterator[Path]:
    """All finished segments of a folder, oldest first; none if there is no such folder.

    Links and folders are passed over.

    Raises:
        OSError: the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.name.endswith(SUFFIX)
                and not entry.name.startswith(".")
                and entry.is_file(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return
    yield from (folder / name for name in sorted(names))


def open_segment(path: Path | str) -> int:
    """A finished segment, opened for reading.

    Raises:
        OSError: it is not there, not permitted, or no ordinary file.
    """
    return _opened(path, os.O_RDONLY)


class Segment:
    """One open segment. Used by one thread.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, writer: str, number: int) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._name = f"{stamp}-{writer}-{number:06d}{SUFFIX}"
        self._path = folder / f"{_OPEN}{self._name}"
        self._folder = folder
        self._file = _made(self._path)
        self._torn = False
        self._is_named = False
        self.size = 0
        self._opened_at = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._opened_at

    def append(self, lines: bytes) -> None:
        """Append whole lines: all of them, or none.

        Raises:
            OSError: not all could be written; the segment is as it was.
        """
        self._mend()
        self._torn = True
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with contextlib.suppress(OSError):  # then before the next line is written
                self._mend()
            raise
        self.size += len(lines)
        self._torn = False

    def sync(self) -> None:
        """Have what was appended on the disk: should we die now, the next start recovers it."""
        os.fsync(self._file)
        if not self._is_named:  # a file whose name is lost with the power is lost, too
            _sync_folder(self._folder)
            self._is_named = True

    def finish(self) -> Path | None:
        """Make it durable, and let it appear; None if it was empty and is gone.

        Raises:
            OSError: that failed; the next start recovers what is in it.
        """
        try:
            if self.size == 0:
                self._path.unlink(missing_ok=True)
                return None
            self._mend()
            os.fsync(self._file)
            return _appear(self._path, self._folder / self._name)
        finally:
            os.close(self._file)

    def _mend(self) -> None:
        """Cut off what a failed append has left."""
        if self._torn:
            os.ftruncate(self._file, self.size)
            self._torn = False


def recover(folder: Path) -> list[Path]:
    """Finish the segments of writers that are gone; those of living ones are left alone.

    One that cannot be recovered is left where it is, and keeps nobody from starting.
    """
    found: list[Path] = []
    for path in sorted(folder.glob(f"{_OPEN}*{SUFFIX}")):
        try:
            recovered = _recover(path)
        except FileNotFoundError:
            continue  # somebody else was quicker
        except OSError as error:
            log.warning("cannot recover %s, it stays where it is: %s", path, error)
            continue
        if recovered is not None:
            found.append(recovered)
    return found


def _made(path: Path) -> int:
    """A new file, and its lock.

    Somebody who recovers may find the file before it is locked, take it for an abandoned one, and
    remove it, since it is empty. Then it is made again: no line was in it yet.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        file = os.open(path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _recover(path: Path) -> Path | None:
    file = _opened(path, os.O_RDWR)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # its writer lives
        if not _is_at(file, path):
            return None  # finished, or recovered, before we had the lock
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


def _opened(path: Path | str, mode: int) -> int:
    file = os.open(path, mode | _CAREFULLY)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"not an ordinary file: {path}")
    return file


def _is_at(file: int, path: Path) -> bool:
    """Does this name still mean the file that we opened?"""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


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
    _sync_folder(target.parent)
    return target


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
