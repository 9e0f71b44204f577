"""Segments: files with a hidden name while they are written, renamed when they are finished.

Readers see only finished segments, which never change. The writer of an open segment holds a lock
on it, which the kernel releases when the process ends for any reason. The next process that starts
recovers abandoned segments, up to the last complete line.

Only the process that holds the lock of an open segment may rename or remove it, and only while the
name still refers to that file. A writer uses a segment only if both are true. Symbolic links are
never followed, so that write access to the folder does not give access to files elsewhere.
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
OPEN_PREFIX = ".open-"  # Spark and most other tools ignore names that start with a dot
_READ = 1 << 16
# Without O_NONBLOCK, opening a named pipe would block.
_CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def writer_name() -> str:
    """A unique name for this writer: host, process id and a random part."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def make_folder(folder: Path) -> None:
    """Create the folder of a journal, accessible only to its owner, unless it exists."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def finished(folder: Path) -> Iterator[Path]:
    """All finished segments of a folder, oldest first; none if the folder does not exist.

    Ignores links and folders.

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
    """Open a segment for reading.

    Raises:
        OSError: it does not exist, is not accessible, or is not a regular file.
    """
    return _opened(path, os.O_RDONLY)


class Segment:
    """One open segment. Used by one thread.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, folder: Path, writer: str, number: int) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._name = f"{stamp}-{writer}-{number:06d}{SUFFIX}"
        self._path = folder / f"{OPEN_PREFIX}{self._name}"
        self._folder = folder
        self._file = _made(self._path)
        self._torn = False
        self._is_named = False
        self.size = 0
        self.lines = 0
        self._opened_at = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._opened_at

    def append(self, lines: bytes) -> None:
        """Append whole lines: all of them, or none.

        Raises:
            OSError: they could not all be written; the segment is unchanged.
        """
        self._mend()
        self._torn = True
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with contextlib.suppress(OSError):  # the next append retries
                self._mend()
            raise
        self.size += len(lines)
        self.lines += lines.count(b"\n")
        self._torn = False

    @property
    def is_deleted(self) -> bool:
        """Whether its file was deleted, with all records in it."""
        return os.fstat(self._file).st_nlink == 0

    def close(self) -> None:
        """Close the file without finishing the segment."""
        os.close(self._file)

    def sync(self) -> None:
        """Write everything to disk, so that the next start can recover it after a crash."""
        os.fsync(self._file)
        if not self._is_named:  # otherwise a power failure could lose the name
            _sync_folder(self._folder)
            self._is_named = True

    def finish(self) -> Path | None:
        """Make it durable and visible. An empty segment is removed, and None is returned.

        Raises:
            FileNotFoundError: it was deleted.
            OSError: it failed; the next start recovers the segment.
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
        """Remove the remains of a failed append."""
        if self._torn:
            os.ftruncate(self._file, self.size)
            self._torn = False


def recover(folder: Path) -> list[Path]:
    """Finish the segments of ended writers; those of running writers stay open.

    A segment that cannot be recovered is left in place, with a warning.
    """
    found: list[Path] = []
    for path in sorted(folder.glob(f"{OPEN_PREFIX}*{SUFFIX}")):
        try:
            recovered = _recover(path)
        except FileNotFoundError:
            continue  # another process was faster
        except OSError as error:
            log.warning("cannot recover %s; it is left in place: %s", path, error)
            continue
        if recovered is not None:
            found.append(recovered)
    return found


def _made(path: Path) -> int:
    """Create and lock a file.

    Another process may find the new file before it is locked, and remove it as abandoned and empty.
    In that case it is created again.
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
            return None  # its writer is running
        if not _is_at(file, path):
            return None  # it was finished or recovered before we had the lock
        whole = end_of_last_line(file)
        if whole == 0:
            path.unlink()
            return None
        os.ftruncate(file, whole)
        os.fsync(file)
        target = _appear(path, path.with_name(path.name.removeprefix(OPEN_PREFIX)))
        log.warning("recovered an abandoned segment: %s", target)
        return target
    finally:
        os.close(file)


def _opened(path: Path | str, mode: int) -> int:
    file = os.open(path, mode | _CAREFULLY)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"not a regular file: {path}")
    return file


def _is_at(file: int, path: Path) -> bool:
    """Whether the path still refers to the open file."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def end_of_last_line(file: int) -> int:
    """The end of the last complete line; 0 if there is none."""
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
