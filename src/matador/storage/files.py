"""Files that are replaced atomically and durably, moved in one step, and locked by one process.

New files are readable by their owner alone: they contain payloads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from matador.errors import StorageLockedError

T = TypeVar("T")


def read_json(path: Path, kind: type[T]) -> T | None:
    """The content of a file that ``write_json`` wrote; None if there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def write_json(path: Path, content: Any) -> None:
    """Replace a file atomically: after a crash it has the old content or the new."""
    replace_file(path, msgspec.json.encode(content))


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a crash it has the old content or the new."""
    hidden = path.with_name(f".{path.name}.new")
    with private_file(hidden) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    sync(path.parent)


def groups(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Adjacent items in groups of at most ``most`` bytes; a larger item is a group of its own."""
    group: list[T] = []
    total = 0
    for item in items:
        more = size(item)
        if group and total + more > most:
            yield group
            group, total = [], 0
        group.append(item)
        total += more
    if group:
        yield group


def private_file(path: Path) -> BinaryIO:
    """Open a file for writing, readable by its owner alone; existing content is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def private_folder(path: Path) -> Path:
    """Create a folder and its parents, unless they exist."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def sync_tree(folder: Path) -> None:
    """Make all files below a folder durable: Spark does not sync what it writes."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    """Make the content of a file, or the entries of a folder, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def move(source: Path, target: Path) -> None:
    """Move a file or folder to its place, unless an earlier run has done so."""
    if source.exists():
        remove(target)
        source.rename(target)
        sync(target.parent)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    if path.is_dir():  # renamed first, so that no reader sees a part of it
        hidden = path.with_name(f".removed-{path.name}")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        shutil.rmtree(hidden)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked_folder(path: Path) -> Generator[None]:
    """Hold the lock of a folder, which is created unless it exists; see ``locked``."""
    with locked(private_folder(path) / "lock"):
        yield


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold a lock, or raise ``StorageLockedError``. The kernel releases it if the process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageLockedError(
                f"another process is writing to {path.parent.parent}; wait until it is done"
            ) from error
        yield
    finally:
        os.close(handle)
